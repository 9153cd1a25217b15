"""Full entities and disks: clients with all rights that fill entities and the disk."""

from __future__ import annotations

import json
import time
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import Accepted, Attach, Disposition, Error, Modified, Rejected, Transfer
from peeklock.amqp.types import Array, Int, Symbol, Timestamp, UByte
from peeklock.client.connection import SESSION_FILTER
from tools.hostile.attack import MIB, attack, require
from tools.hostile.attacks.memory import LARGE
from tools.hostile.lines import Line, frame
from tools.hostile.small_disk import LOW_MIB
from tools.hostile.victim import (
    CLOSE,
    FULL,
    FULL_SESSIONS,
    FULL_TOPIC,
    OTHER,
    SESSIONS,
    SUBSCRIPTION,
    Requests,
    Transacting,
    Victim,
    credit,
    message,
    outcomes,
    receiver,
    status_of,
    transfer,
)

QUOTA: Final = "amqp:resource-limit-exceeded"
BUSY: Final = "com.microsoft:server-busy"
SMALL: Final = "small"
"""The broker with entities of 1 MB and a small disk."""
LATER: Final = Timestamp(253_370_764_800_000)
RECOVERY_SECONDS: Final = 60.0


def _refusal(state: Any) -> str | None:
    """Return the condition of a rejected outcome; None if it is not rejected."""
    return str(state.error.condition) if isinstance(state, Rejected) and state.error is not None else None


def _answers(line: Line, count: int) -> list[Any]:
    """Return the outcomes of the next deliveries, in order."""
    found: dict[int, Any] = {}
    while len(found) < count:
        disposition = line.expect(Disposition)
        last = disposition.first if disposition.last is None else disposition.last
        found |= dict.fromkeys(range(disposition.first, last + 1), disposition.state)
    return [found[each] for each in sorted(found)]


def _send(victim: Victim, address: str, *bodies: bytes) -> list[Any]:
    """Send messages; returns their outcomes."""
    with victim.sending(address) as line:
        line.send(*[transfer(number, body) for number, body in enumerate(bodies)])
        found = outcomes(line, len(bodies))
        line.send(CLOSE)
        line.answer()
    return found


def _require_sent(victim: Victim, address: str, *bodies: bytes) -> None:
    require(all(isinstance(each, Accepted) for each in _send(victim, address, *bodies)), f"'{address}' takes nothing")


def _require_full(victim: Victim, address: str, body: bytes) -> None:
    found = _refusal(_send(victim, address, body)[0])
    require(found == QUOTA, f"a message to '{address}', which is full, was answered with {found}")


def _require_neighbours_served(victim: Victim) -> None:
    _require_sent(victim, OTHER, message())
    require(victim.drain(OTHER) == 1, "a message of another queue is lost")


def _taken(line: Line, count: int) -> list[Transfer]:
    line.send(credit(count, window=100_000))
    return [line.expect(Transfer) for _ in range(count)]


def _size(victim: Victim, entity: str) -> int:
    """Return the size of an entity from its description."""
    status, document = victim.ask(victim.request("GET", f"/{entity}?api-version=2021-05"))
    require(status == 200, f"the description of '{entity}' was answered with {status}")
    return int(document.partition(b"<SizeInBytes>")[2].partition(b"<")[0])


def _require_bounded(victim: Victim, entity: str) -> None:
    size = _size(victim, entity)
    require(size < 2 * MIB, f"'{entity}' holds {size} bytes, and may hold {MIB}")


# --- entities ---


@attack(
    answer="counts each with 1 KiB more; answers 403 above the queue's size, also to messages, until some are removed",
    log="connection closed",
    broker=SMALL,
)
def session_states_that_fill_a_queue(victim: Victim) -> None:
    """Session states of 100 KB, and then of one byte, for more sessions than a queue of 1 MB can store."""
    neighbour = Message(properties=Properties(group_id="s"), data=[b"x"]).encode()
    to_session = Message(properties=Properties(group_id="s0"), data=[b"x"]).encode()
    for state, most in ((b"x" * 100_000, 20), (b"x", 1100)):
        ids = [f"s{number}" for number in range(most)]
        with victim.begun() as line:
            requests = Requests(line, f"{FULL_SESSIONS}/$management", handles=(4000, 4001), window=100_000)
            for handle, id in enumerate(ids):
                line.send(frame(receiver(FULL_SESSIONS, handle, filter={SESSION_FILTER: id})))
                require(line.expect(Attach).source is not None, "a session that was free was refused")
            answers = _about_sessions(requests, "set-session-state", ids, state)
            kept = [id for id, (status, _) in zip(ids, answers, strict=True) if status == 200]
            require(0 < len(kept) < most, f"{len(kept)} states of {len(state)} bytes were accepted by a queue of 1 MB")
            statuses = {status for status, _ in answers}
            require(statuses == {200, 403}, f"states beyond the size of the queue were answered with {statuses}")
            ((status, _),) = _about_sessions(requests, "set-session-state", ids[:1], state + b"x")
            require(status == 403, f"a state that grows in a full queue was answered with {status}")
            _require_full(victim, FULL_SESSIONS, to_session)
            _require_bounded(victim, FULL_SESSIONS)
            _require_sent(victim, SESSIONS, neighbour)
            _require_neighbours_served(victim)
            answers = _about_sessions(requests, "get-session-state", kept)
            require(all(each == (200, state) for each in answers), "an accepted state is lost")
            statuses = {status for status, _ in _about_sessions(requests, "set-session-state", kept)}
            require(statuses == {200}, f"to remove states was answered with {statuses}")
            _require_sent(victim, FULL_SESSIONS, to_session)
            status = requests.ask(
                {"operation": "com.microsoft:batch-delete-messages"},
                {"session-id": "s0", "message-count": Int(10), "enqueued-time-utc": LATER},
            )
            require(status == 200, f"to delete the message of a session was answered with {status}")
            line.send(CLOSE)
            line.answer()


