"""`peeklock pipeline capture`: move messages into files or tables, and merge small files."""

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
    check_access,
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
    """Run the command `run` if the first argument is not a command: `capture orders` is `capture run orders`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer()
capture = typer.Typer(
    cls=DefaultsToRun,
    no_args_is_help=True,
    help="Move messages into files, each exactly once. `capture ENTITY…` is short for `capture run ENTITY…`.",
)
app.add_typer(capture, name="capture")

CapturedFormat = Annotated[str, typer.Option(help="The format of the captured messages: parquet, delta or iceberg.")]
Folder = Annotated[str, typer.Argument(help="The folder with captured messages: a path, or a URI that Spark can read.")]


@capture.command()
def run(
    entity: Annotated[list[str], typer.Argument(help="Queues, and subscriptions as topic/Subscriptions/name.")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="The folder to write to: a path, or a URI that Spark can write to. With iceberg also a table name.",
        ),
    ],
    interval: Annotated[
        str | None,
        typer.Option(
            help="Time between the starts of two batches, such as 30s or 5m.",
            show_default="without pauses",
        ),
    ] = None,
    until_empty: Annotated[
        bool, typer.Option(help="Stop when the messages that are in the entities now are captured.")
    ] = False,
    format: Annotated[
        str,
        typer.Option(
            help="The format to write: parquet, delta or iceberg. Spark downloads the packages for delta and iceberg."
        ),
    ] = "parquet",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            show_default="in the folder", help="The folder for Spark's checkpoint. Do not share or delete it."
        ),
    ] = None,
    claim_name: Annotated[
        str | None,
        typer.Option(
            show_default="made from the entity's address", help="The name under which this capture claims messages."
        ),
    ] = None,
    compact_every: Annotated[
        str, typer.Option(help="How often to merge small Parquet files; max: never. Without effect with --until-empty.")
    ] = "1h",
    batch_size: Annotated[
        int | None, typer.Option(min=1, show_default="100000", help="The most messages in a batch.")
    ] = None,
    option: SourceOptions = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Move messages from queues and subscriptions into files, by entity, date and hour, until interrupted.

    Each message is written exactly once, and removed from its entity only after that. A capture that is started again
    with the same folder continues. With --json: an object a line for each batch.
    """
    if format not in FORMATS:
        fail(f"--format: '{format}' must be one of {', '.join(FORMATS)}")
    if interval is not None and until_empty:
        fail("--interval and --until-empty exclude each other")
    if len({each.lower() for each in entity}) < len(entity):
        fail("an entity is given twice")
    interval_ms = None if interval is None else milliseconds(interval, "--interval")
    if interval is not None and interval_ms is None:
        fail(f"--interval: '{interval}' must be a limited duration, such as 30s")
    compact_ms = None if until_empty else milliseconds(compact_every, "--compact-every")
    options = {
        **connector_options(connection_string, ca_file, option, "readStream"),
        **({} if batch_size is None else {"maxMessagesPerTrigger": str(batch_size)}),
        **({} if claim_name is None else {"claimName": claim_name}),
    }

    def prepare() -> bool:
        check_access(connection_string, ca_file, read=entity)
        # A capture that does not stop may have few messages now and many later.
        return until_empty and _hold_few_messages(entity, connection_string, ca_file)

    with (
        spark_session("peeklock capture", cores, conf, prepare, quiet=json, format=format) as (spark, small),
        interruptible() as stopping,
        _batch_reporter(json) as on_batch,
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
        run_capture(spark, entity, options, target, on_batch, stopping)


@capture.command()
def compact(
    folder: Folder,
    target_size: Annotated[str, typer.Option(help="The approximate size of merged files, such as 64m or 1g.")] = "128m",
    keep: Annotated[
        str, typer.Option(help="How long to keep replaced files for running readers; 0s: delete them at once.")
    ] = "1h",
    cores: Cores = "*",
    conf: SparkSettings = None,
    json: AsJson = False,
) -> None:
    """Merge small files of captured messages. Safe while captures and readers run, and if it is killed."""
    target_bytes = _size(target_size, "--target-size")
    keep_ms = milliseconds(keep, "--keep")
    if keep_ms is None:
        fail("--keep: 'max' is not allowed; give a limited duration, such as 1h")
    with (
        spark_session("peeklock compact", cores, conf, lambda: False, quiet=json) as (spark, _),
        interruptible() as stopping,
    ):
        from peeklock.spark.pipelines.compaction import compact as run_compaction

        with progress("merging") as advance:

            def on_merged(merged: Merged) -> None:
                advance(merged.files)

            done = run_compaction(
                spark, folder, target_bytes=target_bytes, keep_ms=keep_ms, on_merged=on_merged, stopping=stopping
            )
        if json:
            print_json({"merged": done.merged, "into": done.into, "removed": done.removed})
        else:
            print(f"merged {done.merged} files into {done.into}, removed {done.removed} files replaced earlier")


def _hold_few_messages(entities: list[str], connection_string: str, ca_file: Path | None) -> bool:
    """Whether the entities hold few messages. False if the counts cannot be read, which requires the right Manage."""
    from peeklock.client import ClientError
    from peeklock.client.administration import AdministrationClient
    from peeklock.spark.pipelines.amounts import hold_few_messages

    try:
        with AdministrationClient.from_connection_string(connection_string, tls=tls_context(ca_file)) as administration:
            return hold_few_messages(administration, entities)
    except (ClientError, OSError):
        return False


@contextmanager
def _batch_reporter(json: bool) -> Iterator[Callable[[Batch], None]]:
    """Yield a callback that reports each batch; print the number of captured messages at the end."""
    rows = files = 0
    with progress("capturing") as advance:

        def on_batch(batch: Batch) -> None:
            nonlocal rows, files
            rows += batch.rows
            files += batch.files
            advance(batch.rows)
            if json:
                print_json(
                    {
                        "entity": batch.entity,
                        "batch": batch.number,
                        "messages": batch.rows,
                        "bytes": batch.bytes,
                        "files": batch.files,
                    }
                )

        try:
            yield on_batch
        finally:
            if not json:
                into = f" in {files} file{'' if files == 1 else 's'}" if files else ""
                note(f"captured {rows} message{'' if rows == 1 else 's'}{into}")
    if json:
        print_json({"captured": rows, "files": files})


def _size(text: str, option: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None or not int(match[1]):
        fail(f"{option}: '{text}' is not a size, such as 64m, 1g, or a number of bytes")
    return int(match[1]) * _UNITS[match[2].lower()]
