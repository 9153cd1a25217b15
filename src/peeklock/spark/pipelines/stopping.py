"""Cancel running Spark jobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from peeklock.spark.pipelines.failures import SPARK_ERRORS
from peeklock.spark.session import is_connect

_POLL_S: Final = 0.2


@contextmanager
def cancelled_by(stop: threading.Event, spark: SparkSession) -> Iterator[None]:
    """Cancel the Spark jobs in the block when `stop` is set, and ignore the errors that result from that."""
    done = threading.Event()
    cancel: Callable[[], object] = spark.interruptAll if is_connect(spark) else spark.sparkContext.cancelAllJobs

    def watch() -> None:
        while not done.wait(_POLL_S):
            if stop.is_set():  # repeated, as a job may start after the first cancellation
                cancel()

    watcher = threading.Thread(target=watch, name="cancelling", daemon=True)
    watcher.start()
    try:
        yield
    except SPARK_ERRORS:
        if not stop.is_set():
            raise
    finally:
        done.set()
        watcher.join()
