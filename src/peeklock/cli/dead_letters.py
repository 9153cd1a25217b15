"""`peeklock dead-letter`: what is in a dead-letter queue and why, back to where it came from, or away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from peeklock.amqp.message import Message
from peeklock.cli.connecting import (
    DEAD_LETTERS,
    LOCAL,
    TRANSFER_DEAD_LETTERS,
    CaFile,
    ConnectionString,
    Subscription,
    address_of,
    administering,
    messaging,
    sentence,
)
from peeklock.cli.failing import Exit, fail
from peeklock.cli.messages import dead_letter_reason, describe, summary
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_table, progress
from peeklock.cli.purging import delete_all, report
from peeklock.cli.receiving import peek_all
from peeklock.cli.sweeping import Holds, Resubmitter, complete, sweep
from peeklock.cli.values import pairs
from peeklock.client import ClientError, Connection, RequestRefused

app = typer.Typer()
group = typer.Typer(help="Look into dead-letter queues, send their messages again, empty them.")
app.add_typer(group, name="dead-letter")

Owner = Annotated[
    str, typer.Argument(metavar="ENTITY", help="The queue, or the subscription as topic/Subscriptions/name.")
]
Transfer = Annotated[
    bool, typer.Option("--transfer", help="The dead-letter queue for messages that could not be forwarded.")
]
Destination = Annotated[
    str | None,
    typer.Option(
        "--to",
        help="Where they are sent.",
        show_default="the queue; of a subscription its topic, and so all its subscriptions",
    ),
]
NewMessageIds = Annotated[
    bool | None,
    typer.Option(
        "--new-message-ids/--keep-message-ids",
        help="Whether each gets a new message id.",
        show_default="keep; to be said when the destination detects duplicates",
    ),
]
FIELDS = ("reason", "description", "message-id", "correlation-id", "subject", "content-type", "session-id")
Where = Annotated[
    list[str] | None,
    typer.Option(
        help=f"Only messages with this: name=value, where the name is {', '.join(FIELDS)}, "
        "or that of an application property. Several times: all must hold."
    ),
]


def _dead_letters(entity: str, subscription: str | None, transfer: bool) -> str:
    return address_of(entity, subscription, TRANSFER_DEAD_LETTERS if transfer else DEAD_LETTERS)


# --- which messages


def _condition(where: list[str] | None) -> Holds:
    wanted = pairs(where or (), "--where")

    def holds(message: Message) -> bool:
        found = describe(message)
        values = {
            "reason": found.get("dead_letter_reason"),
            "description": found.get("dead_letter_description"),
            **{name: found.get(name.replace("-", "_")) for name in FIELDS[2:]},
        }
        properties = found.get("properties", {})
        given = {name: values[name] if name in values else properties.get(name) for name in wanted}
        return all(_text(given[name]) == text for name, text in wanted.items())

    return holds


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)


# --- list


@dataclass
class _Reason:
    count: int = 0
    samples: list[dict[str, Any]] = field(default_factory=list)


@group.command("list")
def list_(
    entity: Owner,
    subscription: Subscription = None,
    transfer: Transfer = False,
    where: Where = None,
    max: Annotated[int, typer.Option(min=0, help="Look at no more than so many; 0 for all.")] = 0,
    samples: Annotated[int, typer.Option(min=0, help="Messages to show for each reason.")] = 3,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Count the messages by the reason they were dead-lettered for, and show some of each. Locks nothing."""
    holds = _condition(where)
    address = _dead_letters(entity, subscription, transfer)
    reasons: dict[str, _Reason] = {}
    with (
        messaging(connection_string, ca_file) as connection,
        connection.management(address) as management,
        progress("looking") as advance,
    ):
        for message in peek_all(management, most=max):
            advance(1)
            if holds(message):
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
    entity: Owner,
    subscription: Subscription = None,
    transfer: Transfer = False,
    to: Destination = None,
    where: Where = None,
    max: Annotated[int, typer.Option(min=0, help="At most so many; 0 for all.")] = 0,
    new_message_ids: NewMessageIds = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Send dead-lettered messages again, each exactly once, without what the service had added to them."""
    holds = _condition(where)
    address = _dead_letters(entity, subscription, transfer)
    owner = address_of(entity, subscription)
    destination = destination_of(owner, to)
    if new_message_ids is None:
        check_duplicate_detection(destination, connection_string, ca_file)
    done = 0
    with messaging(connection_string, ca_file) as connection, progress("resubmitting", max or None) as advance:
        for count in resubmitted(connection, address, destination, holds, max, new_ids=bool(new_message_ids)):
            done += count
            advance(count)
    if json:
        print_json({"resubmitted": done, "to": destination})
    else:
        print(f"resubmitted {done} message{'' if done == 1 else 's'} to {destination}")


def resubmitted(
    connection: Connection, source: str, destination: str, holds: Holds, most: int = 0, *, new_ids: bool = False
) -> Iterator[int]:
    """Send the messages for which `holds` is true again, each exactly once; says how many at each step."""
    return sweep(connection, source, holds, most, Resubmitter(connection, source, destination, new_ids=new_ids))


def destination_of(owner: str, to: str | None) -> str:
    """Where messages go again: a queue itself, and a subscription's topic, as nobody can send to one subscription."""
    if to is not None:
        return to
    at = owner.lower().rfind("/subscriptions/")
    if at < 0:
        return owner
    topic = owner[:at]
    note(f"peeklock: they go to the topic {topic}, for all its subscriptions; --to names another place")
    return topic


def check_duplicate_detection(destination: str, connection_string: str, ca_file: CaFile) -> None:
    """A message that comes again within the window would be accepted and dropped: gone, and nobody would know."""
    from peeklock.client.descriptions import Kind

    with administering(connection_string, ca_file) as client:
        for kind in (Kind.QUEUE, Kind.TOPIC):
            try:
                settings = client.get(kind, destination).settings
            except ClientError as error:
                if isinstance(error, RequestRefused) and error.status == 404:
                    continue
                note(f"peeklock: it is not known whether {destination} detects duplicates: {sentence(error)}")
                return
            if settings.get("RequiresDuplicateDetection"):
                window = settings.get("DuplicateDetectionHistoryTimeWindow")
                fail(
                    f"{destination} detects duplicates, and drops what was sent to it within the last {window} already:"
                    " say --new-message-ids, or --keep-message-ids if that is what should happen",
                    Exit.USAGE,
                )
            return


# --- purge


@group.command()
def purge(
    entity: Owner,
    subscription: Subscription = None,
    transfer: Transfer = False,
    where: Where = None,
    yes: Yes = False,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Delete dead-lettered messages: all, or those that --where names."""
    address = _dead_letters(entity, subscription, transfer)
    holds = _condition(where)
    confirm(f"Delete {'all' if not where else 'these'} messages in {address}?", yes)
    with messaging(connection_string, ca_file) as connection:
        swept = sweep(connection, address, holds, 0, complete) if where else delete_all(connection, address)
        report(address, swept, json)
