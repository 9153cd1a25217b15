"""`peeklock pipeline capture`: messages into Parquet, and its small files into large ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, tls_context
from peeklock.cli.failing import fail
from peeklock.cli.output import AsJson, note, print_json, progress
from peeklock.cli.pipeline_session import (
    Cores,
    SourceOptions,
    SparkSettings,
    check_there,
    connector_options,
    interruptible,
    spark_session,
)
from peeklock.cli.values import milliseconds

if TYPE_CHECKING:
    from peeklock.spark.pipelines.capture import Batch
    from peeklock.spark.pipelines.compaction import Merged
    from peeklock.spark.pipelines.table_formats import Format

FORMATS = ("parquet", "delta", "iceberg")
_SIZE = re.compile(r"(\d+)([kmg]?)b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class DefaultsToRun(TyperGroup):
    """`capture orders …` is `capture run orders …`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer()
capture = typer.Typer(
    cls=DefaultsToRun,
    no_args_is_help=True,
    help="Messages into files, each exactly once. `capture ENTITY…` is short for `capture run ENTITY…`.",
)
app.add_typer(capture, name="capture")

CapturedFormat = Annotated[str, typer.Option(help="What they were captured into: parquet, delta or iceberg.")]
Folder = Annotated[str, typer.Argument(help="A folder with captured messages, or the URI of one that Spark can read.")]


@capture.command()
def run(
    entity: Annotated[list[str], typer.Argument(help="Queues, or subscriptions as topic/Subscriptions/name.")],
    to: Annotated[str, typer.Option("--to", help="The folder, or what Spark can write to; for iceberg also a table.")],
    interval: Annotated[
        str | None, typer.Option(help="Time between two batches, such as 30s or 5m; without it, one after the other.")
    ] = None,
    until_empty: Annotated[bool, typer.Option(help="Stop when what is there now is captured.")] = False,
    format: Annotated[
        str, typer.Option(help="parquet, delta or iceberg. Their builds for Spark are fetched.")
    ] = "parquet",
    checkpoint: Annotated[
        str | None,
        typer.Option(show_default="in the folder", help="Where Spark keeps how far it is. Never share or delete it."),
    ] = None,
    claim_name: Annotated[
        str | None,
        typer.Option(show_default="made of the entity's address", help="Marks what this capture has set aside."),
    ] = None,
    compact_every: Annotated[
        str, typer.Option(help="Merge small files of Parquet that often, unless --until-empty; max: never.")
    ] = "1h",
    batch_size: Annotated[
        int | None, typer.Option(min=1, show_default="10000", help="Messages of a batch, at most.")
    ] = None,
    option: SourceOptions = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Take messages out of queues and subscriptions into Parquet by entity, date and hour, until interrupted.

    Each message is in the files exactly once, and is removed from its entity only when it is. Started again with the
    same folder it goes on where it was. With --json: a line for each batch.
    """
    if format not in FORMATS:
        fail(f"--format: '{format}' is none of {', '.join(FORMATS)}")
    if interval is not None and until_empty:
        fail("--interval and --until-empty exclude each other")
    if len({each.lower() for each in entity}) < len(entity):
        fail("an entity is named twice")
    interval_ms = None if interval is None else milliseconds(interval, "--interval")
    if interval is not None and interval_ms is None:
        fail(f"--interval: '{interval}' is no time between two batches")
    compact_ms = None if until_empty else milliseconds(compact_every, "--compact-every")
    options = {
        **connector_options(connection_string, ca_file, option, "readStream"),
        **({} if batch_size is None else {"maxMessagesPerTrigger": str(batch_size)}),
        **({} if claim_name is None else {"claimName": claim_name}),
    }

    def first() -> bool:
        check_there(connection_string, ca_file, read=entity)
        # One that goes on may have little to do now, and much later.
        return until_empty and _hold_little(entity, connection_string, ca_file)

    with (
        spark_session("peeklock capture", cores, conf, first, quiet=json, format=format) as (spark, small),
        interruptible() as stopping,
        _told(json) as told,
    ):
        from peeklock.spark.pipelines.capture import Target
        from peeklock.spark.pipelines.capture import capture as run_capture

        if small and "numpartitions" not in map(str.lower, options):
            options["numPartitions"] = "1"
        chosen: Format = format  # type: ignore[assignment]  # one of FORMATS
        target = Target(
            folder=to,
            format=chosen,
            checkpoint=checkpoint,
            interval_s=None if interval_ms is None else interval_ms / 1000,
            until_empty=until_empty,
            compact_every_s=None if compact_ms is None else compact_ms / 1000,
        )
        run_capture(spark, entity, options, target, told, stopping)


@capture.command()
def compact(
    folder: Folder,
    target_size: Annotated[str, typer.Option(help="About how large files become: 64m, 1g.")] = "128m",
    keep: Annotated[
        str, typer.Option(help="How long replaced files stay, for those that are reading them; 0s: not at all.")
    ] = "1h",
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Merge small files of captured messages. May run beside captures and readers, and be killed at any moment."""
    target_bytes = _size(target_size, "--target-size")
    keep_ms = milliseconds(keep, "--keep")
    if keep_ms is None:
        fail("--keep: 'max' is no time after which files can go")
    with (
        spark_session("peeklock compact", cores, conf, lambda: False, quiet=json) as (spark, _),
        interruptible() as stopping,
    ):
        from peeklock.spark.pipelines.compaction import compact as run_compaction

        with progress("merging") as advance:

            def told(merged: Merged) -> None:
                advance(merged.files)

            done = run_compaction(
                spark, folder, target_bytes=target_bytes, keep_ms=keep_ms, told=told, stopping=stopping
            )
        if json:
            print_json({"merged": done.merged, "into": done.into, "removed": done.removed})
        else:
            print(f"merged {done.merged} files into {done.into}, removed {done.removed} that were replaced earlier")


def _hold_little(entities: list[str], connection_string: str, ca_file: Path | None) -> bool:
    """Whether there are few messages; False where the counters are not to be had, as without the right Manage."""
    from peeklock.client import ClientError
    from peeklock.client.administration import AdministrationClient
    from peeklock.spark.pipelines.amounts import hold_little

    try:
        with AdministrationClient.from_connection_string(connection_string, tls=tls_context(ca_file)) as administration:
            return hold_little(administration, entities)
    except (ClientError, OSError):
        return False


@contextmanager
def _told(json: bool) -> Iterator[Callable[[Batch], None]]:
    """What hears of each batch; says at the end how many messages there were."""
    rows = files = 0
    with progress("capturing") as advance:

        def told(batch: Batch) -> None:
            nonlocal rows, files
            rows += batch.rows
            files += batch.files
            advance(batch.rows)
            if json:
                said = {"entity": batch.entity, "batch": batch.number, "messages": batch.rows, "bytes": batch.bytes}
                print_json({**said, "files": batch.files})

        try:
            yield told
        finally:
            if not json:
                into = f" in {files} file{'' if files == 1 else 's'}" if files else ""
                note(f"captured {rows} message{'' if rows == 1 else 's'}{into}")
    if json:
        print_json({"captured": rows, "files": files})


def _size(text: str, option: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        fail(f"{option}: '{text}' is not a size: 64m, 1g, or a number of bytes")
    return int(match[1]) * _UNITS[match[2].lower()]
