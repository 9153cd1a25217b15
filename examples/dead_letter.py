"""Dead-letter a message that cannot be processed, and read the reason in the dead-letter queue."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("queue") as sender:
        sender.send_messages(ServiceBusMessage("an order without a customer"))
    with client.get_queue_receiver("queue") as receiver:
        for message in receiver.receive_messages(max_message_count=1, max_wait_time=5):
            receiver.dead_letter_message(message, reason="NoCustomer", error_description="Whose order is it?")
    with client.get_queue_receiver("queue", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as dead_letters:
        for message in dead_letters.receive_messages(max_message_count=1, max_wait_time=5):
            print(f"{message}: {message.dead_letter_reason} ({message.dead_letter_error_description})")
            print(f"it comes from {message.dead_letter_source}")
            dead_letters.complete_message(message)