def _about_sessions(
    requests: Requests, operation: str, ids: list[str], state: bytes | None = None
) -> list[tuple[int, bytes | None]]:
    """Send a request for each of these sessions; returns the status and the state of each answer."""
    for id in ids:
        arguments: dict[str, Any] = {"session-id": id}
        if operation == "set-session-state":
            arguments["session-state"] = state
        requests.post({"operation": f"com.microsoft:{operation}"}, arguments)
    answers = sorted((requests.whole_answer() for _ in ids), key=_number_of_request)
    return [(status_of(each), (each.value or {}).get("session-state")) for each in answers]


def _number_of_request(answer: Message) -> int:
    """Return the number of the request that is answered: refusals are answered before other requests."""
    assert answer.properties is not None
    return int(str(answer.properties.correlation_id))


_ADDED: Final = {"given": "x" * 200_000}
_WAYS: Final[dict[str, Any]] = {
    "abandoned": Modified(message_annotations=_ADDED),
    "deferred": Modified(undeliverable_here=True, message_annotations=_ADDED),
    "suspended": Rejected(error=Error(condition=Symbol("com.microsoft:dead-letter"), info=_ADDED)),
}
"""Outcomes that can add properties to a message, by their disposition status in requests."""
_ENDINGS: Final = (Accepted(), Modified(), Modified(undeliverable_here=True), Rejected())
"""Outcomes without properties."""


@attack(
    answer="refuses them with `amqp:resource-limit-exceeded` when the queue is full; settling without properties works",
    log="connection closed",
    broker=SMALL,
)
def properties_that_fill_a_queue(victim: Victim) -> None:
    """20 small messages that get 200 KB of properties each when abandoned, deferred and dead-lettered."""
    for way, state in _WAYS.items():
        _require_sent(victim, FULL, *[message()] * 20)
        with victim.receiving(FULL) as line:
            _taken(line, 20)
            line.send(*[frame(Disposition(role=True, first=each, settled=False, state=state)) for each in range(20)])
            refused = [_refusal(each) for each in _answers(line, 20)].count(QUOTA)
            require(10 <= refused < 20, f"of 20 messages that were {way} with 200 KB each, {refused} were refused")
        _require_full(victim, FULL, message())
        _require_bounded(victim, FULL)
        _require_neighbours_served(victim)
        _require_settled(victim)
        _require_all_removed(victim, 19)


@attack(
    answer="refuses more than 16 MiB at once, and more than the queue's size; settles none of the messages",
    log="connection closed",
    max_peak=192 * MIB,
    broker=SMALL,
)
def properties_for_many_messages(victim: Victim) -> None:
    """200 KB of properties for 20 and for 2,000 messages at once, by one frame and by one request."""
    for count, parts in ((20, {"deferred": range(20)}), (2000, dict(zip(_WAYS, _thirds(2000), strict=True)))):
        _require_sent(victim, FULL, *[message()] * count)
        with victim.receiving(FULL) as line:
            tokens = [UUID(bytes_le=each.delivery_tag or b"") for each in _taken(line, count)]
            requests = Requests(line, f"{FULL}/$management", handles=(1, 2))
            for way in _WAYS:
                arguments = {"disposition-status": way, "lock-tokens": Array(tokens, UUID)}
                status = requests.ask(
                    {"operation": "com.microsoft:update-disposition"}, {**arguments, "properties-to-modify": _ADDED}
                )
                require(status == 403, f"{count} messages that were {way} by one request were answered with {status}")
                _require_bounded(victim, FULL)
            for way, part in parts.items():
                line.send(frame(Disposition(role=True, first=part[0], last=part[-1], settled=False, state=_WAYS[way])))
                found = {_refusal(each) for each in _answers(line, len(part))}
                require(
                    found == {QUOTA}, f"{len(part)} messages that were {way} by one frame were answered with {found}"
                )
                _require_bounded(victim, FULL)
            _require_neighbours_served(victim)
        _require_all_removed(victim, count)


