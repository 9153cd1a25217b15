"""Captured rows: their columns, and messages as such rows."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, MapType, StringType, StructField, StructType, TimestampType

from peeklock.spark.rows import SCHEMA as MESSAGES

SCHEMA_VERSION: Final = 1
"""Of the rows below; every row has it. A version is never changed, a column more is a new one."""
PARTITIONS: Final = ("entity", "date", "hour")
_TEXTS = MapType(StringType(), StringType())
_PARTITION_FIELDS: Final = [
    StructField("entity", StringType()),
    StructField("date", DateType()),
    StructField("hour", IntegerType()),
]
IN_FILES: Final = StructType(
    [
        *(field for field in MESSAGES.fields if field.name != "entity"),
        StructField("typed_properties", _TEXTS),
        StructField("captured_at", TimestampType()),
        StructField("schema_version", IntegerType()),
    ]
)
"""The columns in a file; the others are in its path."""
SCHEMA: Final = StructType([*IN_FILES.fields, *_PARTITION_FIELDS])

_TEXT_OPENS: Final = '{"string":"'
_TEXT_CLOSES: Final = '"}'
_UTC: Final = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'"}


def captured(messages: DataFrame) -> DataFrame:
    """The rows that are kept, of messages whose application properties were read with their types (as JSON).

    The properties are plain text again, as anyone wants to ask for them, and `typed_properties` has those that are no
    text, with their types, so that nothing is lost.
    """
    typed = F.col("application_properties")
    seconds = F.unix_seconds(F.coalesce("enqueued_time", F.current_timestamp()))
    made = {
        "application_properties": F.transform_values(typed, lambda _, value: _plain(value)),
        "typed_properties": F.map_filter(typed, lambda _, value: ~_is_text(value)),
        "captured_at": F.current_timestamp(),
        "schema_version": F.lit(SCHEMA_VERSION),
        # By arithmetic: what a date is must not depend on the time zone of the session.
        "date": F.date_add(F.lit("1970-01-01").cast("date"), F.floor(seconds / 86400).cast("int")),
        "hour": F.pmod(F.floor(seconds / 3600), F.lit(24)).cast("int"),
    }
    # All at once: each step of its own would be analysed anew, with every micro-batch.
    return messages.select(*(made[name].alias(name) if name in made else F.col(name) for name in SCHEMA.fieldNames()))


def _is_text(value: Column) -> Column:
    return value.startswith(_TEXT_OPENS)


def _plain(value: Column) -> Column:
    """A typed value as the text that the data source has for it without types."""
    moment = F.timestamp_millis(F.get_json_object(value, "$.timestamp").cast("long"))
    length = F.length(value) - (len(_TEXT_OPENS) + len(_TEXT_CLOSES))
    return (
        # Most values are text without escapes: parsing those as JSON would cost more than all else in a row.
        F.when(_is_text(value) & ~value.contains("\\"), F.substring(value, F.lit(len(_TEXT_OPENS) + 1), length))
        .when(_is_text(value), F.get_json_object(value, "$.string"))
        .when(value.startswith('{"timestamp":'), F.get_json_object(F.to_json(F.struct(moment.alias("m")), _UTC), "$.m"))
        .otherwise(F.element_at(F.map_values(F.from_json(value, _TEXTS)), 1))
    )
