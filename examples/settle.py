"""What can be done with a received message: give it back, complete it, or receive it so that it is gone at once."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("queue") as sender:
        sender.send_messages([ServiceBusMessage("first"), ServiceBusMessage("second")])

    with client.get_queue_receiver("queue") as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        print(f"abandon {message}, given back {message.delivery_count} times so far")
        receiver.abandon_message(message)

        # It comes back in its old place, before the second one, and was counted.
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        print(f"complete {message}, given back {message.delivery_count} times so far")
        receiver.complete_message(message)

    # Without a lock and without a settlement: a message is deleted when it is delivered.
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver("queue", receive_mode=mode) as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        print(f"received and deleted {message}")
