"""What the commands of `peeklock pipeline` share: the options for Spark, a session, and its failures as sentences."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peeklock.cli.connecting import exit_code, sentence
from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import printable
from peeklock.cli.values import pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Cores = Annotated[str, typer.Option("--cores", help="How many cores Spark uses on this machine; * for all.")]
SparkSettings = Annotated[
    list[str] | None,
    typer.Option("--conf", help="A setting of Spark, as name=value; spark.master=… runs it on a cluster. Repeatable."),
]

_LAST_OF_TRACEBACK = re.compile(r"^(?:\w+\.)*(?:\w*(?:Error|Exception|Failed|Lost|Closed|Refused|Rejected)): ?(.+)$")
_SQLSTATE = re.compile(r"\.? SQLSTATE: \w+.*$")
_ERROR_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")


@contextmanager
def spark_session(app_name: str, cores: str, settings: list[str] | None) -> Iterator[SparkSession]:
    """A Spark to work with. What goes wrong while it is used ends the command with a sentence."""
    from peeklock.spark.session import local_session, missing

    if cores != "*" and (not cores.isdigit() or int(cores) < 1):
        fail(f"--cores: '{cores}' is not a number of 1 or more, or *")
    chosen = pairs(settings or (), "--conf")
    wanting = missing()
    if wanting is not None:
        fail(wanting)
    from pyspark.logger import PySparkLogger

    from peeklock.client import ClientError
    from peeklock.spark.pipelines.failures import SPARK_ERRORS
    from peeklock.spark.reach import SourceFailed

    # It would print each mistake in a user's SQL as a page of JSON, before we say it in a sentence.
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        spark = local_session(app_name, cores, chosen)
    except SPARK_ERRORS as error:
        fail(f"Spark cannot be started: {sentence_of(error)}", Exit.FAILED)
    try:
        yield spark
    except SPARK_ERRORS as error:
        fail(sentence_of(error), Exit.FAILED)
    except ClientError as error:
        fail(sentence(error), exit_code(error))
    except SourceFailed as error:
        fail(printable(str(error)), Exit.FAILED)
    except (ValueError, FileNotFoundError) as error:  # what the pipelines say of what they were given
        fail(str(error))
    finally:
        spark.stop()


def connector_options(connection_string: str, ca_file: Path | None) -> dict[str, str]:
    """The options of the data source that every use of it needs."""
    authority = {} if ca_file is None else {"caFile": str(ca_file.absolute())}
    return {"connectionString": connection_string, **authority}


def sentence_of(error: Exception) -> str:
    """What matters of an error of Spark: the last word of a Python traceback in it, or else its first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [match[1] for line in lines if (match := _LAST_OF_TRACEBACK.match(line))]
    told = said[-1] if said else (lines[0] if lines else type(error).__name__)
    return printable(_SQLSTATE.sub("", _ERROR_CLASS.sub("", told)))


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Told to stop, by Ctrl-C or a termination, what runs ends in good order; told again, at once.

    What it gives is set then. Only after a session was started: Spark has a way of its own, which leaves things as
    they are.
    """
    stopping = threading.Event()

    def stop(*_: object) -> None:
        if stopping.is_set():
            raise KeyboardInterrupt
        stopping.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopping.is_set():
        raise typer.Exit(Exit.INTERRUPTED)
