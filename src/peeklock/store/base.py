"""The store protocol: the interface between the broker and durable storage.

A store keeps entities, their messages, session states, claims, and the history of duplicate detection. Message bytes
are opaque to the store, and several messages may share a body. The few other columns are the ones that the broker
queries by. The broker collects changes in `Changes` and commits them together: all of them become durable, or none.
Commits become durable in the order in which they were submitted.

`commit` and the reads do not block: the result is passed to a callback on the calling thread, before the call returns
or later. A read sees every commit whose callback has run, and may see later ones. Callbacks of commits run in the order
of the commits, and callbacks of reads in the order of the reads.
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
"""States of a stored message, with the values of `x-opt-message-state`."""

DAMAGED: Final = 3
"""The state of a message whose bytes on disk do not match their checksum. No read returns it. It stays in the store
until a repair removes it or its entity is deleted."""

CLAIMED: Final = 4
"""The state of a message that belongs to a claim. It is not delivered and does not expire until the claim is released;
removing the claim removes the message."""

SEEN_KEY_BYTES: Final = 16
CLAIM_ID_BYTES: Final = 16

MAX_NUMBER: Final = (1 << 44) - 1
"""The highest sequence number."""

MAX_ENTITY_ID: Final = (1 << 19) - 1
"""The highest id of an entity, and so the most entities that can exist at once. In the index of the store on disk, a
message's key consists of its entity's id and its sequence number, together 63 bits."""


@mypyc_attr(allow_interpreted_subclasses=True)
class StoreError(Exception):
    """An operation of the store failed and had no effect. `str()` is one sentence for the user."""


class StoreFull(StoreError):
    """The disk has no free space; the same commit may succeed when it has."""


class StoreLocked(StoreError):
    """Another process has the data folder locked."""


class DiskSpace(NamedTuple):
    """The free and total space of the store's file system, in bytes."""

    free: int
    """The space that the store can still use."""
    total: int


@mypyc_attr(acyclic=True)  # there are many messages, and a search for reference cycles among them finds none
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
        """A few bytes of the broker's own about the message; opaque to the store, like the payload."""
        self.body = body
        """The shared bytes that follow the payload, if any. Set when the message is appended, and never changed."""

    def copy(self) -> StoredMessage:
        """Return a copy that can be changed independently; payload, annex and body are shared."""
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
        """The encoded message: the payload, followed by the shared body if there is one."""
        return self.payload if self.body is None else self.payload + self.body.data

    @property
    def size(self) -> int:
        return len(self.payload) if self.body is None else len(self.payload) + len(self.body.data)

    @property
    def read_size(self) -> int:
        """The size that counts against `max_bytes` of a read: payload, body and annex."""
        return self.size if self.annex is None else self.size + len(self.annex)


