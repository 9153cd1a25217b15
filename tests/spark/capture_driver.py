"""A driver for tests: captures a queue on a cluster until its input ends, or until it is killed."""

from __future__ import annotations

import sys
import threading

import pyspark
from clusters import SETTINGS

from peeklock.spark.pipelines.capture import Target, capture
from peeklock.spark.pipelines.table_formats import Format, settings_of
from peeklock.spark.session import local_session


def main(connection_string: str, queue: str, folder: str, protocol: str, format: Format) -> None:
    spark = local_session("capture", settings={**SETTINGS, **settings_of(format, pyspark.__version__, SETTINGS)})
    stopping = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stopping.set()

    threading.Thread(target=listen, daemon=True).start()
    print("started", flush=True)
    options = {
        "connectionString": connection_string,
        "claimProtocol": protocol,
        "maxMessagesPerTrigger": "1000",
        "numPartitions": "2",
        "maxWait": "50ms",
        "pollInterval": "50ms",
    }
    capture(spark, [queue], options, Target(folder=folder, format=format, compact_every_s=5), stopping=stopping)


if __name__ == "__main__":
    main(*sys.argv[1:])  # type: ignore[arg-type]  # the last is a format
