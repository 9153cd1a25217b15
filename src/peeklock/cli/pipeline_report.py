"""`peeklock pipeline report`: what captured messages tell of the flow, as tables and a page.

What is counted and how it is shown is `spark.pipelines.report`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from peeklock.cli.failing import fail
from peeklock.cli.output import AsJson, note, print_json, progress
from peeklock.cli.pipeline_session import Cores, SparkSettings, spark_session
from peeklock.cli.values import moment

app = typer.Typer()


@app.command()
def report(
    captured: Annotated[str, typer.Argument(help="Where captured messages are.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="A folder for the tables, as Parquet, and the page.")
    ] = "report",
    page: Annotated[
        Path | None,
        typer.Option(help="The page, a file on this machine.", show_default="report.html in the folder"),
    ] = None,
    entity: Annotated[list[str] | None, typer.Option(help="Only messages of this entity. Several times.")] = None,
    since: Annotated[
        str | None, typer.Option("--from", help="Only messages enqueued then or later, such as 2030-01-31T12:00:00Z.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only messages enqueued before then.")] = None,
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Rates, sizes, waiting times, deliveries, sessions, duplicates and properties of captured messages."""
    first, last = _moment(since, "--from"), _moment(until, "--to")
    place = page or _local_page(output)
    with spark_session("peeklock report", cores, conf) as spark:
        from peeklock.spark.pipelines import report as pipeline
        from peeklock.spark.pipelines.capture import read

        frame = pipeline.between(read(spark, captured), first, last, tuple(entity or ()))
        with progress("counting", pipeline.STEPS) as advance:
            made = pipeline.publish(frame, output, place, captured, lambda _: advance(1))
    entities = made.tables["entities"]
    messages = sum(row["messages"] for row in entities)
    if json:
        print_json({"messages": messages, "entities": len(entities), "page": str(place), "tables": f"{output}/tables"})
        return
    if not messages:
        note("no messages")
    told = f"{messages} message{'' if messages == 1 else 's'}"
    print(f"{told} of {len(entities)} {'entity' if len(entities) == 1 else 'entities'}: {place}")


def _moment(text: str | None, option: str) -> datetime | None:
    if text is None:
        return None
    return datetime.fromtimestamp(moment(text, option, int(time.time() * 1000)) / 1000, UTC)


def _local_page(output: str) -> Path:
    path = output.removeprefix("file://").removeprefix("file:")
    if "://" in path:
        fail("--page is needed: the folder is not on this machine, and the page is a file that is")
    return Path(path, "report.html")
