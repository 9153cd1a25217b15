"""Forward the messages of a queue to another queue, and dead letters to a common queue."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
AUTHORITY = os.environ.get("PEEKLOCK_CA_FILE", "peeklock-data/tls/authority.pem")

with (
    ServiceBusAdministrationClient.from_connection_string(CONNECTION_STRING, connection_verify=AUTHORITY) as admin,
    ServiceBusClient.from_connection_string(CONNECTION_STRING) as client,
):
    # The destination must exist first.
    admin.create_queue("failures")
    admin.create_queue("work", forward_dead_lettered_messages_to="failures")
    admin.create_queue("inbox", forward_to="work")

    with client.get_queue_sender("inbox") as sender:
        sender.send_messages([ServiceBusMessage("good"), ServiceBusMessage("bad")])

    with client.get_queue_receiver("work") as receiver:
        for _ in range(2):
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
            print(f"work got {message}")
            if str(message) == "bad":
                receiver.dead_letter_message(message, reason="Unusable")
            else:
                receiver.complete_message(message)

    with client.get_queue_receiver("failures") as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        print(f"failures got {message} from {message.dead_letter_source}: {message.dead_letter_reason}")
        receiver.complete_message(message)

    # Delete destinations last, so that no queue forwards to a deleted queue.
    for name in ("inbox", "work", "failures"):
        admin.delete_queue(name)
