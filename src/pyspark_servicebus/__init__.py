"""Lets Spark find the data source: it searches modules named `pyspark_…` for a `DefaultSource`."""

from peeklock.spark.source import ServiceBusDataSource as DefaultSource

__all__ = ["DefaultSource"]
