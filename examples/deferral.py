"""Defer messages that cannot be processed yet, and receive them later by their sequence numbers."""

import os

from azure.servicebus import ServiceBusClient, ServiceBusMessage

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("queue") as sender:
        sender.send_messages([ServiceBusMessage(body) for body in ("roof", "walls", "foundation")])

    with client.get_queue_receiver("queue") as receiver:
        aside = {}
        while "foundation" not in aside:
            for message in receiver.receive_messages(max_message_count=3, max_wait_time=5):
                # A deferred message is received only by its sequence number, so store that.
                aside[str(message)] = message.sequence_number
                receiver.defer_message(message)
        print(f"deferred: {', '.join(aside)}")

        for part in ("foundation", "walls", "roof"):
            for message in receiver.receive_deferred_messages(aside[part]):
                print(f"build the {message}")
                receiver.complete_message(message)
