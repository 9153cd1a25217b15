"""The history of a run: records of what clients did and observed, and of the faults, stored as JSON lines.

A record is written when its operation has ended, with the times of its start and end. Times are Unix milliseconds of
this machine's clock; the broker's clock has an offset (`ClockSet`). `history_index` and the checks conclude what the
broker did in between.
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
    """The broker confirmed it."""
    NO = "no"
    """The broker refused it."""
    UNKNOWN = "unknown"
    """There was no answer: it may have been done or not."""


class Way(StrEnum):
    """How a message was received."""

    LOCK = "lock"
    DELETE = "delete"
    FETCH = "fetch"
    """Received by its sequence number while deferred, with a lock."""
    CLAIM = "claim"
    """Read from a claim, without a lock."""


class Disposition(StrEnum):
    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"
    RELEASE = "release"
    """For claims only: the messages are active again, and their delivery count does not change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The start and end of an operation."""

    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Send(Span):
    """Messages sent in one transfer. In a transaction, OK means that the transaction includes them."""

    entity: str
    ids: tuple[str, ...]
    """The messages' ids, which are in their bodies; each is used once."""
    outcome: Outcome
    error: str = ""
    session: str | None = None
    key: str | None = None
    """The AMQP message id, for duplicate detection."""
    due: int | None = None
    """The scheduled enqueue time, by the broker's clock."""
    numbers: tuple[int, ...] = ()
    """The sequence numbers that the broker returned for scheduled messages."""
    transaction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancellation(Span):
    """A request to cancel scheduled messages."""

    entity: str
    ids: tuple[str, ...]
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(Span):
    """A message that was received, at some moment between start and end."""

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
    """The parts of the message that are not as they were sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement(Span):
    """The settlement of a delivery."""

    delivery: str
    disposition: Disposition
    outcome: Outcome
    error: str = ""
    transaction: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal(Span):
    """A renewal of a delivery's lock."""

    delivery: str
    outcome: Outcome
    error: str = ""
    until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Discharge(Span):
    """The end of a transaction. A transaction without one was not ended, because its client's connection broke."""

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
    """A request for a held session: `get` or `set` its state, or `renew` its lock."""

    hold: str
    action: str
    outcome: Outcome
    error: str = ""
    value: str | None = None
    """The state that was set or returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Span):
    """A request for a claim, first or repeated. `numbers` alternates first and last numbers of ranges."""

    entity: str
    name: str
    id: str
    outcome: Outcome
    error: str = ""
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimList(Span):
    """The listed claims of an entity, all or those of one name: ranges of numbers, and names, by claim id."""

    entity: str
    claims: dict[str, list[int]]
    names: dict[str, str]
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRead(Span):
    """Messages read from a claim: the requested ranges of numbers, and each number that was returned."""

    entity: str
    claim: str
    numbers: tuple[int, ...] = ()
    found: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEnd(Span):
    """A claim was removed (COMPLETE) or released: all of it, or some numbers."""

    claim: str
    disposition: Disposition
    outcome: Outcome
    error: str = ""
    numbers: tuple[int, ...] = ()
    was_there: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostCredit(Span):
    """A receive-and-delete link broke while up to so many messages may have been in flight."""

    entity: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage(Span):
    """The time from before a broker's process ended until the next one served; the process's memory is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockSet(Span):
    """The broker's clock was set, at some moment between start and end."""

    offset: int
    """Milliseconds by which it is ahead from then on."""
    passed: int = 0
    """Milliseconds added to the broker's monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault(Span):
    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover(Span):
    """A message that can still be peeked at the end, but was never delivered."""

    entity: str
    id: str
    number: int
    state: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDamage(Span):
    """The broker's files were damaged, and it started: a message may be damaged."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Damaged(Span):
    """The broker reported this message as damaged, so it does not deliver it."""

    entity: str
    id: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerFailure(Span):
    """A failure of the broker itself: its process ended, its log has a traceback, or it answered wrongly."""

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
    | FileDamage
    | Damaged
    | BrokerFailure
)

_KINDS: Final[dict[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Record)}
_ENUMS: Final[dict[str, type[StrEnum]]] = {"outcome": Outcome, "way": Way, "disposition": Disposition}


def now() -> float:
    return time.time() * 1000


class History:
    """The records of a run, in the order in which they were added. Each is written at once. Thread-safe."""

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
    """Parse records from the lines of a file."""
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
