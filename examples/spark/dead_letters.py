"""Analyse a dead-letter queue: count messages by reason, and find likely causes.

Runs as it stands, and cell by cell in a notebook. Needs `pip install '.[spark]'` and Java 17.
"""

# %% The namespace
import os

from peeklock.client import Message, Properties, connect
from peeklock.spark.pipelines import dead_letters
from peeklock.spark.pipelines.causes import statement
from peeklock.spark.session import local_session

CONNECTION_STRING = os.environ.get(
    "SERVICEBUS_CONNECTION_STRING",
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
)
OPTIONS = {"connectionString": CONNECTION_STRING}
spark = local_session("dead letters", cores=2)

# %% Orders, some without a customer because of an error in a release of the app
with connect(CONNECTION_STRING) as connection:
    connection.sender("queue").send_all(
        Message(
            properties=Properties(message_id=f"order-{number}", subject="order"),
            application_properties={"release": "2.0" if number % 4 == 0 else "1.9", "region": "ns"[number % 2]},
            data=[b"{}" if number % 4 == 0 else b'{"customer": "c-%d"}' % number],
        )
        for number in range(40)
    )
    with connection.receiver("queue", credit=0) as receiver:
        good = []
        for order in (each for _ in range(40) for each in receiver.receive(1, timeout=5)):
            if b"customer" in order.message.data[0]:
                good.append(order)
            else:
                told = {"DeadLetterReason": "NoCustomer", "DeadLetterErrorDescription": "Whose order is it?"}
                receiver.reject(order, "com.microsoft:dead-letter", info=told, wait=True)
        receiver.release(good, wait=True)

# %% Count the messages in the dead-letter queue, without locking them
failed = dead_letters.read_dead_letters(spark, OPTIONS, ["queue"])
for row in dead_letters.counts(failed, "dead_letter_reason").collect():
    print(f"{row.messages} of {row.entity} because of {row.dead_letter_reason}")

# %% Find properties that differ from the other messages
others = dead_letters.read_waiting(spark, OPTIONS, ["queue"])
for row in dead_letters.triage(failed, others)["causes"].orderBy("rank").collect():
    what = statement(row["kind"], row["name"], row["says"], row["value"])
    print(f"{what}: {row.failed_share:.0%} of the failed, {row.others_share:.0%} of the others")

# %% Select messages to resubmit; `peeklock pipeline dead-letters --resubmit --where …` resubmits them
chosen = dead_letters.matching(failed, "application_properties['region'] = 'n' AND message_id < 'order-2'")
print(f"{len(dead_letters.chosen(chosen)['queue'])} would be sent again")

# %%
spark.stop()
with connect(CONNECTION_STRING) as connection:
    for address in ("queue", "queue/$DeadLetterQueue"):
        with connection.receiver(address, credit=0, mode="receive-and-delete") as receiver:
            while receiver.receive(100, timeout=1):
                pass
