"""A Spark on this machine for a benchmark: the session that the pipelines use, with its data in the run's folder."""

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
    """ValueError when something that Spark needs is not installed."""
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
    """Ended with `started`. `path` comes first where Spark's Python workers look for modules."""
    # Workers find the data source by these, also where Peeklock is not installed.
    places = [*map(str, (*path, ROOT / "src", ROOT)), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    ours = signal.getsignal(signal.SIGINT)
    os.environ["SPARK_LOCAL_DIRS"] = str(folder)  # the setting of that meaning makes Spark warn of this one
    own = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    with interrupts.held():
        session = local_session("bench", cores, {**own, **(settings or {})})
        started.callback(_stop, session)
        signal.signal(signal.SIGINT, ours)  # Spark puts its own in place of it
    return session


@contextmanager
def failures_in_short() -> Iterator[None]:
    """What Spark says of a failure is pages long; LoadFailed with the start of it instead."""
    from peeklock.spark.pipelines.failures import SPARK_ERRORS

    try:
        yield
    except SPARK_ERRORS as failure:
        raise LoadFailed(f"Spark failed: {str(failure)[:2000]}") from None


def _stop(session: SparkSession) -> None:
    """Returns when the JVM has ended too: it removes folders of its own in the one that is removed next."""
    gateway: Any = session.sparkContext._gateway
    with suppress(Exception):  # what follows ends it as well
        session.stop()
    with suppress(Exception):
        gateway.shutdown()
    process: subprocess.Popen[bytes] = gateway.proc
    assert process.stdin is not None
    process.stdin.close()  # the JVM ends when nobody can write to it any more
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
