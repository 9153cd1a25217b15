"""Delta and Iceberg: which of their builds fits which Spark, and what Spark has to be told to use them.

Both keep each batch of a stream once by themselves: Delta by a transaction with the query's id and the batch's number,
Iceberg by those two in the summary of a snapshot. Builds are for one series of Spark, and come from Maven Central.
Knows nothing of captured rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Format = Literal["parquet", "delta", "iceberg"]
FORMATS: Final[tuple[Format, ...]] = ("parquet", "delta", "iceberg")

BUILDS: Final[Mapping[str, Mapping[str, str]]] = {
    "delta": {
        "4.0": "io.delta:delta-spark_4.0_2.13:4.4.0",
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    "iceberg": {
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    },
}
"""By series of Spark, as published. `make test-table-formats` runs the newest of each format."""
_ARTIFACTS: Final = {"delta": "delta-spark", "iceberg": "iceberg-spark-runtime"}
_EXTENSIONS: Final = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Tasks that read the table's log after each commit. Delta's default, 50, is for tables of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_ICEBERG_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
WRITER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    # Rows stay in their task: Iceberg would shuffle and sort them by partition, which batches of few hours do not need.
    "iceberg": {"distribution-mode": "none", "fanout-enabled": "true"},
}
"""For streams into a format."""


class NoBuild(ValueError):
    """A format has no build for this Spark."""


def build_of(format: str, spark_version: str) -> str:
    """The Maven coordinates of the build that fits; NoBuild when none is published."""
    series = ".".join(spark_version.split(".")[:2])
    builds = BUILDS[format]
    if series not in builds:
        known = ", ".join(builds)
        raise NoBuild(
            f"{format} has no known build for Spark {series}, only for {known}: install an older PySpark "
            f"(pip install 'pyspark=={max(builds)}.*'), or name a build that fits by --conf spark.jars.packages=…"
        )
    return builds[series]


def settings_of(format: str, spark_version: str, given: Mapping[str, str]) -> dict[str, str]:
    """The settings with which a session has the format, without those that are given; NoBuild when there is none."""
    if format not in BUILDS:
        return {}
    settings: dict[str, str] = {}
    if not any(_ARTIFACTS[format] in given.get(name, "") for name in ("spark.jars.packages", "spark.jars")):
        packages = given.get("spark.jars.packages")
        build = build_of(format, spark_version)
        settings["spark.jars.packages"] = build if packages is None else f"{packages},{build}"
    extensions = given.get("spark.sql.extensions", "")
    if _EXTENSIONS[format] not in extensions:
        settings["spark.sql.extensions"] = ",".join(filter(None, (extensions, _EXTENSIONS[format])))
    if format == "delta":
        settings |= {name: value for name, value in _DELTA_SETTINGS.items() if name not in given}
    return settings


def iceberg_table(spark: SparkSession, place: str) -> str:
    """The name under which Spark can create, write and read the table in a folder.

    Iceberg streams into tables of a catalog only. So the folder above becomes one, in this session.
    """
    parent, _, name = place.rstrip("/").rpartition("/")
    catalog = f"peeklock_{blake2b(parent.encode(), digest_size=4).hexdigest()}"
    setting = f"spark.sql.catalog.{catalog}"
    spark.conf.set(setting, _ICEBERG_CATALOG)
    spark.conf.set(f"{setting}.type", "hadoop")
    spark.conf.set(f"{setting}.warehouse", parent)
    spark.conf.set(f"{setting}.cache-enabled", "false")  # other programs may write to it
    return f"{catalog}.`{name}`"
