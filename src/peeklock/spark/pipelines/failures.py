"""What Spark raises when something went wrong, in the driver's Python or behind it."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (Py4JError, PySparkException)


def java_class(error: Exception) -> str:
    """The name of the class of what was thrown in Java; empty when that is not where it comes from."""
    return str(error.java_exception.getClass().getName()) if isinstance(error, Py4JJavaError) else ""
