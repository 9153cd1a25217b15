"""Shared code of the `peeklock pipeline` commands: options for Spark, the Spark session, and error messages."""

from __future__ import annotations

import logging
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from peeklock.cli.connecting import error_text, exit_code, messaging
from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import note, printable
from peeklock.cli.signals import stopping_signals
from peeklock.cli.values import moment, pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from peeklock.spark.options import Use

T = TypeVar("T")
Cores = Annotated[str, typer.Option("--cores", help="How many cores Spark uses on this machine; * for all cores.")]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A Spark setting as name=value; spark.master=… runs Spark on a cluster. Repeatable."),
]

SourceOptions = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the data source as name=value. Repeatable.")
]
_SET_BY_COMMANDS = (
    "connectionString",
    "caFile",
    "queue",
    "topic",
    "subscription",
    "subQueue",
    "mode",
    "applicationProperties",
)
"""Options of the data source that the commands set from their own arguments."""

_LAST_OF_TRACEBACK = re.compile(
    r"^(?:: )?(?:\w+\.)*(?:\w*(?:Error|Exception|Failed|Lost|Closed|Refused|Rejected)): ?(.+)$"
)
_SQLSTATE = re.compile(r"\.? SQLSTATE: \w+.*$")
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")


@contextmanager
def spark_session(
    app_name: str,
    cores: str,
    settings: list[str] | None,
    prepare: Callable[[], T],
    *,
    quiet: bool = False,
    format: str = "parquet",
) -> Iterator[tuple[SparkSession, T]]:
    """Start a Spark session, or use the one that is running, and stop it at the end if it was started here.

    Calls `prepare` before the start, after the arguments were checked, and yields its result with the session. A true
    result means little work, and makes the session a small one. A session started here has the packages for `format`,
    one of `FORMATS`. The start takes seconds, so a note announces it unless `quiet`. Errors in the block end the
    command with a message.
    """
    from peeklock.spark.session import local_session, missing, submitted

    if cores != "*" and (not cores.isdigit() or int(cores) < 1):
        fail(f"--cores: '{cores}' must be * or a number of 1 or more")
    chosen = pairs(settings or (), "--conf")
    requirement = missing()
    if requirement is not None:
        fail(requirement)
    packages = "" if submitted() or _is_running() else _add_format(format, chosen)
    with _errors_to_messages():
        prepared = prepare()
    if not quiet and not submitted() and not _is_running():
        note(f"starting Spark with {packages} …" if packages else "starting Spark …")
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger

    from peeklock.spark.pipelines.failures import SPARK_ERRORS

    # This logger would print each error in a user's SQL as a page of JSON before our error message.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    is_started_here = SparkContext._active_spark_context is None
    try:
        # A signal during the start is handled after it: otherwise the Java process would keep running.
        with _signals() as stopping:
            spark = local_session(app_name, cores, chosen, small=bool(prepared))
    except SPARK_ERRORS as error:
        if packages:
            fail(
                f"Spark cannot be started with {packages}: check that Maven Central is reachable, or give local jars "
                "with --conf spark.jars=…",
                Exit.FAILED,
            )
        fail(f"Spark cannot be started: {error_summary(error)}", Exit.FAILED)
    try:
        if stopping.is_set():
            raise typer.Exit(Exit.INTERRUPTED)
        with _errors_to_messages():
            try:
                yield spark, prepared
            except SPARK_ERRORS as error:
                fail(error_summary(error), Exit.FAILED)
    finally:
        if is_started_here:
            spark.stop()


def _add_format(format: str, chosen: dict[str, str]) -> str:
    """Add the Spark settings that a format requires, and return the packages that Spark will download for it."""
    from peeklock.spark.pipelines.table_formats import BUILDS, NoBuild, settings_of

    if format not in BUILDS:
        return ""  # without importing Spark, which takes a second
    import pyspark

    try:
        settings = settings_of(format, pyspark.__version__, chosen)
    except NoBuild as error:
        fail(str(error))
    chosen |= settings
    return settings.get("spark.jars.packages", "")


@contextmanager
def _errors_to_messages() -> Iterator[None]:
    """End the command with a message for errors of the client and the data source. Spark's own are for the caller."""
    from peeklock.client import ClientError
    from peeklock.spark.reach import SourceFailed

    try:
        yield
    except ClientError as error:
        fail(error_text(error), exit_code(error))
    except SourceFailed as error:
        fail(printable(str(error)), Exit.FAILED)
    except BrokenPipeError:  # the reader of the output closed the pipe; `main` handles it
        raise
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except ValueError as error:  # raised by the pipelines for invalid arguments
        fail(str(error))


def _is_running() -> bool:
    """Whether a Spark session exists, without importing Spark, which takes a second."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def connector_options(
    connection_string: str, ca_file: Path | None, given: list[str] | None, use: Use
) -> dict[str, str]:
    """The data source options for the connection and from --option, checked for their use."""
    from peeklock.spark.options import OptionError, Options

    more = pairs(given or (), "--option")
    for name in _SET_BY_COMMANDS:
        if name.lower() in map(str.lower, more):
            fail(f"--option: '{name}' cannot be given; the command sets it from its arguments")
    authority = {} if ca_file is None else {"caFile": str(ca_file.absolute())}
    options = {"connectionString": connection_string, **authority, **more}
    try:
        Options.parse({**options, "queue": "any"}, use=use)
    except OptionError as error:
        fail(str(error))
    return options


def check_access(
    connection_string: str, ca_file: Path | None, read: Iterable[str] = (), written: Iterable[str] = ()
) -> None:
    """Fail at once if an entity cannot be reached, read or written to; Spark's tasks would retry for a long time."""
    with messaging(connection_string, ca_file) as connection:
        for address in read:
            with connection.management(address) as management:
                management.peek(1, 1)
        for address in written:
            connection.sender(address).close()


def point(text: str | None, option: str) -> datetime | None:
    """Parse the value of --from or --to."""
    return None if text is None else datetime.fromtimestamp(moment(text, option, int(time.time() * 1000)) / 1000, UTC)


@contextmanager
def users_condition() -> Iterator[None]:
    """Report Spark's analysis errors in the block as errors of --where."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        fail(f"--where: {error_summary(error)}")


def error_summary(error: Exception) -> str:
    """One line of a Spark error: the last error of a Python traceback in it, or else the first line of Java's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [match[1] for line in lines if (match := _LAST_OF_TRACEBACK.match(line))]
    line = raised[-1] if raised else (lines[0] if lines else type(error).__name__)
    return printable(_SQLSTATE.sub("", _ERROR_CLASS.sub("", line)))


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; a second one raises KeyboardInterrupt.

    The pipeline ends in good order when the event is set, and the command then exits as interrupted. Use it after the
    session was started: Spark installs signal handlers of its own, which print long tracebacks.
    """
    with _signals() as stopping:
        yield stopping
    if stopping.is_set():
        raise typer.Exit(Exit.INTERRUPTED)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Yield an event that the first stopping signal sets; the second signal raises KeyboardInterrupt."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            logging.disable()  # threads that wait for Spark would log long tracebacks
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in stopping_signals()}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
