"""Replay captured messages to a queue: a selection, in order, at a limited rate.

Runs as it stands, and cell by cell in a notebook. Needs `pip install '.[spark]'` and Java 17.
"""

# %% Captured messages
import os
import tempfile

from peeklock.client import Message, Properties, connect
from peeklock.spark.pipelines import capture, replay
from peeklock.spark.session import local_session

CONNECTION_STRING = os.environ.get(
    "SERVICEBUS_CONNECTION_STRING",
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
)
spark = local_session("replay", cores=2)
scratch = tempfile.TemporaryDirectory()
folder = scratch.name

with connect(CONNECTION_STRING) as connection:
    connection.sender("queue").send_all(
        Message(properties=Properties(subject="odd" if number % 2 else "even"), data=[b"%d" % number])
        for number in range(20)
    )
capture.capture(
    spark, ["queue"], {"connectionString": CONNECTION_STRING}, capture.Target(folder=folder, until_empty=True)
)

# %% Select messages
rows = replay.chosen(capture.read(spark, folder), replay.Choice(where="subject = 'odd'"))
print(f"{replay.summary(rows).messages} messages are odd")

# %% Send five per second, with new message ids
options = {"connectionString": CONNECTION_STRING, "queue": "queue"}
replay.replay(
    replay.outgoing(rows, ids="new"),
    options,
    replay.Pace(rate=5),
    tasks=1,
    on_sent=lambda count: print(f"{count} sent"),
)

# %% Read the queue
with connect(CONNECTION_STRING) as connection:
    receiver = connection.receiver("queue", mode="receive-and-delete")
    bodies = [message.body.decode() for message in receiver.messages(timeout=1)]
print("in the queue:", ", ".join(bodies))
spark.stop()
scratch.cleanup()
