"""`peeklock pipeline report`: statistics of captured messages, as tables and an HTML page.

`spark.pipelines.report` computes the tables and makes the page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peeklock.cli.failing import fail
from peeklock.cli.output import AsJson, note, print_json, progress
from peeklock.cli.pipeline_capture import FORMATS, CapturedFormat
from peeklock.cli.pipeline_session import Cores, SparkSettings, interruptible, point, spark_session

if TYPE_CHECKING:
    from peeklock.spark.pipelines.table_formats import Format

app = typer.Typer()


@app.command()
def report(
    captured: Annotated[str, typer.Argument(help="The folder or table with captured messages.")],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The folder to write to: the tables, as Parquet, and the page.")
    ] = "report",
    page: Annotated[
        Path | None,
        typer.Option(help="The file to write the page to, on this machine.", show_default="report.html in the folder"),
    ] = None,
    entity: Annotated[list[str] | None, typer.Option(help="Only messages of this entity. Repeatable.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="Only messages enqueued at this time or later, such as 2030-01-31T12:00:00Z."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only messages enqueued before this time.")] = None,
    format: CapturedFormat = "parquet",
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Report rates, sizes, waiting times, deliveries, sessions, duplicates and properties of captured messages."""
    if format not in FORMATS:
        fail(f"--format: '{format}' must be one of {', '.join(FORMATS)}")
    start, end = point(since, "--from"), point(until, "--to")
    place = page or _local_page(output)

    def prepare() -> bool:
        from peeklock.spark.pipelines.amounts import is_small_folder

        return is_small_folder(captured)

    with (
        spark_session("peeklock report", cores, conf, prepare, quiet=json, format=format) as (spark, small),
        interruptible() as stopping,
    ):
        from peeklock.spark.pipelines import report as pipeline
        from peeklock.spark.pipelines.capture import read
        from peeklock.spark.pipelines.stopping import cancelled_by

        chosen: Format = format  # type: ignore[assignment]  # one of FORMATS
        frame = pipeline.between(read(spark, captured, chosen), start, end, tuple(entity or ()))
        with cancelled_by(stopping, spark), progress("counting", pipeline.STEPS) as advance:
            made = pipeline.publish(frame, output, place, captured, lambda _: advance(1), small=small)
    entities = made.tables["entities"]
    messages = sum(row["messages"] for row in entities)
    if json:
        print_json({"messages": messages, "entities": len(entities), "page": str(place), "tables": f"{output}/tables"})
        return
    if not messages:
        note("no messages")
    counted = f"{messages} message{'' if messages == 1 else 's'}"
    print(f"{counted} of {len(entities)} {'entity' if len(entities) == 1 else 'entities'}: {place}")


def _local_page(output: str) -> Path:
    path = output.removeprefix("file://").removeprefix("file:")
    if re.match(r"[a-z][a-z0-9+.-]+:/", path):
        fail(f"--page is required: the page is a local file, and --output {output} is not a local folder")
    return Path(path, "report.html")
