"""An archive of Spark's loaded classes, with which a local Spark session starts faster.

A session that runs for seconds spends much of that time on loading classes. Java can map them from a file instead
(class data sharing). The file is about 190 MB and fits one version of Java and one of Spark. It is therefore made only
on request (`peeklock pipeline prepare`). Every local session of `session` uses it if it exists. Java checks that an
archive fits its version and these libraries, and ignores other archives.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

_PACKAGES: Final = Path(__file__).parents[2]
_QUIETLY: Final = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Without these options Java warns of every class that an archive cannot have, and of an archive that it ignores."""


def java_options() -> list[str]:
    """Return the options that make Java use the archive; none without an archive for this Java and this Spark."""
    file = archive()
    if file is None or not file.is_file() or _has_space(file):
        return []
    return [f"-XX:SharedArchiveFile={file}", *_QUIETLY]


def archive() -> Path | None:
    """Return the path of the archive for this Java and this Spark, whether or not it exists; None without a Java."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if program is None:
        return None
    java = Path(program).resolve()
    try:
        state = java.stat()
        spark = version("pyspark")
    except (OSError, PackageNotFoundError):
        return None
    what = f"{java} {state.st_size} {state.st_mtime_ns} {spark} {sys.prefix}"
    return _cache_folder() / f"spark-{spark}-{blake2b(what.encode(), digest_size=6).hexdigest()}.jsa"


def make_archive(file: Path, java_options: Sequence[str] = ()) -> None:
    """Write the archive, or replace it. Starts Spark in another process; takes up to a minute.

    `java_options` should be the Java options of the sessions that will use it.
    """
    if _has_space(file):
        raise OSError(f"the path of the archive must not contain spaces, but {file} does: set XDG_CACHE_HOME")
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        made = Path(folder, "classes.jsa")
        options = (*java_options, f"-XX:ArchiveClassesAtExit={made}", *_QUIETLY)
        path = os.pathsep.join(filter(None, (str(_PACKAGES), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path, "SPARK_SUBMIT_OPTS": " ".join(options)}
        command = [sys.executable, "-c", f"from {__name__} import _use; _use({folder!r})"]
        ended = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if ended.returncode or not made.is_file():
            lines = ended.stderr.decode(errors="replace").strip().splitlines()
            raise OSError(f"the archive of Spark's classes cannot be made: {lines[-1] if lines else 'Java wrote none'}")
        made.replace(file)


def _has_space(file: Path) -> bool:
    return any(each.isspace() for each in str(file))


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "peeklock"


def _use(folder: str) -> None:
    """Load the classes that pipelines use: files, aggregates, windows, Python functions, Arrow, a stream."""
    from pyspark import SparkContext
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    from peeklock.spark.session import local_session

    spark = local_session("classes", cores=2)
    rows = spark.range(100).select(
        F.col("id"),
        (F.col("id") % 3).alias("kind"),
        F.current_timestamp().alias("at"),
        F.create_map(F.lit("name"), F.col("id").cast("string")).alias("properties"),
        F.col("id").cast("string").cast("binary").alias("body"),
    )
    rows.write.partitionBy("kind").parquet(f"{folder}/rows")
    read = spark.read.parquet(f"{folder}/rows").withColumn("text", F.udf(str, "string", useArrow=False)("id")).persist()
    counted = read.groupBy("kind").agg(
        F.count("*"),
        F.max("text"),
        F.collect_list("id"),
        F.count_distinct("text"),
        F.percentile_approx("id", 0.5),
        F.median("id"),
    )
    counted.orderBy("kind").collect()
    newest = Window.partitionBy("kind").orderBy(F.desc("id"))
    numbered = read.withColumn("rank", F.row_number().over(newest)).where("rank <= 2").orderBy("kind")
    table = numbered.select("kind", "rank", F.xxhash64("body"), F.window("at", "1 minute").getField("start")).toArrow()
    read.join(F.broadcast(rows.groupBy("kind").count()), "kind").toArrow()
    members = F.map_entries(F.from_json(F.lit('{"a": "b"}'), "map<string,string>"))
    facts = read.select("kind", F.explode(F.concat(F.map_entries("properties"), members)).alias("fact"))
    facts.join(spark.createDataFrame(table).select("kind"), "kind", "left_semi").unionByName(facts).collect()
    stream = spark.readStream.schema(rows.schema).parquet(f"{folder}/rows").writeStream
    stream = stream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)

    def keep(batch: object, _: int) -> None:
        batch.write.partitionBy("kind").mode("overwrite").parquet(f"{folder}/streamed")  # type: ignore[attr-defined]

    stream.foreachBatch(keep).start().awaitTermination()
    gateway = SparkContext._gateway
    assert gateway is not None
    spark.stop()
    # Java writes the archive when it ends, and it ends when no Python process is connected.
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
