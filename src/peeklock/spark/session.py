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

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA: Final = 17
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


def use_this_python() -> None:
    """Let Spark run the Python of this program. Call it before the first session is started.

    Spark's Java looks for data sources and runs tasks with the `python3` of the path, unless PYSPARK_PYTHON names
    another Python when it starts. In an environment that is not activated, `python3` does not know this package. A
    variable that is set, and the choice of `spark-submit`, stay in force.
    """
    if not submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def local_session(app_name: str, cores: str | int = "*", settings: Mapping[str, str] | None = None) -> SparkSession:
    """The session of `spark-submit` or of this process if there is one; otherwise a Spark on this machine.

    `settings` are Spark's own and come last. A master among them (`spark.master`) makes it that cluster's session.
    """
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    asked = dict(settings or {})
    builder: SparkSession.Builder = SparkSession.builder.appName(app_name)
    use_this_python()
    if not submitted():
        asked = {"spark.master": f"local[{cores}]", **LOCAL_SETTINGS, **asked}
    for name, value in {**SETTINGS, **asked}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


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
