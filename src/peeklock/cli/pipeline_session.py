"""What the commands of `peeklock pipeline` share: the options for Spark, a session, and its failures as sentences."""

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

from peeklock.cli.connecting import exit_code, messaging, sentence
from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import note, printable
from peeklock.cli.signals import stopping_signals
from peeklock.cli.values import moment, pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from peeklock.spark.options import Use

T = TypeVar("T")
Cores = Annotated[str, typer.Option("--cores", help="How many cores Spark uses on this machine; * for all.")]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A setting of Spark, as name=value; spark.master=… runs it on a cluster. Repeatable."),
]

SourceOptions = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the data source, as name=value. Repeatable.")
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
"""Options of the data source that follow from the other arguments."""

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
    first: Callable[[], T],
    *,
    quiet: bool = False,
    format: str = "parquet",
) -> Iterator[tuple[SparkSession, T]]:
    """A Spark to work with. What goes wrong while it is used ends the command with a sentence.

    `first` is called before it is started, when there is nothing against that. What it returns is given back, and is
    true when there is little to do. A Spark that is started here has what `format` needs, one of `FORMATS`. A Spark
    that runs already is left running. Says that one is started, since that takes seconds, unless it is to be quiet.
    """
    from peeklock.spark.session import local_session, missing, submitted

    if cores != "*" and (not cores.isdigit() or int(cores) < 1):
        fail(f"--cores: '{cores}' is not a number of 1 or more, or *")
    chosen = pairs(settings or (), "--conf")
    wanting = missing()
    if wanting is not None:
        fail(wanting)
    fetched = "" if submitted() or _is_running() else _add_format(format, chosen)
    with _failures():
        found = first()
    if not quiet and not submitted() and not _is_running():
        note(f"starting Spark with {fetched} …" if fetched else "starting Spark …")
    from pyspark import SparkContext
    from pyspark.logger import PySparkLogger

    from peeklock.spark.pipelines.failures import SPARK_ERRORS

    # It would print each mistake in a user's SQL as a page of JSON, before we say it in a sentence.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    is_ours = SparkContext._active_spark_context is None
    try:
        # Not in the middle of the start: a Java would be left behind.
        with _signals() as stopping:
            spark = local_session(app_name, cores, chosen, small=bool(found))
    except SPARK_ERRORS as error:
        if fetched:
            fail(
                f"Spark cannot be started with {fetched}: is Maven Central reachable? Without it, name jars that are "
                "here by --conf spark.jars=…",
                Exit.FAILED,
            )
        fail(f"Spark cannot be started: {sentence_of(error)}", Exit.FAILED)
    try:
        if stopping.is_set():
            raise typer.Exit(Exit.INTERRUPTED)
        with _failures():
            try:
                yield spark, found
            except SPARK_ERRORS as error:
                fail(sentence_of(error), Exit.FAILED)
    finally:
        if is_ours:
            spark.stop()


def _add_format(format: str, chosen: dict[str, str]) -> str:
    """Add what Spark has to be told for a format; returns the packages that it will fetch for that."""
    from peeklock.spark.pipelines.table_formats import BUILDS, NoBuild, settings_of

    if format not in BUILDS:
        return ""  # without loading Spark, which takes a second
    import pyspark

    try:
        settings = settings_of(format, pyspark.__version__, chosen)
    except NoBuild as error:
        fail(str(error))
    chosen |= settings
    return settings.get("spark.jars.packages", "")


@contextmanager
def _failures() -> Iterator[None]:
    """What goes wrong, as a sentence; what Spark itself raises is left to others, who have loaded it."""
    from peeklock.client import ClientError
    from peeklock.spark.reach import SourceFailed

    try:
        yield
    except ClientError as error:
        fail(sentence(error), exit_code(error))
    except SourceFailed as error:
        fail(printable(str(error)), Exit.FAILED)
    except BrokenPipeError:  # who read our output has gone
        raise
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error))
    except ValueError as error:  # what the pipelines say of what they were given
        fail(str(error))


def _is_running() -> bool:
    """Without loading Spark, which takes a second."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def connector_options(
    connection_string: str, ca_file: Path | None, given: list[str] | None, use: Use
) -> dict[str, str]:
    """The options of the data source that every use of it needs, and those that the user gives."""
    from peeklock.spark.options import OptionError, Options

    more = pairs(given or (), "--option")
    for name in _SET_BY_COMMANDS:
        if name.lower() in map(str.lower, more):
            fail(f"--option: '{name}' is set by the command itself")
    authority = {} if ca_file is None else {"caFile": str(ca_file.absolute())}
    options = {"connectionString": connection_string, **authority, **more}
    try:
        Options.parse({**options, "queue": "any"}, use=use)
    except OptionError as error:
        fail(str(error))
    return options


def check_there(
    connection_string: str, ca_file: Path | None, read: Iterable[str] = (), written: Iterable[str] = ()
) -> None:
    """What cannot be reached, read or written to is told at once: Spark's tasks would try for a long time."""
    with messaging(connection_string, ca_file) as connection:
        for address in read:
            with connection.management(address) as management:
                management.peek(1, 1)
        for address in written:
            connection.sender(address).close()


def point(text: str | None, option: str) -> datetime | None:
    """A moment that bounds which messages are meant."""
    return None if text is None else datetime.fromtimestamp(moment(text, option, int(time.time() * 1000)) / 1000, UTC)


@contextmanager
def users_condition() -> Iterator[None]:
    """Within, what Spark does not understand is the SQL of the user."""
    from pyspark.errors import AnalysisException

    try:
        yield
    except AnalysisException as error:
        fail(f"--where: {sentence_of(error)}")


def sentence_of(error: Exception) -> str:
    """What matters of an error of Spark: the last word of a Python traceback in it, or the first of Java's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [match[1] for line in lines if (match := _LAST_OF_TRACEBACK.match(line))]
    told = said[-1] if said else (lines[0] if lines else type(error).__name__)
    return printable(_SQLSTATE.sub("", _ERROR_CLASS.sub("", told)))


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Told to stop, by Ctrl-C or a termination, what runs ends in good order; told again, at once.

    What it gives is set then. Spark has a way of its own, which prints pages: so only after a session was started.
    """
    with _signals() as stopping:
        yield stopping
    if stopping.is_set():
        raise typer.Exit(Exit.INTERRUPTED)


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """Is set by the first signal to stop; the second one is an exception."""
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            logging.disable()  # whoever waits for Spark just now would tell of it at length
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in stopping_signals()}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
