"""Claims: clients that claim without limit, disconnect while they wait, or interfere with claims of other clients."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final
from uuid import UUID, uuid4

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import Accepted, Attach, Transfer
from peeklock.amqp.types import Array, Int
from peeklock.client import sas_token
from tools.hostile.attack import MIB, attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    CLOSE,
    HOST,
    OTHER,
    OTHERS,
    QUEUE,
    SENDER,
    SESSIONS,
    Requests,
    Victim,
    credit,
    message,
    outcomes,
    receiver,
    sender,
    status_of,
    transfer,
)

MAX_RUNS: Final = 8192
"""The most ranges of a claim, and of a request."""
MAX_CLAIMS: Final = 1000
"""The most claims of an entity, including waiting requests."""
MESSAGES: Final = 20_000
MAX_NUMBER: Final = (1 << 44) - 1


class _Claimer:
    """Requests for claims of one entity, with a claim name and an owner."""

    def __init__(self, line: Line, entity: str = QUEUE, name: str = "hostile", **fields: Any) -> None:
        self.requests = Requests(line, f"{entity}/$management", **{"window": 1_000_000, **fields})
        self.name = name
        self.owner = uuid4()

    def body(self, count: int = 1_000_000, id: UUID | None = None, **more: Any) -> dict[str, Any]:
        named = {"claim-name": self.name, "claim-id": id or uuid4(), "owner": self.owner}
        return {**named, "message-count": Int(count), **{key.replace("_", "-"): each for key, each in more.items()}}

    def post(self, operation: str, body: dict[str, Any]) -> None:
        self.requests.post({"operation": f"peeklock:{operation}"}, body)

    def ask(self, operation: str, body: dict[str, Any]) -> Message:
        self.post(operation, body)
        return self.requests.whole_answer()

    def status(self, operation: str, body: dict[str, Any]) -> int:
        return status_of(self.ask(operation, body))

    def claim(self, count: int = 1_000_000, id: UUID | None = None, **more: Any) -> list[int]:
        """Claim messages; returns alternating first and last numbers, none if there were no messages."""
        answer = self.ask("claim-messages", self.body(count, id, **more))
        require(status_of(answer) in (200, 204), f"a claim was answered with {status_of(answer)}")
        return list(answer.value["ranges"]) if status_of(answer) == 200 else []

    def end(self, how: str, id: UUID, ranges: list[int] | None = None) -> int:
        """Remove or release a claim; returns the number of messages, 0 if there is no such claim."""
        body: dict[str, Any] = {"claim-name": self.name, "claim-id": id}
        if ranges is not None:
            body["ranges"] = Array(ranges, int)
        answer = self.ask(f"{how}-claim", body)
        require(status_of(answer) in (200, 204), f"to {how} a claim was answered with {status_of(answer)}")
        return int(answer.value["message-count"]) if status_of(answer) == 200 else 0

    def release_all(self) -> int:
        """Release all claims of the entity, of any client; returns the number of messages."""
        released = 0
        while True:
            answer = self.ask("list-claims", {"skip": Int(0), "top": Int(100)})
            if status_of(answer) != 200:
                return released
            for claim in answer.value["claims"]:
                body = {"claim-name": claim["claim-name"], "claim-id": claim["claim-id"]}
                released += self.ask("release-claim", body).value["message-count"]


def _filled(victim: Victim, count: int, size: int = 10, address: str = QUEUE) -> None:
    """Empty the queue and send so many messages to it."""
    victim.drain(address)
    _send(victim, count, size, address)


def _send(victim: Victim, count: int, size: int = 10, address: str = QUEUE) -> None:
    body = message(b"x" * size)
    with victim.sending(address) as line:
        for first in range(0, count, 100):
            line.send(*[transfer(number, body) for number in range(first, min(count, first + 100))])
        require(all(isinstance(each, Accepted) for each in outcomes(line, count)), "the queue could not be filled")
        _leave(line)


def _leave(line: Line) -> None:
    line.send(CLOSE)
    line.answer()


def _drained(victim: Victim, count: int, address: str = QUEUE) -> None:
    found = victim.drain(address)
    require(found == count, f"of {count} messages {found} are left")


def _with_gaps(claimer: _Claimer, count: int) -> None:
    """Fill the queue with so many messages and remove every second one."""
    id = uuid4()
    first = claimer.claim(id=id)[0]
    gone = range(first, first + count, 2)
    for at in range(0, len(gone), MAX_RUNS):
        claimer.end("remove", id, [number for number in gone[at : at + MAX_RUNS] for _ in range(2)])
    left = claimer.end("release", id)
    require(left == count - len(gone), f"of {count - len(gone)} messages {left} were released")


@attack(answer="ends a claim at 8,192 ranges; all of it can be released", log="connection closed")
def claims_full_of_gaps(victim: Victim) -> None:
    """Claims of 1,000,000 messages in a queue without every second number, listed 200 times, and read 20 times."""
    _filled(victim, MESSAGES)
    with victim.begun() as line:
        claimer = _Claimer(line)
        _with_gaps(claimer, MESSAGES)
        ranges = claimer.claim()
        require(len(ranges) == 2 * MAX_RUNS, f"a claim has {len(ranges) // 2} ranges")
        for _ in range(200):
            claimer.post("list-claims", {"skip": Int(0), "top": Int(100)})
        for _ in range(200):
            require(len(claimer.requests.whole_answer().value["claims"]) == 1, "the claim is not listed")
        for _ in range(20):
            claimer.post("read-packed", {"ranges": Array(ranges, int)})
        for _ in range(20):
            found = claimer.requests.whole_answer().value["message-count"]
            require(found == MAX_RUNS, f"of {MAX_RUNS} messages {found} were read")
        released = claimer.release_all()
        require(released == MAX_RUNS, f"of {MAX_RUNS} messages {released} were released")
        _leave(line)
    _drained(victim, MESSAGES // 2)


@attack(answer="allows 1000 claims for an entity, and answers 403 to more", log="connection closed")
def thousands_of_claims(victim: Victim) -> None:
    """4000 claims of one message each, each with its own name, and 2000 lists of a page after the last one."""
    _filled(victim, 2 * MAX_CLAIMS)
    with victim.begun() as line:
        claimer = _Claimer(line)
        statuses: list[int] = []
        for number in range(0, 4 * MAX_CLAIMS, 100):
            for each in range(number, number + 100):
                claimer.name = f"{each}-{'n' * 120}"
                claimer.post("claim-messages", claimer.body(1))
            statuses += [status_of(claimer.requests.whole_answer()) for _ in range(100)]
        made, refused = statuses.count(200), statuses.count(403)
        require(made == MAX_CLAIMS, f"{made} claims were made")
        require(made + refused == len(statuses), f"claims were answered with {set(statuses)}")
        for _ in range(20):
            for _ in range(100):
                claimer.post("list-claims", {"skip": Int(0x7FFFFFFF - 1000), "top": Int(100)})
            for _ in range(100):
                require(status_of(claimer.requests.whole_answer()) == 204, "claims are listed beyond their end")
        released = claimer.release_all()
        require(released == MAX_CLAIMS, f"of {MAX_CLAIMS} claims {released} were released")
        _leave(line)
    _drained(victim, 2 * MAX_CLAIMS)


@attack(answer="keeps 1000 waiting requests for an entity, and cancels those of closed connections", log="connection")
def waiting_claims_of_closed_connections(victim: Victim) -> None:
    """20 connections with 5 links that each request 150 claims with a wait of a minute, and are then reset."""
    victim.drain()
    lines = [victim.begun() for _ in range(20)]
    for number, line in enumerate(lines):
        for link in range(5):
            claimer = _Claimer(line, name=f"waits-{number}", handles=(2 * link, 2 * link + 1))
            for _ in range(150):
                claimer.post("claim-messages", claimer.body(wait=Int(60_000), linger=Int(60_000)))
    # When this is answered, the broker has read all requests of the last connection.
    _Claimer(lines[-1], handles=(20, 21)).status("list-claims", {"skip": Int(0), "top": Int(1)})
    for line in lines:
        line.reset()
    _send(victim, 100)
    _drained(victim, 100)
    with victim.begun() as line:
        claimer = _Claimer(line)
        _send(victim, 100)
        require(len(claimer.claim()) == 2, "a client that requests a claim later gets none")
        require(claimer.release_all() == 100, "the claim could not be released")
        _leave(line)
    _drained(victim, 100)


@attack(
    answer="answers 403 above 8 KiB: waiting requests must be small",
    log="connection closed",
    max_peak=384 * MIB,
)
def large_requests_that_wait(victim: Victim) -> None:
    """Claim requests of 8 MB with a wait of a minute, on 30 connections; then other clients send."""
    victim.drain()
    with ExitStack() as stack:
        for number in range(30):
            line = stack.enter_context(victim.begun())
            claimer = _Claimer(line, name=f"large-{number}")
            large = Message(
                properties=Properties(message_id="0"),
                application_properties={"operation": "peeklock:claim-messages"},
                value={**claimer.body(wait=Int(60_000)), "padding": b"x" * 8_000_000},
            ).encode()
            for at in range(0, len(large), 200_000):
                piece = large[at : at + 200_000]
                line.send(transfer(0, piece, settled=True, more=at + 200_000 < len(large)))
            require(status_of(claimer.requests.answer()) == 403, "a request of 8 MB may wait")
        _send(victim, 100)
    _drained(victim, 100)
    with victim.begun() as line:
        _leave(line)


@attack(
    answer="makes one answer at a time, holds 32 MiB of answers for a link, and frees them with the connection",
    log="connection",
    max_peak=512 * MIB,
)
def packed_reads_without_credit(victim: Victim) -> None:
    """20 connections with 100 reads of 8,192 ranges each, on links without credit for answers, which are then reset."""
    _filled(victim, 2000, 20_000)
    with victim.begun() as line:
        first = _Claimer(line).claim()[0]
        ranges = Array([first + 10 * each + step for each in range(MAX_RUNS) for step in (0, 8)], int)
        for _ in range(2):
            lines = [victim.begun() for _ in range(10)]
            for each in lines:
                claimer = _Claimer(each, window=0)
                for _ in range(100):
                    claimer.post("read-packed", {"ranges": ranges})
            _require_others_served(victim)
            for each in lines:
                each.reset()
        _leave(line)
    with victim.begun() as line:
        require(_Claimer(line).release_all() == 2000, "the claim could not be released")
        _leave(line)
    _drained(victim, 2000)


def _require_others_served(victim: Victim) -> None:
    """Check that a client of another queue can send and receive, in any time."""
    _send(victim, 10, address=OTHER)
    found = victim.drain(OTHER)
    require(found == 10, f"a client of another queue got {found} of 10 messages")


@attack(
    answer="reads the ranges one after the other, and serves other clients in between",
    log="connection closed",
)
def packed_reads_of_nothing(victim: Victim) -> None:
    """100 reads of 8,192 long ranges each without any message, while another client sends and receives."""
    victim.drain()
    ranges = Array(
        [number for each in range(MAX_RUNS) for number in (10**9 + 200 * each, 10**9 + 200 * each + 150)], int
    )
    with victim.begun() as line:
        claimer = _Claimer(line)
        for _ in range(100):
            claimer.post("read-packed", {"ranges": ranges})
        before = time.monotonic()
        _require_others_served(victim)
        took = time.monotonic() - before
        require(took < 10, f"a client of another queue was served in {took:.1f} s")
        line.reset()


@attack(
    answer="answers 403 to a key that has only Send, and refuses the links of the other key",
    log="link refused|unauthorized",
)
def claims_without_the_right(victim: Victim) -> None:
    """Every operation on claims, with a key that has only Send, and with a key of another queue."""
    _filled(victim, 10)
    with victim.begun() as line:
        claimer = _Claimer(line)
        id = uuid4()
        ranges = Array(claimer.claim(id=id), int)
        named = {"claim-name": claimer.name, "claim-id": id}
        for path, key in (("", SENDER), (OTHER, OTHERS)):
            with victim.unauthenticated_session() as unauthenticated:
                address = f"sb://{HOST}/{path}"
                token = sas_token(address, key, key, time.time() + 3600)
                shown = Requests(unauthenticated, "$cbs").put_token(token, path or QUEUE)
                require(shown == 202, "the attacker's token was refused")
                unauthenticated.send(frame(sender(f"{QUEUE}/$management", 10)))
                if unauthenticated.is_link_refused():
                    unauthenticated.send(frame(receiver(f"{QUEUE}/$management", 11)))
                    require(unauthenticated.is_link_refused(), "a key of another queue may ask")
                    continue
                thief = _Claimer(unauthenticated, handles=(20, 21))
                for operation, body in (
                    ("claim-messages", thief.body()),
                    ("read-packed", {"ranges": ranges}),
                    ("remove-claim", named),
                    ("release-claim", named),
                    ("list-claims", {"skip": Int(0), "top": Int(1)}),
                ):
                    status = thief.status(operation, body)
                    require(status in (401, 403), f"{operation} without the right was answered with {status}")
        require(claimer.end("release", id) == 10, "the claim has changed")
        _leave(line)
    _drained(victim, 10)


@attack(
    answer="answers 204 to an unknown pair of id and name, and 400 to a claim with the id of another name",
    log="closed",
)
def claims_of_others(victim: Victim) -> None:
    """A claim's id with other names and at another queue, 5,000 guessed ids, and two owners of one name."""
    _filled(victim, 100)
    with victim.begun() as line, victim.begun() as other:
        mine = _Claimer(line, name="mine")
        id = uuid4()
        mine.claim(id=id)
        thief = _Claimer(other, name="theirs")
        elsewhere = _Claimer(other, OTHER, name="mine", handles=(10, 11))
        for each in (thief, elsewhere):
            for how in ("remove", "release"):
                require(each.end(how, id) == 0, f"a claim of another name, or queue, could be {how}d")
        require(thief.status("claim-messages", thief.body(id=id)) == 400, "the id of another name was accepted")
        thief.name = "mine"
        for first in range(0, 5000, 100):
            for step in range(first + 1, first + 101):
                near = UUID(int=(id.int + step) % (1 << 128))
                thief.post("remove-claim", {"claim-name": "mine", "claim-id": near})
            for _ in range(100):
                require(status_of(thief.requests.answer()) == 204, "a guessed id was that of a claim")
        for _ in range(500):
            thief.owner = uuid4()
            thief.post("claim-messages", thief.body(wait=Int(1000)))
            mine.post("claim-messages", mine.body())
        require({status_of(thief.requests.answer()) for _ in range(500)} == {409}, "a name had two owners")
        require({status_of(mine.requests.answer()) for _ in range(500)} == {204}, "an owner lost its name")
        require(mine.end("release", id) == 100, "the claim has changed")
        _leave(other)
        _leave(line)
    _drained(victim, 100)


