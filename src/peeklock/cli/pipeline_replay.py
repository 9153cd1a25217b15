"""`peeklock pipeline replay`: captured messages to an entity again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString
from peeklock.cli.failing import fail
from peeklock.cli.output import AsJson, print_json, print_pairs, print_table, progress
from peeklock.cli.pipeline_capture import FORMATS, CapturedFormat, Folder
from peeklock.cli.pipeline_session import (
    Cores,
    SourceOptions,
    SparkSettings,
    check_there,
    connector_options,
    interruptible,
    point,
    spark_session,
    users_condition,
)

if TYPE_CHECKING:
    from peeklock.spark.pipelines.replay import Ids, Pace, Summary, Timing
    from peeklock.spark.pipelines.table_formats import Format

app = typer.Typer()

_TIMINGS = ("at-once", "original")
_IDS = ("keep", "new")


@app.command()
def replay(
    folder: Folder,
    entity: Annotated[str, typer.Argument(help="The queue or topic that gets them.")],
    where: Annotated[str | None, typer.Option(help="SQL on the captured columns: \"subject = 'order'\".")] = None,
    only: Annotated[str | None, typer.Option(help="Those that were captured from this entity.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Enqueued then or later: 2030-01-31T12:00:00Z.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Enqueued before that.")] = None,
    ids: Annotated[str, typer.Option(help="keep: the message ids they had; new: others.")] = "keep",
    timing: Annotated[
        str, typer.Option(help="at-once; or original: with the time between them as it was.")
    ] = "at-once",
    speed: Annotated[float | None, typer.Option(help="Of the original timing: 10 is ten times as fast.")] = None,
    rate: Annotated[float | None, typer.Option(help="Messages a second, at most.")] = None,
    tasks: Annotated[int, typer.Option(min=0, help="Send from so many tasks at once; 0: one for each core.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    format: CapturedFormat = "parquet",
    option: SourceOptions = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Send captured messages to a queue or topic. The order within each session is kept."""
    for name, value, known in (("--timing", timing, _TIMINGS), ("--ids", ids, _IDS), ("--format", format, FORMATS)):
        if value not in known:
            fail(f"{name}: '{value}' is none of {', '.join(known)}")
    if timing == "original" and rate is not None:
        fail("--rate is for --timing at-once; with --timing original there is --speed")
    if timing != "original" and speed is not None:
        fail("--speed is for --timing original")
    for name, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < float("inf"):
            fail(f"{name}: {number} is not more than 0")
    start, end = point(since, "--from"), point(until, "--to")
    options = {**connector_options(connection_string, ca_file, option, "write"), "queue": entity}
    chosen_ids: Ids = ids  # type: ignore[assignment]  # one of _IDS
    chosen_timing: Timing = timing  # type: ignore[assignment]  # one of _TIMINGS
    chosen_format: Format = format  # type: ignore[assignment]  # one of FORMATS

    def first() -> bool:
        from peeklock.spark.pipelines.amounts import is_small_folder

        if not dry_run:
            check_there(connection_string, ca_file, written=[entity])
        return is_small_folder(folder)

    with (
        spark_session("peeklock replay", cores, conf, first, quiet=json, format=format) as (spark, _),
        interruptible() as stopping,
    ):
        from peeklock.spark.pipelines import replay as pipeline
        from peeklock.spark.pipelines.capture import read

        pace = pipeline.Pace(timing=chosen_timing, speed=speed or 1.0, rate=rate)
        choice = pipeline.Choice(where=where, entity=only, since=start, until=end)
        captured = read(spark, folder, chosen_format)
        with users_condition():
            rows = pipeline.chosen(captured, choice)
        found = pipeline.summary(rows)
        if dry_run:
            _show(found, pace, pipeline.samples(rows), json)
            return
        sent = 0
        if found.messages and not stopping.is_set():
            outgoing = pipeline.outgoing(rows, chosen_ids)
            count = tasks or spark.sparkContext.defaultParallelism
            with progress("sending", found.messages) as advance:
                sent = pipeline.replay(outgoing, options, pace, tasks=count, told=advance, stopping=stopping)
        if json:
            print_json({"chosen": found.messages, "sent": sent})
        elif stopping.is_set():
            print(f"stopped: {sent} of {found.messages} messages were sent to {entity}, and perhaps some more")
        else:
            print(f"sent {sent} message{'' if sent == 1 else 's'} to {entity}")


def _show(found: Summary, pace: Pace, samples: list[dict[str, object]], json: bool) -> None:
    first, last = (None if each is None else each.isoformat() for each in (found.first, found.last))
    if json:
        from peeklock.spark.pipelines.tables import as_json

        print_json(
            {
                "messages": found.messages,
                "bytes": found.bytes,
                "sessions": found.sessions,
                "first": first,
                "last": last,
                "seconds": found.seconds(pace),
                "entities": dict(found.entities),
                "samples": as_json(samples),
            }
        )
        return
    print_pairs(
        [
            ("messages", found.messages),
            ("bytes", found.bytes),
            ("sessions", found.sessions),
            ("enqueued from", first),
            ("until", last),
            ("takes at least", f"{found.seconds(pace):.0f} seconds"),
            *((f"of {name}", count) for name, count in found.entities.items()),
        ]
    )
    if samples:
        print_table(tuple(samples[0]), [tuple(each.values()) for each in samples], ("sequence_number",))
