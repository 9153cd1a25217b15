"""Administer a namespace: create a queue, read and change its settings, read its message counts, and delete it.

The SDK's administration client always uses HTTPS, so it must trust the authority that signed the broker's certificate:
`peeklock certificate` prints its path.
"""

import os
from datetime import timedelta

from azure.core.exceptions import ResourceExistsError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)
AUTHORITY = os.environ.get("PEEKLOCK_CA_FILE", "peeklock-data/tls/authority.pem")

with ServiceBusAdministrationClient.from_connection_string(CONNECTION_STRING, connection_verify=AUTHORITY) as admin:
    admin.create_queue("invoices", max_delivery_count=5, lock_duration=timedelta(seconds=30))
    try:
        admin.create_queue("invoices")
    except ResourceExistsError:
        print("invoices already exists")

    # Change the settings that were read, so that the other settings stay as they are.
    queue = admin.get_queue("invoices")
    queue.dead_lettering_on_message_expiration = True
    admin.update_queue(queue)
    queue = admin.get_queue("invoices")
    print(f"{queue.max_delivery_count} deliveries, expired ones kept: {queue.dead_lettering_on_message_expiration}")

    with (
        ServiceBusClient.from_connection_string(CONNECTION_STRING) as client,
        client.get_queue_sender("invoices") as sender,
    ):
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    counts = admin.get_queue_runtime_properties("invoices")
    print(f"{counts.active_message_count} active messages, {counts.dead_letter_message_count} dead-lettered messages")

    print("invoices is listed:", "invoices" in [queue.name for queue in admin.list_queues()])
    admin.delete_queue("invoices")
    print("invoices is listed:", "invoices" in [queue.name for queue in admin.list_queues()])