@attack(answer="keeps the claims, and delivers everything else to other clients", log="connection")
def claims_that_are_never_removed(victim: Victim) -> None:
    """Half of a queue, and one of ten sessions, claimed by a client that then disconnects; others receive the rest."""
    _filled(victim, 10_000, 1000)
    with victim.begun() as line:
        require(_Claimer(line).claim(5000)[0] > 0, "nothing was claimed")
        line.reset()
    _drained(victim, 5000)
    _send(victim, 1000, 1000)
    _drained(victim, 1000)
    with victim.begun() as line:
        require(_Claimer(line).release_all() == 5000, "the claim has changed")
        _leave(line)
    _drained(victim, 5000)
    _sessions_of_others(victim)


def _sessions_of_others(victim: Victim) -> None:
    bodies = [Message(properties=Properties(group_id=f"c{each % 100}"), data=[b"x"]).encode() for each in range(1000)]
    with victim.sending(SESSIONS) as line:
        line.send(*[transfer(number, body) for number, body in enumerate(bodies)])
        require(all(isinstance(each, Accepted) for each in outcomes(line, 1000)), "the sessions could not be filled")
    with victim.begun() as line, victim.begun() as other:
        claimer = _Claimer(line, SESSIONS)
        answer = claimer.ask("claim-messages", claimer.body(session_count=Int(10)))
        taken = {each["session-id"] for each in answer.value["sessions"]}
        require(len(taken) == 10, f"{len(taken)} sessions were claimed, not 10")
        free = next(f"c{each}" for each in range(100) if f"c{each}" not in taken)
        other.send(frame(receiver(SESSIONS, 5, filter={"com.microsoft:session-filter": free})))
        require(other.expect(Attach).source is not None, "a session that is free was refused")
        other.send(credit(1, handle=5))
        other.expect(Transfer)
        other.reset()
        require(claimer.release_all() == answer.value["message-count"], "the claim has changed")
        _leave(line)


