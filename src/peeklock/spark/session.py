"""Spark sessions for pipelines: check the requirements, and start a session.

A session that is started here has settings for one machine and logs little. Under `spark-submit`, and if a session
exists (in a notebook), that session is used unchanged. Spark is imported only after `missing` has checked that it is
installed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peeklock.spark import classes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA: Final = 17
_JAVA_VARIABLES: Final = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
_LOGGING: Final = Path(__file__).with_name("log4j2.properties")
_VERSION: Final = re.compile(r'version "(\d+)')

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    # A stream runs for long: limit what the driver stores for each micro-batch.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.ui.retainedExecutions": "20",
}
"""Settings for a local session; a cluster has its own."""
SMALL_SETTINGS: Final[Mapping[str, str]] = {
    # Otherwise each table of a report is five jobs, and each job is planned and compiled.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
"""Settings for a local session with few messages: one task at a time, without adaptive execution."""
SMALL_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options for a Java process that runs for seconds, in which optimised compilation and parallel collection cost more
than they save."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""Settings for every session that is started here."""


def missing() -> str | None:
    """Return what must be installed before a pipeline can run, as an error message; None if nothing is missing."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "pipelines require PySpark and PyArrow: install them with `pip install 'peeklock[spark]'`"
    if submitted():
        return None
    return _missing_java()


def submitted() -> bool:
    """Whether `spark-submit` started this program, and selects where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect. Spark's driver is then another process, maybe elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def default_tasks(spark: SparkSession) -> int:
    """How many tasks keep all cores of Spark busy."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    # A client of Spark Connect has no context. Spark divides a range into that many partitions.
    from pyspark.sql import functions as F

    found: int = spark.range(1 << 20).select(F.spark_partition_id()).distinct().count()
    return found


def use_this_python() -> None:
    """Make Spark use the Python of this program. Call it before the first session is started.

    Spark's Java looks for data sources and runs tasks with the `python3` of the path, unless PYSPARK_PYTHON names
    another Python when it starts. In an environment that is not activated, that `python3` cannot import this package.
    A variable that is set, and the Python of `spark-submit`, take precedence.
    """
    if not submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def local_session(
    app_name: str, cores: str | int = "*", settings: Mapping[str, str] | None = None, *, small: bool = False
) -> SparkSession:
    """Return the session of `spark-submit` or of this process, or start one on this machine.

    `settings` are Spark settings, which override the ones of this module; `spark.master` starts the session on a
    cluster. `small` tunes a session on this machine for some thousand messages.
    """
    from pyspark.sql import SparkSession

    running = _running()
    if running is not None:
        return running
    builder: SparkSession.Builder = SparkSession.builder.appName(app_name)
    use_this_python()
    for name, value in session_settings(cores, settings or {}, small=small).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session_settings(cores: str | int, settings: Mapping[str, str], *, small: bool = False) -> dict[str, str]:
    """Return the settings of a new session. The settings for small data apply only to tasks on this machine."""
    if submitted():
        return {**SETTINGS, **settings}
    own = {"spark.master": f"local[{cores}]", **LOCAL_SETTINGS}
    if settings.get("spark.master", "local").startswith("local"):
        own |= SMALL_SETTINGS if small else {}
        own["spark.driver.extraJavaOptions"] += "".join(f" {option}" for option in java_options(small))
    return {**SETTINGS, **own, **settings}


def _running() -> SparkSession | None:
    """Return the session of this process, from any thread; None without one."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def java_options(small: bool = False) -> list[str]:
    """Return the options for Java on this machine; none if the user has set such options.

    Java does not start with two garbage collectors or two archives.
    """
    if any("-XX:" in os.environ.get(name, "") for name in _JAVA_VARIABLES):
        return []
    return [*(SMALL_JAVA if small else ()), *classes.java_options()]


def _missing_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if program is None:
        problem = f"JAVA_HOME ({home}) has none" if home else "there is none on the path"
        return (
            f"pipelines require Java {LEAST_JAVA} or newer, and {problem}: install a JDK or JRE, such as openjdk-17-jre"
        )
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = _VERSION.search(output)
    if version is not None and int(version[1]) < LEAST_JAVA:
        return (
            f"pipelines require Java {LEAST_JAVA} or newer, and {program} is version {version[1]}: install a newer one"
        )
    return None
