"""`peeklock pipeline replay`: send captured messages to a queue or topic."""

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
    check_access,
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
    entity: Annotated[str, typer.Argument(help="The queue or topic to send to.")],
    where: Annotated[
        str | None,
        typer.Option(
            help="Only messages for which this SQL expression over the captured columns is true: \"subject = 'order'\"."
        ),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only messages that were captured from this entity.")] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", help="Only messages enqueued at this time or later, such as 2030-01-31T12:00:00Z."),
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help="Only messages enqueued before this time.")] = None,
    ids: Annotated[str, typer.Option(help="keep: the captured message ids; new: new message ids.")] = "keep",
    timing: Annotated[
        str, typer.Option(help="at-once: without pauses; original: with the original time between messages.")
    ] = "at-once",
    speed: Annotated[
        float | None, typer.Option(help="The factor for --timing original: 10 is ten times as fast.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="The most messages per second.")] = None,
    tasks: Annotated[int, typer.Option(min=0, help="How many tasks send in parallel; 0: one for each core.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would be sent, and send nothing.")] = False,
    format: CapturedFormat = "parquet",
    option: SourceOptions = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Send captured messages to a queue or topic. Messages of a session keep their order."""
    for name, value, known in (("--timing", timing, _TIMINGS), ("--ids", ids, _IDS), ("--format", format, FORMATS)):
        if value not in known:
            fail(f"{name}: '{value}' must be one of {', '.join(known)}")
    if timing == "original" and rate is not None:
        fail("--rate requires --timing at-once; use --speed with --timing original")
    if timing != "original" and speed is not None:
        fail("--speed requires --timing original")
    for name, number in (("--rate", rate), ("--speed", speed)):
        if number is not None and not 0 < number < float("inf"):
            fail(f"{name}: {number} must be more than 0")
    start, end = point(since, "--from"), point(until, "--to")
    options = {**connector_options(connection_string, ca_file, option, "write"), "queue": entity}
    chosen_ids: Ids = ids  # type: ignore[assignment]  # one of _IDS
    chosen_timing: Timing = timing  # type: ignore[assignment]  # one of _TIMINGS
    chosen_format: Format = format  # type: ignore[assignment]  # one of FORMATS

    def prepare() -> bool:
        from peeklock.spark.pipelines.amounts import is_small_folder

        if not dry_run:
            check_access(connection_string, ca_file, written=[entity])
        return is_small_folder(folder)

    with (
        spark_session("peeklock replay", cores, conf, prepare, quiet=json, format=format) as (spark, _),
        interruptible() as stopping,
    ):
        from peeklock.spark.pipelines import replay as pipeline
        from peeklock.spark.pipelines.capture import read
        from peeklock.spark.session import default_tasks

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
            count = tasks or default_tasks(spark)
            with progress("sending", found.messages) as advance:
                sent = pipeline.replay(outgoing, options, pace, tasks=count, on_sent=advance, stopping=stopping)
        if json:
            print_json({"chosen": found.messages, "sent": sent})
        elif stopping.is_set():
            print(f"stopped: sent {sent} of {found.messages} messages to {entity}; some more may have been sent")
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
            ("enqueued until", last),
            ("minimum duration", f"{found.seconds(pace):.0f} seconds"),
            *((f"from {name}", count) for name, count in found.entities.items()),
        ]
    )
    if samples:
        print_table(tuple(samples[0]), [tuple(each.values()) for each in samples], ("sequence_number",))
