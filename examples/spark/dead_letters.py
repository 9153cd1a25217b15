"""Why messages were dead-lettered: what is in a dead-letter queue, and what the failed have in common.

Runs as it stands, and cell by cell in a notebook. Needs `pip install '.[spark]'` and Java 17.
"""

# %% Where the messages are
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

# %% Orders, of which some are no good: a release of the app forgets the customer
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

# %% What is in the dead-letter queue, without a lock on any of it
failed = dead_letters.read_dead_letters(spark, OPTIONS, ["queue"])
for row in dead_letters.counts(failed, "dead_letter_reason").collect():
    print(f"{row.messages} of {row.entity} because of {row.dead_letter_reason}")

# %% What they share and the others do not
others = dead_letters.read_waiting(spark, OPTIONS, ["queue"])
for row in dead_letters.triage(failed, others)["causes"].orderBy("rank").collect():
    what = statement(row["kind"], row["name"], row["says"], row["value"])
    print(f"{what}: {row.failed_share:.0%} of the failed, {row.others_share:.0%} of the others")

# %% Which would be sent again; `peeklock pipeline dead-letters --resubmit --where …` does that
chosen = dead_letters.matching(failed, "application_properties['region'] = 'n' AND message_id < 'order-2'")
print(f"{len(dead_letters.chosen(chosen)['queue'])} would be sent again")

# %%
spark.stop()
with connect(CONNECTION_STRING) as connection:
    for address in ("queue", "queue/$DeadLetterQueue"):
        with connection.receiver(address, credit=0, mode="receive-and-delete") as receiver:
            while receiver.receive(100, timeout=1):
                pass
