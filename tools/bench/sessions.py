"""A local Spark for benchmarks: the session of the pipelines, with its data in the run's folder."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from peeklock.spark.session import local_session, missing
from tools.bench.interrupts import interrupts
from tools.bench.load import LoadFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[2]
_STOP_SECONDS: Final = 30.0


def check_spark() -> None:
    """Raise ValueError if a requirement of Spark is not installed."""
    lacking = missing()
    if lacking is not None:
        raise ValueError(lacking)


def start_spark(
    cores: int,
    folder: Path,
    started: ExitStack,
    *,
    settings: Mapping[str, str] | None = None,
    path: Sequence[Path] = (),
) -> SparkSession:
    """Start a session, which ends with `started`. `path` is first on the module path of Spark's Python workers."""
    # The module path of the workers, so that they find the data source without an installed Peeklock.
    places = [*map(str, (*path, ROOT / "src", ROOT)), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    ours = signal.getsignal(signal.SIGINT)
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)  # with the Spark setting instead, Spark logs a warning
    own = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    with interrupts.held():
        session = local_session("bench", cores, {**own, **(settings or {})})
        started.callback(_stop, session)
        signal.signal(signal.SIGINT, ours)  # Spark replaces it with its own
    return session


@contextmanager
def failures_in_short() -> Iterator[None]:
    """Replace Spark's long exceptions by LoadFailed with their beginning."""
    from peeklock.spark.pipelines.failures import SPARK_ERRORS

    try:
        yield
    except SPARK_ERRORS as failure:
        raise LoadFailed(f"Spark failed: {str(failure)[:2000]}") from None


def _stop(session: SparkSession) -> None:
    """Stop Spark and wait until the JVM has ended: it deletes its own folders in the run's folder."""
    gateway: Any = session.sparkContext._gateway
    with suppress(Exception):  # the JVM is ended below in any case
        session.stop()
    with suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    process.stdin.close()  # the JVM ends at the end of its input
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
