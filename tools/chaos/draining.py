"""The end of a run: all remaining messages are received and completed, so that a message never received is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from peeklock.client import ClientError, LinkClosed, Message
from tools.chaos import bodies, claiming
from tools.chaos.client import Client, Taken
from tools.chaos.entities import RECEIVED_FROM, WITH_CLAIMS, WITH_SESSIONS, dead_letters
from tools.chaos.history import Disposition, Leftover, now

_PAGE: Final = 500
_AMOUNT: Final = 50
_WAIT: Final = 0.3
_ACTIVE, _DEFERRED, SCHEDULED_STATE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that was peeked."""

    entity: str
    number: int
    id: str
    state: int
    session: str | None
    message: Message = field(repr=False)


def drain(client: Client, seconds: float) -> list[Leftover]:
    """Receive and complete all messages. Returns those left after so many seconds without progress."""
    deadline = time.monotonic() + seconds
    fewest: int | None = None
    while True:
        left: list[Seen] = []
        try:
            for entity in WITH_CLAIMS:
                release_claims(client, entity)
            for entity in RECEIVED_FROM:
                for place in (entity, dead_letters(entity)):
                    found = list(peek(client, place))
                    if found:
                        empty(client, place, found)
                        left += peek(client, place)
            if not left:
                return []
            if fewest is None or len(left) < fewest:
                fewest = len(left)
                deadline = time.monotonic() + seconds
        except ClientError:
            client.drop()
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            return [
                Leftover(entity=each.entity, id=each.id, number=each.number, state=each.state, start=now(), end=now())
                for each in left
            ]
        time.sleep(0.2)


def release_claims(client: Client, entity: str) -> None:
    """Release the claims of clients that have stopped."""
    listed = claiming.list_claims(client, entity)
    for id, name in listed.names.items():
        claiming.end(client, entity, name, id, Disposition.RELEASE, ())


def peek(client: Client, entity: str) -> Iterator[Seen]:
    """Peek all messages of an entity, in any state."""
    after = 0
    while page := client.management(entity).peek(after + 1, _PAGE):
        for message in page:
            annotations = message.message_annotations or {}
            after = int(annotations["x-opt-sequence-number"])
            session = message.properties.group_id if message.properties is not None else None
            yield Seen(entity, after, bodies.id_of(message), annotations["x-opt-message-state"], session, message)


def empty(client: Client, entity: str, found: list[Seen]) -> None:
    """Receive and complete the active and deferred messages among those found."""
    deferred = [seen for seen in found if seen.state == _DEFERRED]
    if entity in WITH_SESSIONS:
        _empty_sessions(client, entity, {seen.session for seen in found if seen.state == _ACTIVE}, deferred)
        return
    if any(seen.state == _ACTIVE for seen in found):
        while taken := client.receive(entity, _AMOUNT, _WAIT):
            _complete(client, taken)
    for seen in deferred:
        _complete(client, client.fetch(entity, [seen.number]))


def _empty_sessions(client: Client, entity: str, active: set[str | None], deferred: list[Seen]) -> None:
    for session in active | {seen.session for seen in deferred}:
        assert session is not None
        try:
            held = client.accept(entity, session, 1.0)
        except LinkClosed:
            continue  # its lock has not expired yet
        while taken := client.receive_of(held, _AMOUNT, _WAIT):
            _complete(client, taken)
        for seen in deferred:
            if seen.session == session:
                _complete(client, client.fetch(entity, [seen.number], held))
        held.receiver.close()


def _complete(client: Client, taken: list[Taken]) -> None:
    for each in taken:
        client.settle(each, Disposition.COMPLETE)
