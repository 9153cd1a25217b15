"""Captured rows: their columns, and messages as such rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType, TimestampType

from peeklock.spark.rows import SCHEMA as MESSAGES
from peeklock.spark.rows import TYPED_PROPERTIES

SCHEMA_VERSION: Final = 1
"""Of the rows below; every row has it. A version is never changed, a column more is a new one."""
PARTITIONS: Final = ("entity", "date", "hour")
_PARTITION_FIELDS: Final = [
    StructField("entity", StringType()),
    StructField("date", DateType()),
    StructField("hour", IntegerType()),
]
IN_FILES: Final = StructType(
    [
        *(field for field in MESSAGES.fields if field.name != "entity"),
        TYPED_PROPERTIES,
        StructField("captured_at", TimestampType()),
        StructField("schema_version", IntegerType()),
    ]
)
"""The columns in a file; the others are in its path."""
SCHEMA: Final = StructType([*IN_FILES.fields, *_PARTITION_FIELDS])
SOURCE: Final = StructType([*MESSAGES.fields, TYPED_PROPERTIES])
"""The columns that a capture reads. The data source makes `typed_properties`, since Spark's functions on maps would
take 8 us a message for it."""


def captured(messages: DataFrame) -> DataFrame:
    """The rows that are kept, of messages that were read with the columns of `SOURCE`."""
    seconds = F.unix_seconds(F.coalesce("enqueued_time", F.current_timestamp()))
    made = {
        "captured_at": F.current_timestamp(),
        "schema_version": F.lit(SCHEMA_VERSION),
        # By arithmetic: what a date is must not depend on the time zone of the session.
        "date": F.date_add(F.lit("1970-01-01").cast("date"), F.floor(seconds / 86400).cast("int")),
        "hour": F.pmod(F.floor(seconds / 3600), F.lit(24)).cast("int"),
    }
    # All at once: each step of its own would be analysed anew, with every micro-batch.
    return messages.select(*(made[name].alias(name) if name in made else F.col(name) for name in SCHEMA.fieldNames()))
