"""`peeklock dead-letter`: list dead-lettered messages by reason, resubmit them, or delete them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from peeklock.amqp.message import Message
from peeklock.cli.connecting import (
    LOCAL,
    CaFile,
    ConnectionString,
    QueueOrSubscription,
    Subscription,
    address_of,
    administering,
    error_text,
    messaging,
)
from peeklock.cli.failing import Exit, fail
from peeklock.cli.messages import dead_letter_reason, describe, summary
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_table, progress
from peeklock.cli.purging import delete_all, report
from peeklock.cli.receiving import peek_all
from peeklock.cli.sweeping import Predicate, Resubmitter, complete, sweep
from peeklock.cli.values import pairs
from peeklock.client import ClientError, Connection, RequestRefused
from peeklock.entities.names import DEAD_LETTER_SUFFIX, TRANSFER_DEAD_LETTER_SUFFIX, split_subscription

app = typer.Typer()
group = typer.Typer(help="List, resubmit and delete dead-lettered messages.")
app.add_typer(group, name="dead-letter")

Transfer = Annotated[
    bool,
    typer.Option(
        "--transfer", help="Use the transfer dead-letter queue, which has the messages that could not be forwarded."
    ),
]
Destination = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="The queue or topic to send the messages to.",
        show_default="the queue itself; for a subscription its topic, and so all subscriptions of the topic",
    ),
]
NewMessageIds = Annotated[
    bool | None,
    typer.Option(
        "--new-message-ids/--keep-message-ids",
        help="Give each message a new message id, or keep its id.",
        show_default="keep; required if the destination detects duplicates",
    ),
]
FIELDS = ("reason", "description", "message-id", "correlation-id", "subject", "content-type", "session-id")
Where = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Select messages by name=value. The name is {', '.join(FIELDS)}, "
        "or an application property. If repeated, all must match."
    ),
]


def _dead_letters(entity: str, subscription: str | None, transfer: bool) -> str:
    return address_of(entity, subscription, TRANSFER_DEAD_LETTER_SUFFIX if transfer else DEAD_LETTER_SUFFIX)


# --- selection


def _predicate(where: list[str] | None) -> Predicate:
    wanted = pairs(where or (), "--where")

    def matches(message: Message) -> bool:
        found = describe(message)
        values = {
            "reason": found.get("dead_letter_reason"),
            "description": found.get("dead_letter_description"),
            **{name: found.get(name.replace("-", "_")) for name in FIELDS[2:]},
        }
        properties = found.get("properties", {})
        given = {name: values[name] if name in values else properties.get(name) for name in wanted}
        return all(_text(given[name]) == text for name, text in wanted.items())

    return matches


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- list


@dataclass
class _Reason:
    count: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)


@group.command("list")
def list_(
    entity: QueueOrSubscription,
    subscription: Subscription = None,
    transfer: Transfer = False,
    where: Where = None,
    max: Annotated[int, typer.Option(min=0, help="Read at most this many messages; 0 for all.")] = 0,
    samples: Annotated[int, typer.Option(min=0, help="How many messages to show for each reason.")] = 3,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Count dead-lettered messages by reason, and show some messages of each reason. No message is locked."""
    matches = _predicate(where)
    address = _dead_letters(entity, subscription, transfer)
    reasons: dict[str, _Reason] = {}
    with (
        messaging(connection_string, ca_file) as connection,
        connection.management(address) as management,
        progress("reading") as advance,
    ):
        for message in peek_all(management, most=max):
            advance(1)
            if matches(message):
                reason = reasons.setdefault(dead_letter_reason(message), _Reason())
                reason.count += 1
                if len(reason.samples) < samples:
                    reason.samples.append(describe(message))
    ordered = sorted(reasons.items(), key=lambda item: (-item[1].count, item[0]))
    if json:
        shown = [{"reason": name, "count": each.count, "samples": each.samples} for name, each in ordered]
        print_json({"entity": address, "count": sum(each.count for each in reasons.values()), "reasons": shown})
    elif ordered:
        _print_reasons(ordered)
    else:
        note("no messages")


