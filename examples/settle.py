"""Settle received messages: abandon, complete, or receive and delete them."""

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
        print(f"abandon {message}, delivered {message.delivery_count} times before")
        receiver.abandon_message(message)

        # The abandoned message is back in its place before the second one, with a higher delivery count.
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        print(f"complete {message}, delivered {message.delivery_count} times before")
        receiver.complete_message(message)

    # Receive and delete: without a lock and a settlement, a message is removed when it is delivered.
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with client.get_queue_receiver("queue", receive_mode=mode) as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        print(f"received and deleted {message}")
