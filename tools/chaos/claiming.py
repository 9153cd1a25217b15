"""A client's operations on claims, each recorded in the history: claim, list, read, remove and release."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.errors import AmqpError
from peeklock.client import Array, Int, Message
from tools.chaos.client import Client
from tools.chaos.history import (
    Claim,
    ClaimEnd,
    ClaimList,
    ClaimRead,
    Delivery,
    Disposition,
    Outcome,
    Settlement,
    Way,
    now,
)

_PAGE: Final = 100
_OPERATIONS: Final = {Disposition.COMPLETE: "remove-claim", Disposition.RELEASE: "release-claim"}


def claim(client: Client, entity: str, name: str, owner: UUID, id: UUID, count: int, wait_ms: int) -> Claim:
    """Claim messages. A request with the id of an existing claim returns that claim."""
    body = {"claim-name": name, "claim-id": id, "owner": owner, "message-count": Int(count), "wait": Int(wait_ms)}
    management = client.management(entity)

    def record(answer: dict[str, Any] | None, **span: Any) -> Claim:
        return Claim(entity=entity, name=name, id=str(id), numbers=tuple(_numbers(answer or {})), **span)

    return client.recorded(lambda: management.request("peeklock:claim-messages", body), record)


def list_claims(client: Client, entity: str, name: str | None = None) -> ClaimList:
    """Return all claims of an entity, or all with one name."""
    start = now()
    found: dict[str, list[int]] = {}
    names: dict[str, str] = {}
    skip = 0
    while True:
        body: dict[str, Any] = {"skip": Int(skip), "top": Int(_PAGE)}
        if name is not None:
            body["claim-name"] = name
        page = client.management(entity).request("peeklock:list-claims", body)
        if not page:
            break
        for each in page["claims"]:
            found[str(each["claim-id"])] = _numbers(each)
            names[str(each["claim-id"])] = each["claim-name"]
        skip = page["skip"]
    listed = ClaimList(entity=entity, name=name, claims=found, names=names, start=start, end=now())
    client.history.add(listed)
    return listed


def read(client: Client, entity: str, id: str, numbers: Sequence[int]) -> list[Delivery]:
    """Read the messages of a claim with these numbers, given as alternating first and last numbers."""
    start = now()
    deliveries: list[Delivery] = []
    left = list(numbers)
    while left:
        page = client.management(entity).request("peeklock:read-packed", {"ranges": Array(left, int)})
        end = now()
        for encoded in _unpacked(page["messages"]):
            try:
                message = Message.decode(encoded)
                deliveries.append(client.delivery(message, entity, Way.CLAIM, start, end, None))
            except AmqpError as error:
                client.record_garbage(entity, error)
        left = _behind(left, page["last"])
    found = tuple(delivery.number for delivery in deliveries)
    client.history.add(ClaimRead(entity=entity, claim=id, numbers=tuple(numbers), found=found, start=start, end=now()))
    return deliveries


def end(
    client: Client,
    entity: str,
    name: str,
    id: str,
    disposition: Disposition,
    deliveries: Sequence[Delivery],
    numbers: Sequence[int] = (),
) -> ClaimEnd:
    """Remove (COMPLETE) or release messages of a claim: all, or only these numbers."""
    body: dict[str, Any] = {"claim-name": name, "claim-id": UUID(id)}
    if numbers:
        body["ranges"] = Array(numbers, int)
    management = client.management(entity)

    def record(answer: dict[str, Any] | None, **span: Any) -> ClaimEnd:
        ended = ClaimEnd(claim=id, disposition=disposition, numbers=tuple(numbers), was_there=bool(answer), **span)
        # If there is no such claim, an earlier request without an answer may have ended it.
        outcome = Outcome.UNKNOWN if ended.outcome is Outcome.OK and not answer else ended.outcome
        for delivery in deliveries:
            settled = partial(Settlement, delivery=delivery.name, disposition=disposition, outcome=outcome)
            client.history.add(settled(start=ended.start, end=ended.end, error=ended.error))
        return ended

    return client.recorded(lambda: management.request(f"peeklock:{_OPERATIONS[disposition]}", body), record)


def _numbers(answer: dict[str, Any]) -> list[int]:
    if "sessions" in answer:
        return sorted(number for each in answer["sessions"] for number in each["ranges"])
    return list(answer.get("ranges", ()))


def _unpacked(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        (size,) = struct.unpack_from(">I", packed, at)
        yield packed[at + 4 : at + 4 + size]
        at += 4 + size


def _behind(numbers: Sequence[int], last: int) -> list[int]:
    """Return the part of the ranges after that number."""
    left: list[int] = []
    for first, end in zip(numbers[::2], numbers[1::2], strict=True):
        if end > last:
            left += (max(first, last + 1), end)
    return left
