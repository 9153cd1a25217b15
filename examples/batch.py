"""Send a batch of messages, which the broker stores as a whole or not at all. Then receive all messages."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("queue") as sender:
        batch = sender.create_message_batch()
        for number in range(1, 101):
            batch.add_message(ServiceBusMessage(f"message {number}"))
        sender.send_messages(batch)
        print(f"sent {len(batch)} messages in {batch.size_in_bytes} bytes")
    # The iteration ends after max_wait_time seconds without a message.
    with client.get_queue_receiver("queue", max_wait_time=1, prefetch_count=50) as receiver:
        received = []
        for message in receiver:
            received.append(str(message))
            receiver.complete_message(message)
        print(f"received {len(received)} messages, from {received[0]} to {received[-1]}")
