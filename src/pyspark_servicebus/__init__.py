"""What Spark looks for by itself: modules named `pyspark_…` that have a `DefaultSource`."""

from peeklock.spark.source import ServiceBusDataSource as DefaultSource

__all__ = ["DefaultSource"]
