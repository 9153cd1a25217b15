"""Capture the messages of a queue into Parquet, each exactly once, and query them.

Runs as it stands, and cell by cell in a notebook. Needs `pip install '.[spark]'` and Java 17.
"""

# %% The namespace
import os
import tempfile

from peeklock.client import Message, Properties, connect
from peeklock.spark.pipelines import capture
from peeklock.spark.pipelines.compaction import compact
from peeklock.spark.session import local_session

CONNECTION_STRING = os.environ.get(
    "SERVICEBUS_CONNECTION_STRING",
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
)
spark = local_session("capture", cores=2)
scratch = tempfile.TemporaryDirectory()
folder = scratch.name


def send(first: int, last: int) -> None:
    with connect(CONNECTION_STRING) as connection:
        connection.sender("queue").send_all(
            Message(
                properties=Properties(subject="order", message_id=f"order-{number}"),
                application_properties={"country": "DE" if number % 3 else "FR", "amount": number},
                data=[b"order %d" % number],
            )
            for number in range(first, last)
        )


# %% Capture the messages; a second capture finds none
target = capture.Target(folder=folder, until_empty=True)
for first in (0, 60):
    send(first, first + 60)
    capture.capture(spark, ["queue"], {"connectionString": CONNECTION_STRING}, target)

# %% Query them with any Spark
captured = spark.read.parquet(folder)
for row in captured.groupBy("application_properties.country").count().orderBy("country").collect():
    print(f"{row['count']} orders from {row.country}")

# %% Merge small files
done = compact(spark, folder)
print(f"{done.merged} files merged into {done.into}, still {capture.read(spark, folder).count()} orders")

# %%
spark.stop()
scratch.cleanup()
