"""A driver for tests: streams a queue into Spark's own file sink until its input ends, or until it is killed."""

from __future__ import annotations

import sys
import threading

from clusters import SETTINGS

from peeklock.spark.session import local_session


def main(connection_string: str, queue: str, folder: str, protocol: str) -> None:
    spark = local_session("sink", settings=SETTINGS)
    print("started", flush=True)
    messages = spark.readStream.format("servicebus").options(
        connectionString=connection_string,
        queue=queue,
        claimProtocol=protocol,
        maxMessagesPerTrigger="1000",
        numPartitions="2",
        maxWait="50ms",
        pollInterval="50ms",
    )
    sink = messages.load().writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = sink.start(f"{folder}/messages")

    def listen() -> None:
        sys.stdin.read()
        query.stop()

    threading.Thread(target=listen, daemon=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
