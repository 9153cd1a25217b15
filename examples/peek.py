"""Peek at the messages of a queue in any state, without locking them or raising their delivery counts."""

import os
from datetime import UTC, datetime, timedelta

from azure.servicebus import ServiceBusClient, ServiceBusMessage

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with (
    ServiceBusClient.from_connection_string(CONNECTION_STRING) as client,
    client.get_queue_sender("queue") as sender,
    client.get_queue_receiver("queue") as receiver,
):
    sender.send_messages([ServiceBusMessage("first"), ServiceBusMessage("second")])
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    (scheduled,) = sender.schedule_messages(ServiceBusMessage("third"), tomorrow)
    (first,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
    receiver.defer_message(first)

    # Each call continues after the last message of the previous call; a sequence number sets the start.
    start = first.sequence_number
    while messages := receiver.peek_messages(max_message_count=2, sequence_number=start):
        for message in messages:
            print(f"{message} is {message.state.name.lower()}")
        start = messages[-1].sequence_number + 1

    sender.cancel_scheduled_messages(scheduled)
    for message in receiver.receive_deferred_messages(first.sequence_number):
        receiver.complete_message(message)
    for message in receiver.receive_messages(max_message_count=1, max_wait_time=5):
        receiver.complete_message(message)
