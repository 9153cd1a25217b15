"""Send a message to a queue, receive it and complete it."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("queue") as sender:
        sender.send_messages(ServiceBusMessage("Hello", subject="greeting", application_properties={"n": 1}))
        print("sent")
    with client.get_queue_receiver("queue") as receiver:
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=5):
            print(f"received {message} with the subject {message.subject}")
            receiver.complete_message(message)
            print("completed")
