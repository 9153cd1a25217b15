"""Complete a message and send another one in a transaction: both happen, or neither.

The Python SDK knows no transactions (the .NET and Java SDKs do), so this uses Peeklock's own small client.
"""

import os

from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.transactions import Coordinator, Declare, Discharge, TransactionalState
from peeklock.client import Message, connect

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
CONNECTION_STRING = os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT)

with connect(CONNECTION_STRING) as connection:
    sender = connection.sender("queue")
    receiver = connection.receiver("queue", credit=0)
    coordinator = connection.sender(Coordinator())
    sender.send(Message(data=[b"step 1"]))
    (message,) = receiver.receive(timeout=5)

    transaction = coordinator.send(Message(value=Declare())).txn_id
    sender.send(Message(data=[b"a wrong step 2"]), state=TransactionalState(transaction))
    coordinator.send(Message(value=Discharge(transaction, fail=True)))
    print("rolled back: nothing was sent")

    transaction = coordinator.send(Message(value=Declare())).txn_id
    sender.send(Message(data=[b"step 2"]), state=TransactionalState(transaction))
    receiver.settle(message, TransactionalState(transaction, Accepted()).encode(), wait=True)
    coordinator.send(Message(value=Discharge(transaction, fail=False)))
    print(f"committed: {message.body.decode()} is completed")

    (message,) = receiver.receive(timeout=5)
    print(f"now there is {message.body.decode()}")
    receiver.accept(message, wait=True)
