"""Process one session at a time, in order, and store the progress in the state of each session.

The queue requires sessions: every message belongs to one, and one receiver at a time holds a session.
"""

import os

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with ServiceBusClient.from_connection_string(CONNECTION_STRING) as client:
    with client.get_queue_sender("session-queue") as sender:
        for customer, item in (("ada", "a lamp"), ("bob", "a chair"), ("ada", "a desk")):
            sender.send_messages(ServiceBusMessage(item, session_id=customer))

    # Any unlocked session with messages; `session_id="ada"` selects one session.
    for _ in range(2):
        with client.get_queue_receiver("session-queue", session_id=NEXT_AVAILABLE_SESSION) as receiver:
            session = receiver.session
            bought = (session.get_state() or b"nothing").decode()
            print(f"{session.session_id} has bought {bought}")
            for message in receiver.receive_messages(max_message_count=10, max_wait_time=5):
                bought = f"{message}" if bought == "nothing" else f"{bought} and {message}"
                # State first: if the program stops before it completes the message, it is redelivered and not lost.
                session.set_state(bought)
                receiver.complete_message(message)
            session.renew_lock()
            print(f"{session.session_id} has bought {session.get_state().decode()}")
            session.set_state(None)
