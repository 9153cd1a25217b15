"""`peeklock pipeline dead-letters`: analyse dead-letter queues on Spark, and resubmit selected messages.

`spark.pipelines.dead_letters` makes the tables. After Spark has stopped, messages are resubmitted by their sequence
numbers, with the code of `peeklock dead-letter resubmit`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peeklock.amqp.message import Message
from peeklock.cli.connecting import (
    LOCAL,
    CaFile,
    ConnectionString,
    address_of,
    administering,
    messaging,
)
from peeklock.cli.dead_letters import (
    Destination,
    NewMessageIds,
    Transfer,
    check_duplicate_detection,
    destination_of,
    resubmit_all,
)
from peeklock.cli.failing import fail
from peeklock.cli.messages import sequence_number
from peeklock.cli.output import AsJson, console, note, print_json, print_table, progress
from peeklock.cli.pipeline_session import (
    Cores,
    SourceOptions,
    SparkSettings,
    check_access,
    connector_options,
    interruptible,
    spark_session,
    users_condition,
)
from peeklock.entities.names import DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from peeklock.spark.pipelines.dead_letters import SmallRead
    from peeklock.spark.pipelines.tables import Rows

app = typer.Typer()

_SHOWN = 24
"""The most rows of a table as text; --output and --json have all rows."""


@app.command("dead-letters")
def dead_letters(
    entities: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ENTITY",
            help="Queues, and subscriptions as topic/Subscriptions/name.",
            show_default="all with dead letters",
        ),
    ] = None,
    transfer: Transfer = False,
    where: Annotated[
        str | None,
        typer.Option(
            help="Only messages for which this SQL expression over the connector's columns is true: "
            "dead_letter_reason = 'NoCustomer' AND application_properties['region'] = 'north'."
        ),
    ] = None,
    captured: Annotated[
        str | None,
        typer.Option(
            help="A folder with captured messages to compare with: a property that differs between them and the "
            "dead-lettered messages is a likely cause.",
            show_default="compare with the messages in the entities now",
        ),
    ] = None,
    samples: Annotated[int, typer.Option(min=0, help="How many messages to show for each reason.")] = 3,
    top: Annotated[int, typer.Option(min=0, help="How many likely causes to show for each reason.")] = 5,
    output: Annotated[str | None, typer.Option(help="A folder to write the tables to, as Parquet.")] = None,
    resubmit: Annotated[
        bool, typer.Option("--resubmit", help="Send the selected messages again, each exactly once.")
    ] = False,
    to: Destination = None,
    new_message_ids: NewMessageIds = None,
    option: SourceOptions = None,
    cores: Cores = "*",
    conf: SparkSettings = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Report the messages in dead-letter queues by reason, with likely causes. Locks and moves no message.

    With --resubmit the command then sends the selected messages again. It can be interrupted at any time: each message
    is either still in the dead-letter queue or was sent again, and the next run continues with the remaining messages.
    """
    if not resubmit and (to is not None or new_message_ids is not None):
        fail(f"{'--to' if to is not None else '--new-message-ids'} requires --resubmit")
    options = connector_options(connection_string, ca_file, option, "read")
    sub_queue = TRANSFER_DEAD_LETTER_SUFFIX if transfer else DEAD_LETTER_SUFFIX
    kind = "transferDeadLetter" if transfer else "deadLetter"

    def prepare() -> SmallRead | None:
        from peeklock.spark.pipelines import dead_letters as pipeline
        from peeklock.spark.pipelines.amounts import is_small_folder

        nonlocal entities
        check_access(connection_string, ca_file, read=[address_of(each, None, sub_queue) for each in entities or ()])
        if not entities:
            with administering(connection_string, ca_file) as administration:
                entities = pipeline.dead_letter_queues(administration, kind)
        if captured is None or is_small_folder(captured):
            return pipeline.read_small(options, entities, kind, waiting=captured is None and bool(top))
        return None

    with (
        spark_session("peeklock dead-letters", cores, conf, prepare, quiet=json) as (spark, few),
        interruptible() as stopping,
    ):
        from peeklock.spark.pipelines import capture
        from peeklock.spark.pipelines import dead_letters as pipeline
        from peeklock.spark.pipelines.stopping import cancelled_by
        from peeklock.spark.pipelines.tables import as_json, make_tables, persisted

        assert entities is not None
        with (
            cancelled_by(stopping, spark),
            nullcontext(few.failed(spark))
            if few
            else persisted(pipeline.read_dead_letters(spark, options, entities, kind), now=True) as failed,
        ):
            with users_condition():
                selected = pipeline.matching(failed, where)
            others = None
            if top and captured:
                others = capture.read(spark, captured)
            elif top:
                others = few.waiting(spark) if few else pipeline.read_waiting(spark, options, entities)
            with progress("counting") as advance:
                tables = pipeline.triage(selected, others, but=failed, samples=samples, top=top)
                rows = make_tables(tables, output, lambda _: advance(1), small=few is not None)
            numbers = pipeline.chosen(selected) if resubmit else {}
    result: dict[str, Any] = {"entities": entities, "messages": sum(row["messages"] for row in rows["by_entity"])}
    if not json:
        _print(rows)
    if resubmit:
        result["resubmitted"] = _resubmit(numbers, sub_queue, to, new_message_ids, connection_string, ca_file, not json)
    if json:
        print_json({**result, "tables": as_json(rows)})
    elif output is not None:
        print(f"wrote the tables to {output}")


