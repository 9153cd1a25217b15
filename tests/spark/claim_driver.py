"""A driver for tests: a claiming stream into Parquet until it is killed, or with `once` until all is taken."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(connection_string: str, queue: str, folder: str, most: str, once: str = "") -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.driver.memory", "1g").config("spark.local.dir", f"{folder}/local").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    messages = (
        spark.readStream.format("servicebus")
        .option("connectionString", connection_string)
        .option("queue", queue)
        .option("maxMessagesPerTrigger", most)
        .option("maxWait", "20ms")
        .option("pollInterval", "20ms")
        .option("numPartitions", "2")
        .load()
    )
    writer = messages.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = (writer.trigger(availableNow=True) if once else writer).start(f"{folder}/target")
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
