"""Captured rows: their columns, and the conversion of messages to rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, StringType, StructField, StructType

from peeklock.spark.rows import CAPTURED_AT, TYPED_PROPERTIES
from peeklock.spark.rows import SCHEMA as MESSAGES

SCHEMA_VERSION: Final = 1
"""The version of the columns, which every row has. A further column is a new version."""
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
        CAPTURED_AT,
        StructField("schema_version", IntegerType()),
    ]
)
"""The columns in a file. The partition columns are in its path."""
SCHEMA: Final = StructType([*IN_FILES.fields, *_PARTITION_FIELDS])
SOURCE: Final = StructType([*MESSAGES.fields, TYPED_PROPERTIES, CAPTURED_AT])
"""The columns that a capture reads.

`typed_properties` has the application properties that are not text, with their types. The data source makes it, since
Spark's functions on maps would take 8 us per message for it. The data source also makes `captured_at`: Spark's
`current_timestamp` is a constant in the code that Spark generates, so each micro-batch would have new code, which Java
has to compile and to optimise again.
"""


def captured(messages: DataFrame) -> DataFrame:
    """Convert messages, read with the columns of `SOURCE`, to captured rows."""
    seconds = F.unix_seconds(F.coalesce("enqueued_time", "captured_at"))
    made = {
        "schema_version": F.lit(SCHEMA_VERSION),
        # By arithmetic: the date must not depend on the time zone of the session.
        "date": F.date_add(F.lit("1970-01-01").cast("date"), F.floor(seconds / 86400).cast("int")),
        "hour": F.pmod(F.floor(seconds / 3600), F.lit(24)).cast("int"),
    }
    # In one step: Spark analyses each step again with every micro-batch.
    return messages.select(*(made[name].alias(name) if name in made else F.col(name) for name in SCHEMA.fieldNames()))
