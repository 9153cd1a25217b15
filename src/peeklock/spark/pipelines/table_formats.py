"""Delta and Iceberg: the builds for each version of Spark, and the Spark settings that they require.

Both formats write each batch of a stream once. Delta stores the query's id and the batch's number in a transaction,
Iceberg in the summary of a snapshot. A build is for one series of Spark, and comes from Maven Central.
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
"""Published builds by format and series of Spark. `make test-table-formats` tests the newest of each format."""
_ARTIFACTS: Final = {"delta": "delta-spark", "iceberg": "iceberg-spark-runtime"}
_EXTENSIONS: Final = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_DELTA_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # The tasks that read the table's log after each commit. Delta's default, 50, is for tables of millions of files.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_ICEBERG_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
WRITER_OPTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    # Iceberg would shuffle and sort rows by partition. Batches are from few hours and do not need that.
    "iceberg": {"distribution-mode": "none", "fanout-enabled": "true"},
}
"""The options of a stream into a format."""


class NoBuild(ValueError):
    """A format has no build for this version of Spark."""


def build_of(format: str, spark_version: str) -> str:
    """The Maven coordinates of the build for a version of Spark. Raises NoBuild if there is none."""
    series = ".".join(spark_version.split(".")[:2])
    builds = BUILDS[format]
    if series not in builds:
        known = ", ".join(builds)
        raise NoBuild(
            f"there is no known build of {format} for Spark {series}, only for {known}: install an older PySpark "
            f"(pip install 'pyspark=={max(builds)}.*'), or give a build with --conf spark.jars.packages=…"
        )
    return builds[series]


def settings_of(format: str, spark_version: str, given: Mapping[str, str]) -> dict[str, str]:
    """The settings that a session requires for a format, except given ones. Raises NoBuild if there is no build."""
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
    """The name of the Iceberg table in a folder, under which Spark can create, write and read it.

    Iceberg writes streams only to tables of a catalog. This makes the parent folder a catalog of the session.
    """
    parent, _, name = place.rstrip("/").rpartition("/")
    catalog = f"peeklock_{blake2b(parent.encode(), digest_size=4).hexdigest()}"
    setting = f"spark.sql.catalog.{catalog}"
    spark.conf.set(setting, _ICEBERG_CATALOG)
    spark.conf.set(f"{setting}.type", "hadoop")
    spark.conf.set(f"{setting}.warehouse", parent)
    spark.conf.set(f"{setting}.cache-enabled", "false")  # other programs may write to it
    return f"{catalog}.`{name}`"