# --- resubmission


def _resubmit(
    numbers: Mapping[str, set[int]],
    sub_queue: str,
    to: str | None,
    new_message_ids: bool | None,
    connection_string: str,
    ca_file: CaFile,
    verbose: bool,
) -> list[dict[str, Any]]:
    destinations = {entity: destination_of(entity, to) for entity in sorted(numbers)}
    if new_message_ids is None:
        for destination in sorted(set(destinations.values())):
            check_duplicate_detection(destination, connection_string, ca_file)
    results = []
    for entity, destination in destinations.items():
        wanted = numbers[entity]
        source = address_of(entity, None, sub_queue)

        def matches(message: Message, wanted: set[int] = wanted) -> bool:
            return sequence_number(message) in wanted

        done = 0
        with messaging(connection_string, ca_file) as connection, progress("resubmitting", len(wanted)) as advance:
            try:
                for count in resubmit_all(connection, source, destination, matches, new_ids=bool(new_message_ids)):
                    done += count
                    advance(count)
            except KeyboardInterrupt:
                note(f"peeklock: interrupted after {done} of {len(wanted)} messages of {entity}; the rest is unchanged")
                raise
        if verbose:
            print(f"resubmitted {done} of {_counted(len(wanted), 'message')} to {destination}")
        results.append({"entity": entity, "to": destination, "messages": done, "chosen": len(wanted)})
    if verbose and not destinations:
        note("no messages selected")
    return results


# --- text output


def _print(rows: Mapping[str, Rows]) -> None:
    if not rows["by_entity"]:
        note("no dead letters")
        return
    print(_counted(sum(row["messages"] for row in rows["by_entity"]), "message") + " in dead-letter queues")
    for heading, name, columns in _TABLES:
        if rows.get(name):
            _print_one(heading, rows[name], columns)
    if rows.get("causes"):
        _print_causes(rows["causes"])


_COMMON = {"entity": "Entity", "dead_letter_reason": "Reason"}
_TIMES = {"messages": "Count", "oldest": "Oldest", "newest": "Newest"}
_TABLES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("Reasons", "by_reason", {**_COMMON, **_TIMES}),
    ("Errors", "by_error", {**_COMMON, "error": "Error", **_TIMES}),
    ("Subjects", "by_subject", {**_COMMON, "subject": "Subject", **_TIMES}),
    ("Hours", "by_hour", {"entity": "Entity", "hour": "Hour", "messages": "Count"}),
    (
        "Samples",
        "samples",
        {
            **_COMMON,
            "sequence_number": "Number",
            "message_id": "Message id",
            "dead_letter_error_description": "Error",
            "body": "Body",
        },
    ),
)


def _print_one(heading: str, rows: Rows, columns: dict[str, str]) -> None:
    shown = [tuple(_cell(row[name]) for name in columns) for row in rows[:_SHOWN]]
    _heading(heading if len(rows) <= _SHOWN else f"{heading} ({_SHOWN} of {len(rows)})")
    print_table(tuple(columns.values()), shown, ("Count", "Number"))


def _print_causes(rows: Rows) -> None:
    from peeklock.spark.pipelines.causes import statement

    _heading("Likely causes: properties that differ between dead-lettered and other messages")
    shown = [
        (
            row["entity"],
            row["dead_letter_reason"],
            statement(row["kind"], row["name"], row["says"], row["value"]),
            _share(row["failed_with"], row["failed"]),
            _share(row["others_with"], row["others"]),
            f"{row['score']:.2f}",
        )
        for row in rows[:_SHOWN]
    ]
    print_table(("Entity", "Reason", "What", "Failed", "Others", "Score"), shown, ("Failed", "Others", "Score"))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _heading(text: str) -> None:
    console().print(f"\n{text}", style="bold")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % of {whole}"


def _cell(value: Any) -> Any:
    from datetime import datetime

    return f"{value:%Y-%m-%d %H:%M:%S}" if isinstance(value, datetime) else value