def _thirds(count: int) -> list[range]:
    return [range(count)[each * count // 3 : (each + 1) * count // 3] for each in range(3)]


@attack(
    answer="allows reasons up to a quarter above the queue's size, then refuses them; dead-letters without reasons",
    log="connection closed",
    broker=SMALL,
)
def dead_letter_reasons_that_fill_a_queue(victim: Victim) -> None:
    """500 small messages, dead-lettered with reasons and descriptions of 16 KB each."""
    count = 500
    info = {"DeadLetterReason": "\U0001f4a3" * 4096, "DeadLetterErrorDescription": "\U0001f4a3" * 4096}
    state = Rejected(error=Error(condition=Symbol("com.microsoft:dead-letter"), info=info))
    _require_sent(victim, FULL, *[message()] * count)
    with victim.receiving(FULL) as line:
        _taken(line, count)
        line.send(*[frame(Disposition(role=True, first=each, settled=False, state=state)) for each in range(count)])
        refused = [_refusal(each) for each in _answers(line, count)].count(QUOTA)
        require(count // 2 < refused < count, f"of {count} messages with a long reason {refused} were refused")
    _require_full(victim, FULL, message())
    _require_bounded(victim, FULL)
    _require_neighbours_served(victim)
    _require_settled(victim)
    _require_all_removed(victim, count - 1)


@attack(
    answer="counts the enlarged messages, and refuses messages when the topic is full",
    log="connection closed",
    broker=SMALL,
)
def rule_actions_that_fill_a_topic(victim: Victim) -> None:
    """50 messages of 20 KB that the action of a rule enlarges to 180 KB each."""
    given = Message(application_properties={"given": "x" * 20_000}, data=[b"x"]).encode()
    copies = f"{FULL_TOPIC}/Subscriptions/{SUBSCRIPTION}"
    answers = _send(victim, FULL_TOPIC, *[given] * 50)
    accepted = sum(isinstance(each, Accepted) for each in answers)
    require(0 < accepted < 10, f"a topic of 1 MB took {accepted} messages that become 180 KB")
    require({_refusal(each) for each in answers} == {None, QUOTA}, "a message was refused for another reason")
    _require_full(victim, FULL_TOPIC, message())
    _require_bounded(victim, FULL_TOPIC)
    _require_neighbours_served(victim)
    found = victim.drain(copies)
    require(found == accepted, f"of {accepted} messages that were accepted {found} are there")
    _require_sent(victim, FULL_TOPIC, message())
    require(victim.drain(copies) == 1, "the message after the others is lost")


def _require_settled(victim: Victim) -> None:
    """Check that messages of the full queue can be completed, abandoned, deferred and dead-lettered."""
    with victim.receiving(FULL) as line:
        _taken(line, len(_ENDINGS))
        for number, state in enumerate(_ENDINGS):
            line.send(frame(Disposition(role=True, first=number, settled=False, state=state)))
        refused = [
            type(sent) for sent, got in zip(_ENDINGS, _answers(line, 4), strict=True) if type(sent) is not type(got)
        ]
        require(not refused, f"a full queue does not settle its messages: {refused}")


def _require_all_removed(victim: Victim, count: int) -> None:
    """Remove all messages, dead-lettered and deferred ones too; check their number, and that the queue accepts more."""
    found = 0
    deadline = time.monotonic() + RECOVERY_SECONDS
    while found < count and time.monotonic() < deadline:
        found += victim.drain(FULL) + victim.drain(f"{FULL}/$deadletterqueue") + _fetch_deferred(victim)
        time.sleep(2.0 if found < count else 0.0)
    require(found == count, f"of {count} messages {found} are left")
    _require_sent(victim, FULL, message())
    require(victim.drain(FULL) == 1, "a message that was accepted is lost")


def _fetch_deferred(victim: Victim) -> int:
    """Receive all deferred messages found by peeking; returns their number."""
    with victim.begun() as line:
        requests = Requests(line, f"{FULL}/$management")
        requests.post(
            {"operation": "com.microsoft:peek-message"}, {"from-sequence-number": 1, "message-count": Int(100)}
        )
        numbers = []
        for found in (requests.whole_answer().value or {"messages": []})["messages"]:
            annotations = Message.decode(found["message"]).message_annotations or {}
            if annotations.get("x-opt-message-state") == 1:
                numbers.append(annotations["x-opt-sequence-number"])
        if numbers:
            requests.post(
                {"operation": "com.microsoft:receive-by-sequence-number"},
                {"sequence-numbers": Array(numbers, int), "receiver-settle-mode": UByte(0)},
            )
            status = status_of(requests.whole_answer())
            require(status == 200, f"to fetch deferred messages was answered with {status}")
        line.send(CLOSE)
        line.answer()
    return len(numbers)


# --- the disk ---


@attack(
    answer="refuses sends with `com.microsoft:server-busy` below the watermark; receiving and settling work",
    log="connection closed",
    max_peak=448 * MIB,
    broker=SMALL,
)
def messages_that_fill_the_disk(victim: Victim) -> None:
    """Messages of 250 KB until they are refused, on a disk of some hundred MB; then they are received."""
    modest = b"modest"
    _require_sent(victim, OTHER, *[message(modest)] * 4)
    accepted = _fill_disk(victim)
    _require_sends_refused(victim)
    status, health = victim.ask(victim.request("GET", "/health"))
    found = status, json.loads(health)["status"]
    require(found == (200, "degraded"), f"on a disk that is nearly full, health is {found}")
    disk = _disk(victim)
    require(disk["refuses_sends"] == 1, "the metrics say that sends are accepted")
    require(disk["free_bytes"] > disk["free_low_bytes"] // 2, f"{disk['free_bytes'] >> 20} MiB are left of the disk")
    with victim.receiving(OTHER) as line:
        _taken(line, len(_ENDINGS))
        require(line.payload.endswith(modest), "a client of another queue received another message")
        for number, state in enumerate(_ENDINGS):
            line.send(frame(Disposition(role=True, first=number, settled=False, state=state)))
        answers = _answers(line, len(_ENDINGS))
        require(all(type(sent) is type(got) for sent, got in zip(_ENDINGS, answers, strict=True)), "nothing is settled")
    removed = victim.drain()
    require(removed == accepted, f"of {accepted} messages that were accepted {removed} are there")
    deadline = time.monotonic() + RECOVERY_SECONDS
    while not isinstance(_send(victim, OTHER, message())[0], Accepted):
        free = _disk(victim)["free_bytes"] >> 20
        require(time.monotonic() < deadline, f"sends are refused though all is received; {free} MiB are free")
        time.sleep(0.5)
    status, health = victim.ask(victim.request("GET", "/health"))
    require(json.loads(health)["status"] == "healthy", f"when the disk has space again, health is {health!r}")


def _fill_disk(victim: Victim) -> int:
    """Send until a message is refused; returns how many were accepted."""
    accepted = 0
    body = message(b"x" * LARGE)
    with victim.sending() as line:
        for first in range(0, 4 * LOW_MIB, 20):
            line.send(*[transfer(number, body) for number in range(first, first + 20)])
            answers = _answers(line, 20)
            accepted += sum(isinstance(each, Accepted) for each in answers)
            refused = {_refusal(each) for each in answers} - {None}
            if refused:
                require(refused == {BUSY}, f"when the disk ran low, messages were refused with {refused}")
                line.send(CLOSE)
                line.answer()
                return accepted
            time.sleep(0.05)  # the broker checks the disk once a second, and a fast machine fills it in one
    require(False, f"{accepted} messages of 250 KB were accepted, and none was refused")
    return accepted


def _require_sends_refused(victim: Victim) -> None:
    """Check that every kind of send is refused, also to another queue from another connection."""
    found = _refusal(_send(victim, OTHER, message())[0])
    require(found == BUSY, f"a message to another queue was answered with {found}")
    status, _ = victim.ask(victim.request("POST", f"/{OTHER}/messages", b"x"))
    require(status == 503, f"a message over HTTP was answered with {status}")
    with victim.begun() as line:
        requests = Requests(line, f"{OTHER}/$management")
        later = Message(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): LATER}, data=[b"x"]).encode()
        status = requests.ask(
            {"operation": "com.microsoft:schedule-message"}, {"messages": [{"message": later, "message-id": "1"}]}
        )
        require(status == 503, f"a message for later was answered with {status}")
    transacting = Transacting(victim.sending(OTHER))
    require(not transacting.send(transacting.declare(), message()), "a message in a transaction was accepted")
    transacting.line.close()


def _disk(victim: Victim) -> dict[str, int]:
    """Return the metrics of the disk."""
    status, text = victim.ask(victim.request("GET", "/metrics"))
    require(status == 200, f"metrics were answered with {status}")
    lines = [line.split() for line in text.decode().splitlines() if line.startswith("peeklock_disk_")]
    return {name.removeprefix("peeklock_disk_"): int(float(value)) for name, value in lines}
