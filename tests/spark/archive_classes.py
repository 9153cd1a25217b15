"""Writes a file with Spark's classes as Java has them in memory, from which the Sparks of tests then start.

`python tests/spark/archive_classes.py FILE`. Most of what a Spark of a few seconds does is to load classes: with the
file, it takes three quarters of the CPU. Java passes over a file that is not of its version and of these libraries.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(_ROOT / "src"), str(_ROOT / "tests"), str(_ROOT)]
from peeklock.spark.session import local_session, missing  # noqa: E402
from toolchains import SHORT_LIVED_JAVA  # noqa: E402


def main(file: str) -> int:
    wanting = missing()
    if wanting is not None:
        print(f"Left out: an archive of Spark's classes; {wanting}", file=sys.stderr)
        return 0
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    made = f"{file}.new"
    # It would warn of every class that cannot be in it.
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(
        (*SHORT_LIVED_JAVA, f"-XX:ArchiveClassesAtExit={made}", "-Xlog:disable", "-Xlog:all=error:stderr")
    )
    with tempfile.TemporaryDirectory() as folder:
        _use(folder)
    Path(made).rename(file)
    return 0


def _use(folder: str) -> None:
    """What most tests do: files, aggregates, functions of Python, a stream."""
    from pyspark import SparkContext
    from pyspark.sql import functions as F

    spark = local_session("classes", cores=2)
    rows = spark.range(100).select(F.col("id"), (F.col("id") % 3).alias("kind"), F.current_timestamp().alias("at"))
    rows.write.partitionBy("kind").parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows").withColumn("text", F.udf(str, "string", useArrow=False)("id"))
    read.groupBy("kind").agg(F.count("*"), F.max("text"), F.collect_list("id")).orderBy("kind").collect()
    read.join(rows.groupBy("kind").count(), "kind").toArrow()
    stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows").writeStream.format("parquet")
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    stream.start(f"{folder}/streamed").awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    # Java writes when it ends, which it does when nobody is left to ask it.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
