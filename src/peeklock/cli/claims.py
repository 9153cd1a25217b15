"""`peeklock claim`: list the claims of an entity and release them.

A claim never expires. If its client does not run again, the claim keeps its messages until this command releases them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from peeklock.amqp.types import Int
from peeklock.cli.connecting import (
    LOCAL,
    CaFile,
    ConnectionString,
    FromDeadLetters,
    QueueOrSubscription,
    Subscription,
    address_of,
    messaging,
)
from peeklock.cli.failing import Exit, fail
from peeklock.cli.messages import format_moment
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_table, progress
from peeklock.client import Connection
from peeklock.client.management import Management
from peeklock.entities.names import DEAD_LETTER_SUFFIX

app = typer.Typer()
group = typer.Typer(help="List claims, and release claims of clients that no longer run.")
app.add_typer(group, name="claim")

CAPABILITY: Final = "peeklock:claims"
_PAGE: Final = 100
"""Claims in one request."""
_SHOWN: Final = 3
"""Ranges or session ids in a row of the table; further ones are counted only."""
_RELEASE_TIMEOUT: Final = 300.0
"""Seconds for the release of one claim, which may hold a million messages."""

Range = tuple[int, int]
"""First and last sequence number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim as the broker lists it."""

    name: str
    id: UUID
    since: int
    """When the claim was made, in Unix milliseconds."""
    messages: int
    size: int
    ranges: list[Range] | None
    """None for an entity with sessions."""
    sessions: dict[str, list[Range]] | None
    """Ranges by session id; None for an entity without sessions."""
    is_owned: bool
    """Whether the client that claims under the name is connected."""

    def to_json(self) -> dict[str, Any]:
        places: dict[str, Any] = {"ranges": self.ranges}
        if self.sessions is not None:
            places = {"sessions": [{"session_id": id, "ranges": each} for id, each in self.sessions.items()]}
        return {
            "name": self.name,
            "id": str(self.id),
            "since": format_moment(self.since),
            "messages": self.messages,
            "bytes": self.size,
            **places,
            "owner_connected": self.is_owned,
        }


# --- list


@group.command("list")
def list_(
    entity: QueueOrSubscription,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    name: Annotated[str | None, typer.Option(help="List only claims with this name.")] = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """List claims, oldest first: messages and bytes, creation time, and whether the owner is connected."""
    address = address_of(entity, subscription, DEAD_LETTER_SUFFIX if dead_letter else None)
    with _claim_management(connection_string, ca_file, address) as management:
        claims = list(claims_of(management, name))
    if json:
        print_json([claim.to_json() for claim in claims])
    elif claims:
        columns = ("Name", "Id", "Since", "Age", "Messages", "Bytes", "Owner connected", "Where")
        print_table(columns, map(_row, claims), ("Age", "Messages", "Bytes"))
    else:
        note("no claims")


def _row(claim: Claim) -> tuple[Any, ...]:
    since = format_moment(claim.since).replace("T", " ")
    where = _short_ranges(claim.ranges or ()) if claim.sessions is None else _short_sessions(list(claim.sessions))
    age = _short_age(time.time() - claim.since / 1000)
    return (claim.name, claim.id, since, age, claim.messages, claim.size, claim.is_owned, where)


def _short_ranges(ranges: Sequence[Range]) -> str:
    shown = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:_SHOWN]]
    return ", ".join([*shown, *_more(len(ranges))])


def _short_sessions(ids: Sequence[str]) -> str:
    sessions = "session" if len(ids) == 1 else "sessions"
    return f"{sessions} {', '.join([*ids[:_SHOWN], *_more(len(ids))])}"


def _more(count: int) -> list[str]:
    return [f"and {count - _SHOWN} more"] if count > _SHOWN else []


def _short_age(seconds: float) -> str:
    """Format an age in its largest unit. A difference between the clocks does not make it negative."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


# --- release


