"""A Spark for pipelines: what it needs on the machine, and a session on it.

Knows how a local Spark is started so that it is quiet and sensible for one machine. Under `spark-submit`, and where a
session is there already (a notebook), that one is used as it is. Nothing of Spark is imported before `missing` had its
say.
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
    # Hours of micro-batches: what the driver remembers of each must not add up.
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.ui.retainedExecutions": "20",
}
"""For a Spark in this process; a cluster has its own."""
SMALL_SETTINGS: Final[Mapping[str, str]] = {
    # Each table of a report would be five jobs, and each job is planned, compiled and waited for.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
"""For a Spark in this process while it works on few messages: one task after the other, without a look in between."""
SMALL_JAVA: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""For a Java that lives for seconds: to compile its code well, and to collect beside it, takes longer than it saves."""
SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
"""For every session that is made here."""


def missing() -> str | None:
    """What has to be installed before a pipeline can run, in a sentence; None when all is there."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "pipelines need PySpark and PyArrow: install them with `pip install 'peeklock[spark]'`"
    if submitted():
        return None
    return _missing_java()


def submitted() -> bool:
    """Whether `spark-submit` started this program and so knows where Spark runs."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of Spark Connect: then Spark's driver is another program, perhaps elsewhere."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def use_this_python() -> None:
    """Let Spark run the Python of this program. Call it before the first session is started.

    Spark's Java looks for data sources and runs tasks with the `python3` of the path, unless PYSPARK_PYTHON names
    another Python when it starts. In an environment that is not activated, `python3` does not know this package. A
    variable that is set, and the choice of `spark-submit`, stay in force.
    """
    if not submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def local_session(
    app_name: str, cores: str | int = "*", settings: Mapping[str, str] | None = None, *, small: bool = False
) -> SparkSession:
    """The session of `spark-submit` or of this process if there is one; otherwise a Spark on this machine.

    `settings` are Spark's own and come last. A master among them (`spark.master`) makes it that cluster's session.
    `small` says that it is for some thousand messages: a Spark on this machine that is started here is set for that.
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
    """What a session is started with; those for small data only where its tasks run on this machine."""
    if submitted():
        return {**SETTINGS, **settings}
    own = {"spark.master": f"local[{cores}]", **LOCAL_SETTINGS}
    if settings.get("spark.master", "local").startswith("local"):
        own |= SMALL_SETTINGS if small else {}
        own["spark.driver.extraJavaOptions"] += "".join(f" {option}" for option in java_options(small))
    return {**SETTINGS, **own, **settings}


def _running() -> SparkSession | None:
    """The session of this process, whichever thread started it."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def java_options(small: bool = False) -> list[str]:
    """How a Java on this machine is started; nothing when the user has chosen options of the kind.

    Two collectors or two archives at once would keep Java from starting.
    """
    if any("-XX:" in os.environ.get(name, "") for name in _JAVA_VARIABLES):
        return []
    return [*(SMALL_JAVA if small else ()), *classes.java_options()]


def _missing_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if program is None:
        where = f"JAVA_HOME ({home}) has none" if home else "there is none on the path"
        return f"pipelines need Java {LEAST_JAVA} or newer, and {where}: install a JDK or JRE, such as openjdk-17-jre"
    told = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = _VERSION.search(told)
    if version is not None and int(version[1]) < LEAST_JAVA:
        return f"pipelines need Java {LEAST_JAVA} or newer, and {program} is version {version[1]}: install a newer one"
    return None
