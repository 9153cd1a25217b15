"""Disable a queue for sending while receivers process its messages, and enable it again."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError
from azure.servicebus.management import EntityStatus, ServiceBusAdministrationClient

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
AUTHORITY = os.environ.get("PEEKLOCK_CA_FILE", "peeklock-data/tls/authority.pem")

with (
    ServiceBusAdministrationClient.from_connection_string(CONNECTION_STRING, connection_verify=AUTHORITY) as admin,
    # Without this setting the SDK retries, as it takes the status for a transient error.
    ServiceBusClient.from_connection_string(CONNECTION_STRING, retry_total=0) as client,
):
    queue = admin.create_queue("harbour")
    with client.get_queue_sender("harbour") as sender:
        sender.send_messages(ServiceBusMessage("a ship"))

        queue.status = EntityStatus.SEND_DISABLED
        admin.update_queue(queue)
        try:
            sender.send_messages(ServiceBusMessage("a late ship"))
        except MessagingEntityDisabledError:
            print("the harbour is closed")

    with client.get_queue_receiver("harbour") as receiver:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        receiver.complete_message(message)
        print(f"{message} was unloaded all the same")

    queue.status = EntityStatus.ACTIVE
    admin.update_queue(queue)
    with client.get_queue_sender("harbour") as sender:
        sender.send_messages(ServiceBusMessage("another ship"))
        print("the harbour is open")
    admin.delete_queue("harbour")