@dataclass(slots=True)
class Counters:
    """Counts and size of an entity's messages, which the broker loads at the start instead of reading the messages."""

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
        """Add this entity's item of `Changes.deltas`."""
        self.last_sequence_number = max(self.last_sequence_number, delta.last_sequence_number)
        self.active += delta.active
        self.deferred += delta.deferred
        self.scheduled += delta.scheduled
        self.size_in_bytes += delta.size_in_bytes
        self.damaged += delta.damaged
        self.claimed += delta.claimed


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one entity with consecutive sequence numbers, all in the same state."""

    first: int
    last: int
    size: int
    """Bytes of all messages, bodies included."""

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Damage:
    """A message whose bytes were damaged when they were read. The store counts it as damaged and never returns it."""

    entity: int
    sequence_number: int
    state: int
    """The state before the damage was found."""
    session_id: str | None
    where: str
    """File, offset and length of the bytes."""


@dataclass(slots=True)
class StoredEntity:
    """An entity with its definition and counters. Each sub-queue is stored as an entity of its own."""

    id: int
    """From 1 to `MAX_ENTITY_ID`. After the commit that drops an entity, its id may be used for a new entity, which
    inherits nothing. Changes and reads name entities by id, so the ones for the old entity must have finished by
    then."""
    path: str
    kind: str
    definition: dict[str, Any]
    """Must be serializable as JSON; opaque to the store."""
    counters: Counters = field(default_factory=Counters)


@dataclass(slots=True)
class Changes:
    """The changes of one commit, applied in the order of the fields.

    A removed sequence number is never reused. The changes of the counters follow from the other changes: `deltas`
    computes them, and a store adds them to its counters in the same commit. (A store corrects them for messages of runs
    that were found damaged meanwhile.)
    """

    entities: dict[int, StoredEntity] = field(default_factory=dict)
    """New entities, and existing ones with a new path, kind or definition (these keep their counters)."""
    advances: dict[int, int] = field(default_factory=dict)
    """By entity id: the highest sequence number that was assigned without storing a message for it."""
    appends: list[tuple[int, StoredMessage]] = field(default_factory=list)
    """Entity id and new message. A body is stored with the first message that has its key, in any commit, and is
    deleted with the last."""
    updates: list[tuple[int, StoredMessage, int]] = field(default_factory=list)
    """Entity id, message, previous state. Changes state, delivery count and times of an existing message; payload,
    annex and body stay."""
    rewrites: list[tuple[int, StoredMessage, int, int]] = field(default_factory=list)
    """Entity id, message, previous state, previous size (with the body). Like `updates`, and replaces payload and annex
    too."""
    removals: list[tuple[int, StoredMessage]] = field(default_factory=list)
    """Entity id and the message as it was. Removing a message that is already gone is not an error, but it is
    subtracted from the counters again, which makes them wrong: the broker removes each message once."""
    run_updates: list[tuple[int, Run, int, int]] = field(default_factory=list)
    """Entity id, run, previous state, new state. Every message of the run exists and has the previous state. A message
    that was found damaged meanwhile stays unchanged and remains counted as damaged."""
    run_removals: list[tuple[int, Run, int]] = field(default_factory=list)
    """Entity id, run, state of its messages. Like `removals`; bodies that no other message has are deleted too. A
    message that was found damaged meanwhile stays."""
    claims: dict[tuple[int, bytes], bytes | None] = field(default_factory=dict)
    """By entity id and claim id (16 bytes): the claim's content, opaque to the store, or None to delete the claim. A
    claim of an entity that does not exist is ignored without an error. Dropping an entity deletes its claims."""
    session_states: list[tuple[int, str, bytes | None, int]] = field(default_factory=list)
    """Entity id, session id, state (None clears it), time. The last item for a session counts. An empty state is a
    state. An item for an entity that does not exist is ignored without an error."""
    seen: list[tuple[int, bytes, int]] = field(default_factory=list)
    """Entity id, key of `SEEN_KEY_BYTES`, time: additions to the history of duplicate detection. An item for an entity
    that does not exist is ignored without an error."""
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    """Entity id and time: keys seen before that time are no longer needed and may be deleted. The broker does not read
    them again, even if a later commit adds some."""
    dropped_entities: list[int] = field(default_factory=list)
    """Ids of entities to delete, with all their messages, session states, claims and seen keys. The same changes create
    none of them."""

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
        """Raise StoreError for a seen key of the wrong length or a time of more than 44 bits."""
        for _, key, at in self.seen:
            if len(key) != SEEN_KEY_BYTES:
                raise StoreError(f"A key of duplicate detection has {len(key)} bytes; it must have {SEEN_KEY_BYTES}.")
            if not 0 <= at < 1 << 44:
                raise StoreError(f"The time {at} at which a key was seen is not between 0 and {(1 << 44) - 1}.")

    def check_runs(self) -> None:
        """Raise StoreError for a run that is empty or has invalid sequence numbers."""
        runs = [run for _, run, *_ in self.run_updates]
        runs += [run for _, run, _ in self.run_removals]
        for run in runs:
            if not 0 < run.first <= run.last <= MAX_NUMBER:
                raise StoreError(
                    f"The run from {run.first} to {run.last} is invalid; sequence numbers are from 1 to {MAX_NUMBER}."
                )

    def check_claims(self) -> None:
        """Raise StoreError for a claim id of the wrong length."""
        for _, claim in self.claims:
            if len(claim) != CLAIM_ID_BYTES:
                raise StoreError(f"The id of a claim has {len(claim)} bytes; it must have {CLAIM_ID_BYTES}.")

    def deltas(self) -> dict[int, Counters]:
        """Compute by entity what to add to its counters; `last_sequence_number` is the highest assigned one, or 0.

        Nothing is read from the store: the previous states and sizes in the changes must be right, see `removals`.
        """
        found: defaultdict[int, Counters] = defaultdict(Counters)
        for entity, number in self.advances.items():
            found[entity].last_sequence_number = number
        for entity, message in self.appends:
            delta = found[entity]
            # Nearly all messages are active and have no body. This runs for every message, so calls are avoided.
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
    """A read of messages with after < sequence number <= through, ascending, up to `limit` and `max_bytes`."""

    entity: int
    after: int = 0
    through: int
    limit: int
    max_bytes: int
    """The result ends with the message that reaches this size (the sum of `read_size`). It has at least one message if
    any matches."""
    state: int | None = ACTIVE
    """None: any state."""
    session_id: str | None = None
    """None: any session or no session."""


Position = tuple[int, int]
"""A position in the order of expiry or due times: time and sequence number of a message."""
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
    """Do nothing: the default of `Store.open`."""


class Store(Protocol):
    """The storage of one namespace. See the module's docstring for when callbacks run and which commits a read sees."""

    def open(self, on_damage: OnDamage = ignore_damage) -> list[StoredEntity]:
        """Lock and open the store, and return all entities. Blocks; called once. Raise StoreLocked or StoreError.

        `on_damage` is called once for each message that a read finds damaged, before that read's callback. The store
        then counts the message as damaged.
        """
        ...

    def highest_body_key(self) -> int:
        """Return the highest key of a body that was in the store when it was opened; 0 if there was none."""
        ...

    def claims(self) -> list[tuple[int, bytes, bytes]]:
        """Return entity id, claim id and content of all claims that were in the store when it was opened."""
        ...

    def commit(self, changes: Changes, done: Committed) -> None:
        """Make the changes durable and call `done(None)`, or apply none of them and call `done` with the error.

        The changes are copied before this returns, so the caller may modify its objects afterwards. An append to an
        entity that neither exists nor is created by the changes makes the whole commit fail.
        """
        ...

    def read(self, wanted: Range, done: MessagesRead) -> None: ...

    def read_runs(self, wanted: Range, done: RunsRead, now: int | None = None, excluded: Sequence[int] = ()) -> None:
        """Read the same messages as `read`, as runs of maximal length: sequence numbers and sizes only.

        `limit` counts messages, so the last run may end early; `max_bytes` counts payloads and bodies, not annexes. The
        range must name a state. With `now`, messages with expires_at <= now are left out; so are the sequence numbers
        `excluded`.
        """
        ...

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int, done: MessagesRead) -> None:
        """Read the messages with these sequence numbers, in any state, ascending, up to `max_bytes` as in `Range`.

        Numbers without a message are skipped. The cost is O(numbers), whatever the size of the backlog.
        """
        ...

    def read_expired(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        """Read active messages with expires_at <= now, ordered by expires_at and then by sequence number.

        `limit` and `max_bytes` are as in `Range`. The second item of the result is the earliest expires_at among the
        active messages that were not returned, or None. With `after`, both consider only messages after that position.
        """
        ...

    def read_due(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        """Read scheduled messages with due_at <= now, like `read_expired`."""
        ...

    def read_session_counts(self, entity: int, done: SessionCountsRead) -> None:
        """Read the number of active messages of each session that has any, ordered by its first active message."""
        ...

    def read_session_state_sizes(self, entity: int, done: SessionCountsRead) -> None:
        """Read the size of the state in bytes of each session that has a state, in any order."""
        ...

    def read_session_state(self, entity: int, session_id: str, done: SessionStateRead) -> None:
        """Read the state of a session: None if it was never set or was cleared."""
        ...

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int, done: SessionsRead) -> None:
        """Read up to `top` session ids after the first `skip`, in the order of their code points.

        Without `updated_after`: the sessions that have active messages or a state. With it: the sessions whose state
        was set after that time.
        """
        ...

    def read_seen(self, entity: int, since: int, done: SeenRead) -> None:
        """Read the seen keys with a time >= `since`, each with its time, in any order."""
        ...

    def close(self) -> None:
        """Finish the submitted commits, run their callbacks and release the store. Blocks; may be called twice."""
        ...


def _size(messages: list[tuple[int, StoredMessage]]) -> int:
    size = 0
    for _, message in messages:
        size += len(message.payload) if message.body is None else message.size
    return size