@group.command()
def release(
    entity: QueueOrSubscription,
    subscription: Subscription = None,
    dead_letter: FromDeadLetters = False,
    id: Annotated[str | None, typer.Option("--id", help="Release the claim with this id.")] = None,
    name: Annotated[str | None, typer.Option(help="Release all claims with this name.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Release all claims of the entity.")] = False,
    yes: Yes = False,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Release claims: their messages become active again, and their client can no longer remove them."""
    if (id is not None) + (name is not None) + every != 1:
        fail("give exactly one of --id, --name and --all")
    wanted = None if id is None else _uuid(id)
    address = address_of(entity, subscription, DEAD_LETTER_SUFFIX if dead_letter else None)
    with _claim_management(connection_string, ca_file, address) as management:
        claims = [claim for claim in claims_of(management, name) if wanted is None or claim.id == wanted]
    if not claims and not every:
        identity = f"id {id}" if name is None else f"name '{name}'"
        fail(f"{address} has no claim with the {identity}", Exit.NOT_FOUND)
    released = messages = 0
    if claims:
        _warn_of_owners(claims)
        confirm(_question(claims, address), yes)
        # A second connection: the broker may have closed the first one as idle while the user was answering.
        with _claim_management(connection_string, ca_file, address) as management:
            released, messages = _release_all(management, claims)
    if json:
        print_json({"claims": released, "messages": messages})
    else:
        print(f"released {_count(released, 'claim')} with {_count(messages, 'message')} of {address}")


def _warn_of_owners(claims: Sequence[Claim]) -> None:
    names = dict.fromkeys(claim.name for claim in claims if claim.is_owned)
    for name in names:
        note(
            f"peeklock: the client that claims under '{name}' is connected and may have processed these messages "
            "already; they will be received again. Stop the client first."
        )


def _question(claims: Sequence[Claim], address: str) -> str:
    messages = _count(sum(claim.messages for claim in claims), "message")
    if len(claims) == 1:
        return f"Release the claim {claims[0].id} with the name '{claims[0].name}' in {address}, with {messages}?"
    return f"Release {_count(len(claims), 'claim')} in {address}, with {messages}?"


def _release_all(management: Management, claims: Sequence[Claim]) -> tuple[int, int]:
    """Release claims and return the numbers of claims and messages released, without claims that have ended since."""
    released = messages = 0
    with progress("releasing", len(claims)) as advance:
        for claim in claims:
            body = {"claim-name": claim.name, "claim-id": claim.id}
            answer = management.request("peeklock:release-claim", body, timeout=_RELEASE_TIMEOUT)
            if answer:
                released += 1
                messages += int(answer["message-count"])
            advance(1)
    return released, messages


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        fail(f"--id: '{text}' is not the id of a claim; `peeklock claim list` shows the ids")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# --- requests


@contextmanager
def _claim_management(connection_string: str, ca_file: CaFile, address: str) -> Iterator[Management]:
    with messaging(connection_string, ca_file) as connection:
        _check_capability(connection)
        with connection.management(address) as management:
            yield management


def _check_capability(connection: Connection) -> None:
    if CAPABILITY not in connection.capabilities:
        host = connection.endpoint.host
        fail(f"{host} does not offer claims; only Peeklock does", Exit.FAILED)


def claims_of(management: Management, name: str | None = None) -> Iterator[Claim]:
    """Read all claims, or all claims with one name, oldest first."""
    skip = 0
    while True:
        body: dict[str, Any] = {"skip": Int(skip), "top": Int(_PAGE)}
        if name is not None:
            body["claim-name"] = name
        page = management.request("peeklock:list-claims", body)
        if not page:
            return
        yield from map(_read, page["claims"])
        skip = page["skip"]


def _read(claim: dict[str, Any]) -> Claim:
    sessions = claim.get("sessions")
    return Claim(
        name=claim["claim-name"],
        id=claim["claim-id"],
        since=int(claim["since"]),
        messages=claim["message-count"],
        size=claim["bytes"],
        ranges=None if sessions is not None else _pairs(claim["ranges"]),
        sessions=None if sessions is None else {each["session-id"]: _pairs(each["ranges"]) for each in sessions},
        is_owned=claim["is-owned"],
    )


def _pairs(numbers: Sequence[int]) -> list[Range]:
    return list(zip(numbers[::2], numbers[1::2], strict=True))
