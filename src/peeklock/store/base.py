"""The store protocol: what the broker asks of durability, and nothing else.

A store keeps entities, their messages, the state of their sessions, and what they have seen, by which a duplicate
is known. Message bytes are opaque to it, and several messages may have some in common; the few other columns
are those the broker asks for by. The broker collects what changed into `Changes` and commits them as one: all of
it becomes durable, or none. Commits become durable in the order in which they were handed over.

`commit` and the reads do not block: the answer arrives by callback, on the thread that called, at once or
later. A read sees every commit whose callback has run, and may see later ones. Commits are answered in order, and so
are reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from .bodies import Body as Body
from .compiler import mypyc_attr

ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
"""The state of a stored message, with the numbers of `x-opt-message-state`."""

DAMAGED: Final = 3
"""Of a message whose bytes the disk no longer has as they were written: no read returns it, and it stays until it is
repaired or its entity is deleted."""

CLAIMED: Final = 4
"""Of a message that belongs to a claim: it is neither delivered nor does it expire, until the claim is released, or
removed with it."""

SEEN_KEY_BYTES: Final = 16
CLAIM_ID_BYTES: Final = 16

MAX_NUMBER: Final = (1 << 44) - 1
"""The highest sequence number."""

MAX_ENTITY: Final = (1 << 19) - 1
"""The highest id an entity may have, and so how many can exist at once: a message's key in the index of the store on
disk is the id of its entity and its sequence number, together 63 bits."""


class StoreError(Exception):
    """The store could not do what was asked; nothing of it was done. `str()` is one clear sentence."""


class StoreFull(StoreError):
    """There is no room left; the same change may succeed once there is."""


class StoreHeld(StoreError):
    """Another running broker holds this store."""


class DiskSpace(NamedTuple):
    """The room of the file system that a store is on, in bytes."""

    free: int
    """What a store can still use."""
    total: int


@mypyc_attr(acyclic=True)  # there are many, and it is of no use to look for cycles among them
class StoredMessage:
    """One message of one entity. Times are Unix milliseconds."""

    __slots__ = (
        "annex",
        "body",
        "delivery_count",
        "due_at",
        "enqueued_at",
        "expires_at",
        "payload",
        "sequence_number",
        "session_id",
        "state",
    )

    def __init__(
        self,
        sequence_number: int,
        payload: bytes,
        enqueued_at: int,
        state: int = ACTIVE,
        session_id: str | None = None,
        annex: bytes | None = None,
        expires_at: int | None = None,
        delivery_count: int = 0,
        due_at: int | None = None,
        body: Body | None = None,
    ) -> None:
        self.sequence_number = sequence_number
        self.payload = payload
        self.enqueued_at = enqueued_at
        self.expires_at = expires_at
        self.delivery_count = delivery_count
        self.state = state
        self.session_id = session_id
        self.due_at = due_at
        self.annex = annex
        """Small extras that only the broker understands; opaque like the payload."""
        self.body = body
        """What follows the payload, where that is only the front; a message has it from its append to its end."""

    def copy(self) -> StoredMessage:
        """A copy that can be changed; payload, annex and body are shared."""
        return StoredMessage(
            self.sequence_number,
            self.payload,
            self.enqueued_at,
            self.state,
            self.session_id,
            self.annex,
            self.expires_at,
            self.delivery_count,
            self.due_at,
            self.body,
        )

    @property
    def content(self) -> bytes:
        """All its bytes: the payload, and the body's where there is one."""
        return self.payload if self.body is None else self.payload + self.body.data

    @property
    def size(self) -> int:
        return len(self.payload) if self.body is None else len(self.payload) + len(self.body.data)

    @property
    def read_size(self) -> int:
        """What it counts for in the bytes of an answer: all that is in memory with it."""
        return self.size if self.annex is None else self.size + len(self.annex)


