"""Set up a namespace from a program: make a queue, look at it, change it, read its counts, delete it.

This client of the SDK always speaks HTTPS, so it has to trust the authority that signed the broker's certificate:
`peeklock certificate` prints where that is.
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
        print("invoices is there already")

    # Change what was read, so that everything else stays as it is.
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
    print(f"{counts.active_message_count} messages wait, {counts.dead_letter_message_count} are dead letters")

    print("invoices is listed:", "invoices" in [queue.name for queue in admin.list_queues()])
    admin.delete_queue("invoices")
    print("invoices is listed:", "invoices" in [queue.name for queue in admin.list_queues()])
