"""Errors that Spark raises, in the driver's Python or its Java."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (Py4JError, PySparkException)


def java_class(error: Exception) -> str:
    """The class name of the Java exception behind an error; empty if there is none."""
    return str(error.java_exception.getClass().getName()) if isinstance(error, Py4JJavaError) else ""
