"""Write messages to a queue with Spark, read them, and move them into Parquet files, each exactly once.

Written like a notebook: run it whole, or cell by cell. It needs `pip install '.[spark]'` and Java 17 or newer.
"""

# %% A local Spark session, and a queue
import os
import tempfile

from pyspark.sql import functions as F

from peeklock.spark.session import local_session

DEVELOPMENT = (
    "Endpoint=sb://127.0.0.1:5672;SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)
QUEUE = {"connectionString": os.environ.get("SERVICEBUS_CONNECTION_STRING", DEVELOPMENT), "queue": "queue"}

spark = local_session("connector", cores=2)

# %% Write: each row is a message
orders = spark.createDataFrame(
    [(1, "lamp", 40), (2, "house", 250_000), (3, "car", 20_000)], "id int, what string, price int"
)
messages = orders.select(
    F.to_json(F.struct("what", "price")).alias("body"),
    F.lit("order").alias("subject"),
    F.concat(F.lit("order-"), "id").alias("message_id"),
    F.create_map(F.lit("price"), "price").alias("application_properties"),
)
messages.write.format("servicebus").options(**QUEUE).mode("append").save()
print(f"wrote {messages.count()} messages")

# %% Read the queue; the messages stay in it
waiting = spark.read.format("servicebus").options(**QUEUE).load()
large = waiting.where("application_properties['price'] >= 1000").orderBy("sequence_number")
for row in large.select("message_id", F.col("body").cast("string")).collect():
    print(f"{row.message_id} is large: {row.body}")

# %% Move the messages into Parquet files, each exactly once
with tempfile.TemporaryDirectory() as folder:
    stream = (
        spark.readStream.format("servicebus")
        .options(**QUEUE, claimName="connector-example")
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)  # without it the stream runs until it is stopped
        .start(f"{folder}/orders")
    )
    stream.awaitTermination()
    taken = spark.read.parquet(f"{folder}/orders")
    total = taken.select(F.sum(F.get_json_object(F.col("body").cast("string"), "$.price").cast("int"))).first()[0]
    print(f"took {taken.count()} orders of {total:,} euros")

# %% The queue is empty
print(f"{waiting.count()} messages are left")
spark.stop()
