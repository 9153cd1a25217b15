"""`python -m examples.demo`: start a broker, send and process the orders of a shop, and run the pipelines on them.

All files are written to a new folder. The demo runs the pipelines of the command line, and prints each command as a
user would type it. The pipelines share one Spark session, which starts while the shop is running.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from examples.demo.orders import FULFILMENT, LAKE, MOST_DELIVERIES, TOPIC, fulfil, send_orders
from peeklock.cli.failing import Exit
from peeklock.cli.main import main as run_command
from peeklock.client import ClientError, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.session import local_session, missing
from tools.bench.interrupts import Stopped, interrupts
from tools.bench.processes import Child, StartFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCE: Final = Path(__file__).parents[2] / "src"


class CommandFailed(Exception):
    """A pipeline failed, and has printed the reason."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    requirement = missing()
    if requirement is not None:
        print(f"demo: {requirement}", file=sys.stderr)
        return 2
    interrupts.watch(options.time_limit)
    folder: Path = options.folder / datetime.now().strftime("%Y-%m-%d-%H%M%S")
    try:
        folder.mkdir(parents=True)
        with ExitStack() as started:
            _run(folder, options.orders, options.seconds, started)
    except Stopped as stopped:
        print(f"demo: {stopped}; the files made so far are in {folder}", file=sys.stderr)
        return 130
    except (StartFailed, CommandFailed, ClientError, OSError) as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo", description="A shop on a broker, and the pipelines over its orders.")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("peeklock-demo"),
        help="the folder in which to create the folder of this run",
    )
    parser.add_argument("--orders", type=int, default=4000, help="number of orders (%(default)s)")
    parser.add_argument("--seconds", type=float, default=15.0, help="duration of the sales (%(default)s)")
    parser.add_argument(
        "--time-limit", type=int, default=900, metavar="S", help="stop after this many seconds (%(default)s)"
    )
    return parser


def _run(folder: Path, orders: int, seconds: float, started: ExitStack) -> None:
    print(f"Starting a broker with its data in {folder / 'broker'} ...", flush=True)
    with interrupts.held():
        broker = started.enter_context(
            Child(
                [sys.executable, "-m", "peeklock", "serve", "--port", "0", "--data", str(folder / "broker")],
                log=folder / "broker.log",
                environment=_environment(),
                announces=True,
            )
        )
    connection_string = broker.first_line()
    os.environ |= {**_environment(), "PEEKLOCK_CONNECTION_STRING": connection_string}
    spark = started.enter_context(_starting_spark(orders))
    _open_shop(connection_string, orders, seconds)
    _wait_for(spark)
    lake, triage, report = folder / "lake", folder / "dead-letters", folder / "report"
    _pipeline("capture", LAKE, "--to", str(lake), "--until-empty")
    _pipeline("dead-letters", "--captured", str(lake), "--output", str(triage))
    _pipeline("report", str(lake), "--output", str(report))
    print(
        f"""
Files:
  {lake}  the orders, as Parquet by entity, date and hour
  {triage / "tables"}  the tables of the triage, as Parquet
  {report / "tables"}  the tables of the report, as Parquet
  {report / "report.html"}  the report, for a browser
  {folder / "broker"}  the broker's data, with the dead letters: peeklock serve --data {folder / "broker"}"""
    )


def _open_shop(connection_string: str, orders: int, seconds: float) -> None:
    """Create the topic, and send and process orders until all are settled."""
    with AdministrationClient.from_connection_string(connection_string) as administration:
        administration.create(Kind.TOPIC, TOPIC)
        for path, settings in ((FULFILMENT, {"MaxDeliveryCount": MOST_DELIVERIES}), (LAKE, {})):
            administration.create(Kind.SUBSCRIPTION, path.rsplit("/", 1)[1], settings, topic=TOPIC)
    print(f"Sending and processing {orders} orders within {seconds:g} s ...", flush=True)
    all_sent = threading.Event()

    def work() -> dict[str, int]:
        with connect(connection_string) as connection:
            return fulfil(connection, all_sent)

    with ThreadPoolExecutor(max_workers=1) as pool:
        fulfilment = pool.submit(work)
        try:
            with connect(connection_string) as connection:
                sent = send_orders(connection, orders, seconds)
        finally:
            all_sent.set()
        ends = ", ".join(f"{count} {end}" for end, count in fulfilment.result().items())
    print(f"{sent} messages sent; results of the fulfilment: {ends}", flush=True)


@contextmanager
def _starting_spark(orders: int) -> Iterator[Future[SparkSession]]:
    """Start the Spark session for all pipelines in the background, and stop it at the end."""
    from peeklock.spark.pipelines.amounts import is_small

    print("Starting Spark in the background ...", flush=True)
    with ThreadPoolExecutor(max_workers=1) as pool:
        spark = pool.submit(local_session, "peeklock demo", small=is_small(2 * orders, 0))
        try:
            yield spark
        finally:
            if spark.exception() is None:
                spark.result().stop()


def _wait_for(spark: Future[SparkSession]) -> None:
    from peeklock.cli.pipeline_session import error_summary
    from peeklock.spark.pipelines.failures import SPARK_ERRORS

    try:
        spark.result()
    except SPARK_ERRORS as error:
        raise CommandFailed(f"Spark cannot be started: {error_summary(error)}") from error


def _pipeline(*arguments: str) -> None:
    print(f"\n$ peeklock pipeline {shlex.join(arguments)}", flush=True)
    began = time.monotonic()
    sys.argv = ["peeklock", "pipeline", *arguments]
    try:
        run_command()
    except SystemExit as end:
        if end.code == Exit.INTERRUPTED:
            raise Stopped("stopped") from None
        if end.code:
            raise CommandFailed(f"`peeklock pipeline {arguments[0]}` ended with {end.code}") from None
    print(f"({time.monotonic() - began:.0f} s)", flush=True)


def _environment() -> dict[str, str]:
    """The environment in which child processes, and the workers of Spark, find this package if it is not installed."""
    path = os.pathsep.join(filter(None, (str(_SOURCE), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path}


if __name__ == "__main__":
    sys.exit(main())
