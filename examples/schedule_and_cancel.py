"""Schedule messages, and cancel one of them before it is enqueued."""

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
    soon = datetime.now(UTC) + timedelta(seconds=2)
    reminders = [ServiceBusMessage("buy milk"), ServiceBusMessage("buy bread")]
    milk, bread = sender.schedule_messages(reminders, soon)
    sender.cancel_scheduled_messages(milk)
    print("there is milk: cancelled")

    # A message with this property that is sent as usual is scheduled too.
    sender.send_messages(ServiceBusMessage("bake a cake", scheduled_enqueue_time_utc=soon))
    received = 0
    while received < 2:
        for message in receiver.receive_messages(max_message_count=2, max_wait_time=10):
            early = message.enqueued_time_utc < message.scheduled_enqueue_time_utc
            print(f"{message}, {'too early' if early else 'in time'}")
            receiver.complete_message(message)
            received += 1