@dataclass(slots=True)
class Counters:
    """What an entity must know at start without reading its messages."""

    last_sequence_number: int = 0
    active: int = 0
    deferred: int = 0
    scheduled: int = 0
    size_in_bytes: int = 0
    damaged: int = 0
    claimed: int = 0

    def count(self, state: int, change: int) -> None:
        if state == ACTIVE:
            self.active += change
        elif state == DEFERRED:
            self.deferred += change
        elif state == SCHEDULED:
            self.scheduled += change
        elif state == CLAIMED:
            self.claimed += change
        else:
            self.damaged += change

    def add(self, delta: Counters) -> None:
        """What `Changes.deltas` says of this entity."""
        self.last_sequence_number = max(self.last_sequence_number, delta.last_sequence_number)
        self.active += delta.active
        self.deferred += delta.deferred
        self.scheduled += delta.scheduled
        self.size_in_bytes += delta.size_in_bytes
        self.damaged += delta.damaged
        self.claimed += delta.claimed


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one entity whose numbers follow each other without a gap, all in one state."""

    first: int
    last: int
    size: int
    """Of all of them, bodies included."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Damage:
    """A message whose bytes were found damaged when they were read: counted off its state, and never given out."""

    entity: int
    sequence_number: int
    state: int
    """Before."""
    session_id: str | None
    where: str
    """File and offset."""


@dataclass(slots=True)
class StoredEntity:
    """An entity, by an id of its own; sub-queues are entities of their own."""

    id: int
    """From 1 to `MAX_ENTITY`. After the commit that drops an entity, another may be created with its id, which has
    nothing of the first. Changes and reads name entities by id, so those meant for the first must be over by then."""
    path: str
    kind: str
    definition: dict[str, Any]
    """JSON-able; only the broker understands it."""
    counters: Counters = field(default_factory=Counters)


