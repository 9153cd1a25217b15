"""Process a message for longer than its lock lasts: renew the lock explicitly, or automatically by the SDK."""

import os

from azure.servicebus import AutoLockRenewer, ServiceBusClient, ServiceBusMessage

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("queue") as sender:
        sender.send_messages(ServiceBusMessage("a lot of work"))
    with client.get_queue_receiver("queue") as receiver, AutoLockRenewer() as renewer:
        (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        before = message.locked_until_utc
        after = receiver.renew_message_lock(message)
        print(f"{message}: the lock lasts {'longer' if after > before else 'no longer'} now")

        # The renewer renews the lock before it expires, for at most five minutes.
        renewer.register(receiver, message, max_lock_renewal_duration=300)
        receiver.complete_message(message)
        print("completed in time")