def _print_reasons(reasons: list[tuple[str, _Reason]]) -> None:
    columns = ("Reason", "Count", "Number", "Message id", "Description", "Body")
    rows: list[tuple[Any, ...]] = []
    for name, reason in reasons:
        first: tuple[Any, ...] = (name or "(none)", reason.count)
        for found in reason.samples or [{}]:
            names = ("sequence_number", "message_id", "dead_letter_description")
            rows.append((*first, *(found.get(each) for each in names), summary(found)))
            first = ("", "")
    print_table(columns, rows, ("Count", "Number"))


# --- resubmit


@group.command()
def resubmit(
    entity: QueueOrSubscription,
    subscription: Subscription = None,
    transfer: Transfer = False,
    to: Destination = None,
    where: Where = None,
    max: Annotated[int, typer.Option(min=0, help="Resubmit at most this many messages; 0 for all.")] = 0,
    new_message_ids: NewMessageIds = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Send dead-lettered messages again, each exactly once, without the properties that the service added to them."""
    matches = _predicate(where)
    address = _dead_letters(entity, subscription, transfer)
    owner = address_of(entity, subscription)
    destination = destination_of(owner, to)
    if new_message_ids is None:
        check_duplicate_detection(destination, connection_string, ca_file)
    done = 0
    with messaging(connection_string, ca_file) as connection, progress("resubmitting", max or None) as advance:
        for count in resubmit_all(connection, address, destination, matches, max, new_ids=bool(new_message_ids)):
            done += count
            advance(count)
    if json:
        print_json({"resubmitted": done, "to": destination})
    else:
        print(f"resubmitted {done} message{'' if done == 1 else 's'} to {destination}")


def resubmit_all(
    connection: Connection, source: str, destination: str, matches: Predicate, most: int = 0, *, new_ids: bool = False
) -> Iterator[int]:
    """Resubmit the messages that match, each exactly once. Yields the number of messages of each step."""
    return sweep(connection, source, matches, most, Resubmitter(connection, source, destination, new_ids=new_ids))


def destination_of(owner: str, to: str | None) -> str:
    """The destination of a resubmission: the queue, or the topic, since clients cannot send to a subscription."""
    if to is not None:
        return to
    parts = split_subscription(owner)
    if parts is None:
        return owner
    topic, _ = parts
    note(f"peeklock: sending to the topic {topic}, and so to all its subscriptions; use --to for another destination")
    return topic


def check_duplicate_detection(destination: str, connection_string: str, ca_file: CaFile) -> None:
    """Refuse a destination with duplicate detection.

    It would accept and drop a message whose id it received within the window, and the message would be lost.
    """
    from peeklock.client.descriptions import Kind

    with administering(connection_string, ca_file) as client:
        for kind in (Kind.QUEUE, Kind.TOPIC):
            try:
                settings = client.get(kind, destination).settings
            except ClientError as error:
                if isinstance(error, RequestRefused) and error.status == 404:
                    continue
                note(f"peeklock: cannot determine whether {destination} detects duplicates: {error_text(error)}")
                return
            if settings.get("RequiresDuplicateDetection"):
                window = settings.get("DuplicateDetectionHistoryTimeWindow")
                fail(
                    f"{destination} detects duplicates and drops messages whose id it received within {window}: "
                    "give --new-message-ids, or --keep-message-ids to have them dropped",
                    Exit.USAGE,
                )
            return


# --- purge


@group.command()
def purge(
    entity: QueueOrSubscription,
    subscription: Subscription = None,
    transfer: Transfer = False,
    where: Where = None,
    yes: Yes = False,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Delete dead-lettered messages: all, or the messages that --where selects."""
    address = _dead_letters(entity, subscription, transfer)
    matches = _predicate(where)
    confirm(f"Delete {'all messages' if not where else 'the messages that --where selects'} in {address}?", yes)
    with messaging(connection_string, ca_file) as connection:
        swept = sweep(connection, address, matches, 0, complete) if where else delete_all(connection, address)
        report(address, swept, json)
