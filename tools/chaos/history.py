"""What happened in a run, as the clients saw it and as the faults were made: records, kept as JSON lines.

A record is made when its operation is over, and says when it began and ended. Times are Unix milliseconds of this
machine's clock, which the broker's own follows at a distance (`ClockSet`). What a broker did in between is for `books`
and the checks to conclude.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, get_args


class Outcome(StrEnum):
    OK = "ok"
    """The broker said that it is done."""
    NO = "no"
    """The broker said that it is not done."""
    UNKNOWN = "unknown"
    """The broker did not say: either may be so."""


class Way(StrEnum):
    """How a message came."""

    LOCK = "lock"
    DELETE = "delete"
    FETCH = "fetch"
    """A deferred one, asked for by its number, and locked."""
    CLAIM = "claim"
    """Read by who has claimed it, with no lock."""


class Gesture(StrEnum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"
    """Of a claim: its messages are active again, and not counted as delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that took its time."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Span):
    """Messages that went out together. With a transaction the outcome is that of being noted."""

    entity: str
    ids: tuple[str, ...]
    """Of the messages, in their bodies: never used twice."""
    outcome: Outcome
    error: str = ""
    session: str | None = None
    key: str | None = None
    """The message id, where duplicates are detected by it."""
    due: int | None = None
    """When they are to be enqueued, by the broker's clock."""
    numbers: tuple[int, ...] = ()
    """Told by the broker for scheduled messages."""
    transaction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation(Span):
    """Scheduled messages taken back."""

    entity: str
    ids: tuple[str, ...]
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Span):
    """A message that came, at some moment between start and end."""

    name: str
    entity: str
    id: str
    number: int
    count: int
    enqueued: int
    way: Way
    until: int | None = None
    """The end of its lock, by the broker's clock."""
    session: str | None = None
    hold: str | None = None
    changed: str = ""
    """What of it is not as it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement(Span):
    """What was asked for a delivery."""

    delivery: str
    gesture: Gesture
    outcome: Outcome
    error: str = ""
    transaction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal(Span):
    """Of the lock of a delivery."""

    delivery: str
    outcome: Outcome
    error: str = ""
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discharge(Span):
    """The end of a transaction. One that has none was never ended by its client, whose connection broke."""

    transaction: str
    commit: bool
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Span):
    """A session that was accepted."""

    name: str
    entity: str
    session: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCall(Span):
    """Something asked of a session by who holds it: `get` or `set` of its state, or `renew`."""

    hold: str
    action: str
    outcome: Outcome
    error: str = ""
    value: str | None = None
    """What was set, or what was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Span):
    """Messages set aside under an id, or asked for again; first and last numbers in turn, none if there were none."""

    entity: str
    name: str
    id: str
    outcome: Outcome
    error: str = ""
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimList(Span):
    """The claims of an entity, or those of one name: numbers, as above, and names by id."""

    entity: str
    claims: dict[str, list[int]]
    names: dict[str, str]
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRead(Span):
    """What a claim has was read: the numbers that were asked for, as above, and those that came, one by one."""

    entity: str
    claim: str
    numbers: tuple[int, ...] = ()
    found: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEnd(Span):
    """A claim was removed (COMPLETE) or released: all of it, or some numbers."""

    claim: str
    gesture: Gesture
    outcome: Outcome
    error: str = ""
    numbers: tuple[int, ...] = ()
    was_there: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCredit(Span):
    """A receive-and-delete link broke while this many messages may have been on their way."""

    entity: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(Span):
    """From before the broker's process ended until another one served: what it had in memory is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSet(Span):
    """At some moment in between the broker's clock was set: from then on it is this far ahead."""

    offset: int
    passed: int = 0
    """So much more time passed for it, by the clock that nobody sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Span):
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover(Span):
    """A message that the broker still shows after everything was received, which it did not give out."""

    entity: str
    id: str
    number: int
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Injury(Span):
    """Damage was done to the files of the broker, and it started all the same: a message may be damaged by that."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged(Span):
    """The broker has said that this message is damaged, and does not give it out."""

    entity: str
    id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mishap(Span):
    """Something of the broker's that is wrong by itself: it ended, or says in its log that it failed."""

    text: str


Record = (
    Send
    | Cancellation
    | Delivery
    | Settlement
    | Renewal
    | Discharge
    | Hold
    | SessionCall
    | Claim
    | ClaimList
    | ClaimRead
    | ClaimEnd
    | LostCredit
    | Outage
    | ClockSet
    | Fault
    | Leftover
    | Injury
    | Damaged
    | Mishap
)

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Record)}
_ENUMS: Final[dict[str, type[StrEnum]]] = {"outcome": Outcome, "way": Way, "gesture": Gesture}


def now() -> float:
    return time.time() * 1000


class History:
    """The records of a run, in the order in which they were made; written as they come. For several threads."""

    def __init__(self, file: Path) -> None:
        self.records: list[Record] = []
        self._lock = threading.Lock()
        self._out = file.open("w")

    def add(self, record: Record) -> None:
        line = dump(record)
        with self._lock:
            self.records.append(record)
            self._out.write(line + "\n")

    def close(self) -> None:
        with self._lock:
            self._out.close()


def dump(record: Record) -> str:
    values = {key: value for key, value in asdict(record).items() if value not in (None, "", ())}
    return json.dumps({"what": type(record).__name__} | values)


def load(lines: Iterable[str]) -> Iterator[Record]:
    """Records from a file of them."""
    for line in lines:
        values = json.loads(line)
        kind = _KINDS[values.pop("what")]
        for field in fields(kind):
            value = values.get(field.name)
            if isinstance(value, list):
                values[field.name] = tuple(value)
            elif field.name in _ENUMS and value is not None:
                values[field.name] = _ENUMS[field.name](value)
        yield kind(**values)