@dataclass(slots=True)
class Changes:
    """What one commit makes durable. Applied in the order of the fields; a removed number never comes back.

    The counters of an entity follow from its changes: `deltas` says by how much, and a store adds that to what it
    keeps, in the same commit. (It corrects them for messages of runs that were found damaged meanwhile.)
    """

    entities: dict[int, StoredEntity] = field(default_factory=dict)
    """Created, or with a new path, kind or definition (the counters of an existing one stay)."""
    advances: dict[int, int] = field(default_factory=dict)
    """By entity: the highest sequence number that it has given out without a message of its own."""
    appends: list[tuple[int, StoredMessage]] = field(default_factory=list)
    """A body is stored with the first message that has its key, in any commit, and goes with the last."""
    updates: list[tuple[int, StoredMessage, int]] = field(default_factory=list)
    """State, delivery count and times of existing messages, not payload and body; and the state before."""
    rewrites: list[tuple[int, StoredMessage, int, int]] = field(default_factory=list)
    """As updates, and payload and annex too; the state and the size before, that of the body included."""
    removals: list[tuple[int, StoredMessage]] = field(default_factory=list)
    """As the messages were when removed. Those already gone are no error, but are counted off a second time: the
    counters would drift, so no message is ever removed twice."""
    run_updates: list[tuple[int, Run, int, int]] = field(default_factory=list)
    """Entity, messages, the state before, the state now: of all messages of the run, each of which exists and was in
    the state before. One that was found damaged meanwhile stays as it is, and stays counted as damaged."""
    run_removals: list[tuple[int, Run, int]] = field(default_factory=list)
    """Entity, messages, the state that they were in; as `removals`, with the bodies that nobody else has. One that was
    found damaged meanwhile stays."""
    claims: dict[tuple[int, bytes], bytes | None] = field(default_factory=dict)
    """By entity and id (16 bytes): what is to be kept of a claim, opaque, or None to forget it. Of an entity that does
    not exist they are no error, and nothing is kept; they go with their entity."""
    session_states: list[tuple[int, str, bytes | None, int]] = field(default_factory=list)
    """Entity, session id, state or None to clear it, when; the last for a session wins. An empty state is one.
    Of an entity that does not exist they are no error, and nothing is kept."""
    seen: list[tuple[int, bytes, int]] = field(default_factory=list)
    """Entity, key of `SEEN_KEY_BYTES`, when: what a duplicate would be known by. Of an entity that does not exist they
    are no error, and nothing is kept."""
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    """Entity, time: what it saw before that time is not asked for again, even if a later commit should add some."""
    dropped_entities: list[int] = field(default_factory=list)
    """Deleted, with all their messages, session states and what they have seen. None of them is created by the same
    changes."""

    def __bool__(self) -> bool:
        return bool(
            self.appends
            or self.removals
            or self.updates
            or self.rewrites
            or self.advances
            or self.entities
            or self.run_updates
            or self.run_removals
            or self.claims
            or self.session_states
            or self.seen
            or self.forgotten
            or self.dropped_entities
        )

    @property
    def appended_bytes(self) -> int:
        return _size(self.appends)

    @property
    def removed_bytes(self) -> int:
        return _size(self.removals)

    def check_seen(self) -> None:
        """StoreError for a key that is of another length, or a time that is not of 44 bits."""
        for _, key, at in self.seen:
            if len(key) != SEEN_KEY_BYTES:
                raise StoreError(f"A key of {len(key)} bytes was given as seen; every one has {SEEN_KEY_BYTES}.")
            if not 0 <= at < 1 << 44:
                raise StoreError(f"The time {at} at which a key was seen is not between 0 and {(1 << 44) - 1}.")

    def check_runs(self) -> None:
        """StoreError for a run that is empty, or with numbers that no message can have."""
        runs = [run for _, run, *_ in self.run_updates]
        runs += [run for _, run, _ in self.run_removals]
        for run in runs:
            if not 0 < run.first <= run.last <= MAX_NUMBER:
                raise StoreError(f"A run from {run.first} to {run.last} was given; numbers are from 1 to {MAX_NUMBER}.")

    def check_claims(self) -> None:
        """StoreError for an id that is of another length."""
        for _, claim in self.claims:
            if len(claim) != CLAIM_ID_BYTES:
                raise StoreError(f"The id of a claim has {len(claim)} bytes; it must have {CLAIM_ID_BYTES}.")

    def deltas(self) -> dict[int, Counters]:
        """By entity: what to add to its counters; `last_sequence_number` is the highest given out, or 0.

        Nothing is looked up: what the changes say of the time before them must be so, see `removals`.
        """
        found: defaultdict[int, Counters] = defaultdict(Counters)
        for entity, number in self.advances.items():
            found[entity].last_sequence_number = number
        for entity, message in self.appends:
            delta = found[entity]
            # Nearly all are active and without a body; this is run for every message, and calls cost.
            if message.state == ACTIVE:
                delta.active += 1
            else:
                delta.count(message.state, 1)
            delta.size_in_bytes += len(message.payload) if message.body is None else message.size
            if message.sequence_number > delta.last_sequence_number:
                delta.last_sequence_number = message.sequence_number
        for entity, message, before in self.updates:
            delta = found[entity]
            delta.count(before, -1)
            delta.count(message.state, 1)
        for entity, message, before, size_before in self.rewrites:
            delta = found[entity]
            delta.count(before, -1)
            delta.count(message.state, 1)
            delta.size_in_bytes += message.size - size_before
        for entity, message in self.removals:
            delta = found[entity]
            if message.state == ACTIVE:
                delta.active -= 1
            else:
                delta.count(message.state, -1)
            delta.size_in_bytes -= len(message.payload) if message.body is None else message.size
        for entity, run, before, after in self.run_updates:
            delta = found[entity]
            delta.count(before, -run.count)
            delta.count(after, run.count)
        for entity, run, before in self.run_removals:
            delta = found[entity]
            delta.count(before, -run.count)
            delta.size_in_bytes -= run.size
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Messages of one entity with after < sequence number <= through, ascending, up to both limits."""

    entity: int
    after: int = 0
    through: int
    limit: int
    max_bytes: int
    """The answer ends with the message that reaches this many bytes, bodies and annexes included (`read_size`); it
    always has one if any fits."""
    state: int | None = ACTIVE
    """None: in any state."""
    session_id: str | None = None
    """None: of any session."""


Position = tuple[int, int]
"""Where a message stands among those with a time: the time, and its sequence number."""
Committed = Callable[[StoreError | None], None]
MessagesRead = Callable[[list[StoredMessage] | StoreError], None]
TimedRead = Callable[[tuple[list[StoredMessage], int | None] | StoreError], None]
SessionCountsRead = Callable[[dict[str, int] | StoreError], None]
SessionStateRead = Callable[[bytes | StoreError | None], None]
SessionsRead = Callable[[list[str] | StoreError], None]
RunsRead = Callable[[list[Run] | StoreError], None]
SeenRead = Callable[[list[tuple[bytes, int]] | StoreError], None]


OnDamage = Callable[[Damage], None]


def ignore_damage(damage: Damage) -> None:
    """For those who only look."""


class Store(Protocol):
    """Where a namespace lives. See the module for when callbacks run and what a read sees."""

    def open(self, on_damage: OnDamage = ignore_damage) -> list[StoredEntity]:
        """Take hold of the store (StoreHeld, StoreError) and return all entities. Blocks; called once.

        `on_damage` is called for each message that a read finds damaged, before that read is answered and once for each
        message; the store has counted it off its state then.
        """
        ...

    def highest_body_key(self) -> int:
        """The highest key of a body that was in the store when it was opened; 0 if there was none."""
        ...

    def claims(self) -> list[tuple[int, bytes, bytes]]:
        """Entity, id and content of all claims that were in the store when it was opened."""
        ...

    def commit(self, changes: Changes, done: Committed) -> None:
        """Make the changes durable, then call `done(None)`, or do none of them and say why.

        What is handed over is copied before this returns: the caller may go on changing its objects. A message
        for an entity that neither exists nor is among the changes is refused, and the commit with it.
        """
        ...

    def read(self, wanted: Range, done: MessagesRead) -> None: ...

    def read_runs(self, wanted: Range, done: RunsRead, now: int | None = None, but: Sequence[int] = ()) -> None:
        """As `read`, but numbers and sizes only: the messages as runs, each as long as can be. `limit` is of messages,
        so the last run may end early; `max_bytes` is of their sizes, without annexes. The range is of one state. With
        `now`, messages with expires_at <= now are left out; so are the numbers `but`."""
        ...

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int, done: MessagesRead) -> None:
        """Those of the numbers that exist, in any state, ascending, up to `max_bytes` as in `Range`. The work is for
        each number given, however many messages there are."""
        ...

    def read_expired(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        """Active messages with expires_at <= now, soonest first and by number where that is the same, up to both
        limits (as in `Range`); and the soonest expiry among the other active ones, if any has one. With a place, both
        answers are about messages behind it only."""
        ...

    def read_due(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        """As `read_expired`, for scheduled messages and their due_at."""
        ...

    def read_session_counts(self, entity: int, done: SessionCountsRead) -> None:
        """How many active messages each session has that has any, in the order of the first of them."""
        ...

    def read_session_state_sizes(self, entity: int, done: SessionCountsRead) -> None:
        """How many bytes the state of each session has that has one, in any order."""
        ...

    def read_session_state(self, entity: int, session_id: str, done: SessionStateRead) -> None:
        """None if it was never set, or cleared."""
        ...

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int, done: SessionsRead) -> None:
        """Up to `top` session ids after the first `skip`, in the order of their code points: of the sessions
        that have active messages or a state, or, with a time, of those whose state was set after it."""
        ...

    def read_seen(self, entity: int, since: int, done: SeenRead) -> None:
        """Keys and when they were seen, of all that were at that time or later, in any order."""
        ...

    def close(self) -> None:
        """Finish the commits handed over, run their callbacks, and let go. Blocks; may be called twice."""
        ...


def _size(messages: list[tuple[int, StoredMessage]]) -> int:
    size = 0
    for _, message in messages:
        size += len(message.payload) if message.body is None else message.size
    return size