_WRONG_RANGES: Final[tuple[Any, ...]] = (
    Array([], int),
    Array([1], int),
    Array([1, 2, 3], int),
    Array([2, 1], int),
    Array([0, 1], int),
    Array([-5, -1], int),
    Array([1, 5, 5, 6], int),
    Array([5, 6, 1, 2], int),
    Array([1, MAX_NUMBER + 1], int),
    Array([1, (1 << 63) - 1], int),
    Array([-(1 << 63), (1 << 63) - 1], int),
    Array([number for each in range(MAX_RUNS + 1) for number in (3 * each + 1, 3 * each + 2)], int),
    Array(["1", "2"], str),
    Array([1.0, 2.0], float),
    "1-2",
    [[1, 2]],
    {1: 2},
    7,
)


@attack(answer="answers 400 with the reason; changes no message", log="connection closed")
def invalid_ranges(victim: Victim) -> None:
    """Ranges that overlap, decrease, are reversed or out of range, and invalid counts and names."""
    _filled(victim, 10)
    with victim.begun() as line:
        claimer = _Claimer(line)
        id = uuid4()
        claimer.claim(id=id)
        named = {"claim-name": claimer.name, "claim-id": id}
        for ranges in _WRONG_RANGES:
            for operation in ("read-packed", "remove-claim", "release-claim"):
                status = claimer.status(operation, {**named, "ranges": ranges})
                require(status == 400, f"{operation} of {str(ranges)[:60]} was answered with {status}")
        for wrong in (
            {"message-count": Int(0)},
            {"message-count": Int(1_000_001)},
            {"message-count": Int(-1)},
            {"max-bytes": 0},
            {"through": MAX_NUMBER + 1},
            {"wait": Int(60_001)},
            {"linger": Int(-1)},
            {"session-count": Int(MAX_RUNS + 1)},
            {"claim-name": ""},
            {"claim-name": "n" * 129},
            {"claim-id": b"x" * 16},
            {"owner": "me"},
        ):
            status = claimer.status("claim-messages", {**claimer.body(), **wrong})
            require(status == 400, f"a claim with {str(wrong)[:60]} was answered with {status}")
        everything = Array([1, MAX_NUMBER], int)
        require(claimer.status("read-packed", {"ranges": everything}) == 200, "all numbers cannot be read")
        require(claimer.end("release", id, [1, MAX_NUMBER]) == 10, "the claim has changed")
        _leave(line)
    _drained(victim, 10)
