"""Send a message again without storing it twice: a queue with duplicate detection keeps the first one with an id."""

import os
from datetime import timedelta

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
    admin.create_queue(
        "payments",
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=5),
    )
    with client.get_queue_sender("payments") as sender:
        # If the outcome of a send is lost, the sender sends again. The broker accepts both and drops the second.
        for _ in range(2):
            sender.send_messages(ServiceBusMessage("10 euros for Ada", message_id="payment-1"))
            print("accepted")
        sender.send_messages(ServiceBusMessage("20 euros for Bob", message_id="payment-2"))

    with client.get_queue_receiver("payments", max_wait_time=1) as receiver:
        for message in receiver:
            print(f"received {message}")
            receiver.complete_message(message)
    admin.delete_queue("payments")
