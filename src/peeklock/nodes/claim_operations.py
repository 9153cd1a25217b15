"""Operations on claims: a client sets messages aside for itself, can read them several times, and then removes them.

Only Peeklock has these operations. The broker's open offers the capability `peeklock:claims`.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.types import Array, Int, Symbol, Timestamp
from peeklock.broker.claim_records import Parts
from peeklock.broker.claims import Claim, Request, spans_of
from peeklock.broker.errors import BrokerError, InvalidProperty
from peeklock.broker.packed import pack
from peeklock.entities.authorization import Right
from peeklock.limits.amqp import MAX_PEEKED_BYTES
from peeklock.limits.broker import (
    MAX_CLAIM_NAME,
    MAX_CLAIM_RANGES,
    MAX_CLAIM_REQUEST_BYTES,
    MAX_CLAIM_WAIT_MS,
    MAX_CLAIMED_BYTES,
    MAX_CLAIMED_MESSAGES,
    MAX_LISTED_CLAIMS,
)
from peeklock.nodes.fields import MAX_SKIP, Field, Kind, check_page
from peeklock.nodes.operation import Call, Operation
from peeklock.nodes.read_slot import Leave
from peeklock.store.base import MAX_NUMBER, Run, StoredMessage

CLAIMS: Final = Symbol("peeklock:claims")
"""The capability that announces these operations."""


def claim_messages(call: Call) -> None:
    arguments, container = call.arguments, call.queue
    container.check_receiving()
    request = Request(
        arguments["claim-id"].bytes,
        _name(arguments["claim-name"]),
        count=_within(call, "message-count", 1, MAX_CLAIMED_MESSAGES, 0),
        max_bytes=_within(call, "max-bytes", 1, MAX_CLAIMED_BYTES, MAX_CLAIMED_BYTES),
        through=_within(call, "through", 1, MAX_NUMBER, MAX_NUMBER),
        sessions=_within(call, "session-count", 1, MAX_CLAIM_RANGES, MAX_CLAIM_RANGES),
        wait_ms=_within(call, "wait", 0, MAX_CLAIM_WAIT_MS, 0),
        linger_ms=_within(call, "linger", 0, MAX_CLAIM_WAIT_MS, 0),
        done=partial(_claimed, call),
    )
    claims = container.claims
    if claims.add_holder(call.link):
        call.peer.when_detached(call.link, partial(claims.remove_holder, call.link))
    claims.claim(request, arguments["owner"].bytes, call.link)


def _claimed(call: Call, outcome: Claim | BrokerError | None) -> None:
    if isinstance(outcome, BrokerError):
        call.fail(outcome)
    elif outcome is None:
        call.answer({}, 204)
    else:
        call.answer(_amounts(outcome))


def read_packed(call: Call) -> None:
    container = call.queue
    _spans(call)  # check the ranges now
    numbers = array("q", call.arguments.pop("ranges"))  # a compact form, while the request waits for its turn
    most = min(_within(call, "max-bytes", 1, MAX_CLAIMED_BYTES, MAX_PEEKED_BYTES), MAX_PEEKED_BYTES)

    def read(leave: Leave, messages: list[StoredMessage] | BrokerError, last: int) -> None:
        if isinstance(messages, BrokerError):
            call.fail(messages)
        else:
            packed = pack(messages, container.holds_copies)
            call.answer({"message-count": Int(len(messages)), "last": last, "messages": packed})
        leave()

    def start(leave: Leave) -> None:
        call.check_room()
        container.read_packed(spans_of(numbers), most, partial(read, leave))

    call.peer.reads.enter(start, call.fail)


def remove_claim(call: Call) -> None:
    arguments = call.arguments
    name, id = _name(arguments["claim-name"]), arguments["claim-id"].bytes
    call.queue.claims.remove(name, id, _spans(call), partial(_ended, call))


def release_claim(call: Call) -> None:
    arguments = call.arguments
    name, id = _name(arguments["claim-name"]), arguments["claim-id"].bytes
    call.queue.claims.release(name, id, _spans(call), partial(_ended, call))


def _ended(call: Call, outcome: int | BrokerError | None) -> None:
    if isinstance(outcome, BrokerError):
        call.fail(outcome)
    elif outcome is None:
        call.answer({}, 204)
    else:
        call.answer({"message-count": outcome})


def list_claims(call: Call) -> None:
    arguments = call.arguments
    skip, top = check_page(arguments, MAX_LISTED_CLAIMS)
    name = arguments["claim-name"]
    claims = call.queue.claims
    call.check_room()
    listed: list[dict[str, Any]] = []
    runs = 0
    for claim in claims.of(None if name is None else _name(name))[skip : skip + top]:
        runs += len(claim.runs)
        if listed and runs > MAX_CLAIM_RANGES:
            break  # an answer must not be larger than that for the largest claim
        listed.append(_described(claim, claims.is_owned(claim.name)))
    if listed:
        call.answer({"skip": Int(min(skip + len(listed), MAX_SKIP)), "claims": listed})
    else:
        call.answer({}, 204)


def _described(claim: Claim, is_owned: bool) -> dict[str, Any]:
    named = {"claim-name": claim.name, "claim-id": UUID(bytes=claim.id)}
    return {**named, **_amounts(claim), "is-owned": is_owned}


def _amounts(claim: Claim) -> dict[str, Any]:
    amounts: dict[str, Any] = {"message-count": claim.count, "bytes": claim.size, "since": Timestamp(claim.since)}
    return {**amounts, **_places(claim.parts)}


def _places(parts: Parts) -> dict[str, Any]:
    if None in parts:
        return {"ranges": _ranges(parts[None])}
    return {"sessions": [{"session-id": id, "ranges": _ranges(runs)} for id, runs in parts.items()]}


def _ranges(runs: list[Run]) -> Array:
    return Array([number for run in runs for number in (run.first, run.last)], int)


def _name(name: str) -> str:
    if not 0 < len(name) <= MAX_CLAIM_NAME:
        raise InvalidProperty(f"'claim-name' must have 1 to {MAX_CLAIM_NAME} characters.")
    return name


def _within(call: Call, key: str, least: int, most: int, default: int) -> int:
    value = call.arguments[key]
    if value is None:
        return default
    if not least <= value <= most:
        raise InvalidProperty(f"'{key}' must be between {least} and {most}.")
    return int(value)


def _spans(call: Call) -> list[tuple[int, int]] | None:
    numbers = call.arguments["ranges"]
    if numbers is None:
        return None
    if len(numbers) > 2 * MAX_CLAIM_RANGES:
        raise InvalidProperty(f"'ranges' has {len(numbers) // 2} ranges; at most {MAX_CLAIM_RANGES} are allowed.")
    return spans_of(numbers)


_CLAIM_NAME = Field("claim-name", Kind.STRING, note=f"up to {MAX_CLAIM_NAME} characters")
_CLAIM_ID = Field("claim-id", Kind.UUID)
_PAIRS = "first and last sequence number, in turn"
_RANGES = Field("ranges", Kind.LONGS, required=False, note=_PAIRS)
_AMOUNTS = (
    Field("message-count", Kind.LONG),
    Field("bytes", Kind.LONG),
    Field("since", Kind.TIMESTAMP),
    Field("ranges", Kind.LONGS, required=False, note=f"{_PAIRS}; for an entity without sessions"),
    Field(
        "sessions",
        Kind.MAPS,
        required=False,
        note="for an entity with sessions",
        keys=(Field("session-id", Kind.STRING), Field("ranges", Kind.LONGS, note=_PAIRS)),
    ),
)
_ENDING = (
    _CLAIM_NAME,
    _CLAIM_ID,
    Field("ranges", Kind.LONGS, required=False, note=f"{_PAIRS}; default: all messages of the claim"),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="peeklock:claim-messages",
        summary="Claim active messages under a name, until they are removed or released. 204 when there are none.",
        right=Right.LISTEN,
        request=(
            _CLAIM_NAME,
            Field("claim-id", Kind.UUID, note="chosen by the client; a repeated request gets the same answer"),
            Field("owner", Kind.UUID, note="the id of the client; only one connected client may claim under a name"),
            Field("message-count", Kind.INT, note=f"the most messages to claim, up to {MAX_CLAIMED_MESSAGES}"),
            Field("max-bytes", Kind.LONG, required=False, note="the message that reaches this size is the last"),
            Field("through", Kind.LONG, required=False, note="the highest sequence number that may be claimed"),
            Field(
                "wait",
                Kind.INT,
                required=False,
                note=f"milliseconds to wait for a first message, up to {MAX_CLAIM_WAIT_MS}",
            ),
            Field(
                "linger",
                Kind.INT,
                required=False,
                note="milliseconds to wait for more messages, if there are fewer than `message-count`",
            ),
            Field("session-count", Kind.INT, required=False, note="the most sessions to claim; each is claimed whole"),
        ),
        response=_AMOUNTS,
        run=claim_messages,
        max_request_bytes=MAX_CLAIM_REQUEST_BYTES,
    ),
    Operation(
        name="peeklock:read-packed",
        summary="Read messages in any state by their sequence numbers, as many as fit into one answer.",
        right=Right.LISTEN,
        request=(
            Field("ranges", Kind.LONGS, note=_PAIRS),
            Field(
                "max-bytes",
                Kind.INT,
                required=False,
                note=f"the size of the messages, up to {MAX_PEEKED_BYTES}; at least one message is returned",
            ),
        ),
        response=(
            Field("message-count", Kind.INT),
            Field("last", Kind.LONG, note="the answer is complete up to this number; continue after it"),
            Field(
                "messages",
                Kind.BINARY,
                note="for each message its length (four bytes, big-endian), then the message as in a peek",
            ),
        ),
        run=read_packed,
    ),
    Operation(
        name="peeklock:remove-claim",
        summary="Remove all or some messages of a claim, with one commit. 204 when there is no such claim.",
        right=Right.LISTEN,
        request=_ENDING,
        response=(Field("message-count", Kind.LONG, note="how many were removed"),),
        run=remove_claim,
        audited=True,
    ),
    Operation(
        name="peeklock:release-claim",
        summary="Make all or some messages of a claim active again. 204 when there is no such claim.",
        right=Right.LISTEN,
        request=_ENDING,
        response=(Field("message-count", Kind.LONG, note="how many were released"),),
        run=release_claim,
        audited=True,
    ),
    Operation(
        name="peeklock:list-claims",
        summary="List the claims, the oldest first. 204 when there are none.",
        right=Right.LISTEN,
        request=(
            Field("claim-name", Kind.STRING, required=False, note="only claims of that name"),
            Field("skip", Kind.INT),
            Field("top", Kind.INT, note=f"at most {MAX_LISTED_CLAIMS} are listed"),
        ),
        response=(
            Field("skip", Kind.INT, note="the `skip` of the next page"),
            Field(
                "claims",
                Kind.MAPS,
                keys=(
                    Field("claim-name", Kind.STRING),
                    Field("claim-id", Kind.UUID),
                    *_AMOUNTS,
                    Field("is-owned", Kind.BOOLEAN, note="whether the client that owns the name is connected"),
                ),
            ),
        ),
        run=list_claims,
    ),
)
