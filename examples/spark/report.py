"""Make a report on captured messages: tables as Parquet, and an HTML page.

Runs as it stands, and cell by cell in a notebook. Needs `pip install '.[spark]'` and Java 17.
"""

# %% The namespace
import os
import tempfile
from pathlib import Path

from peeklock.client import Message, Properties, connect
from peeklock.spark.pipelines import capture, report
from peeklock.spark.session import local_session

CONNECTION_STRING = os.environ.get(
    "SERVICEBUS_CONNECTION_STRING",
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;",
)
spark = local_session("report", cores=2)
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)

# %% Send messages, two of them with the same id, and capture them
with connect(CONNECTION_STRING) as connection:
    connection.sender("queue").send_all(
        Message(
            properties=Properties(message_id=f"order-{max(number, 1)}", group_id=f"customer-{number % 3}"),
            application_properties={"region": "north"},
            data=[b"x" * number],
        )
        for number in range(30)
    )
target = capture.Target(folder=str(folder / "captured"), until_empty=True)
capture.capture(spark, ["queue"], {"connectionString": CONNECTION_STRING}, target)

# %% Make single tables
messages = report.measured(capture.read(spark, target.folder))
for row in report.duplicates(messages).collect():
    print(f"{row.message_id} came {row.times} times to {row.entity}")
for row in report.session_skew(messages).collect():
    print(f"{row.sessions} sessions, the largest {row.skew:.1f} times the mean")

# %% Make all tables and the page
made = report.publish(
    capture.read(spark, target.folder), str(folder / "report"), folder / "report" / "report.html", target.folder
)
print(f"{made.tables['entities'][0]['messages']} messages: report.html and {len(made.tables)} tables")

# %%
spark.stop()
scratch.cleanup()
