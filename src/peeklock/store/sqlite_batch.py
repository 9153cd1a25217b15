"""What a SQLite writer applies: changes copied out of the broker's hands, joined, and made parameters.

A batch holds one commit or several that waited together. The broker may go on changing its objects once
`Batch(changes)` has returned; everything else here may run on another thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from .base import MAX_ENTITY, Changes, Counters, StoredEntity, StoredMessage, StoreError
from .sqlite_schema import MAX_NUMBER, NUMBER_BITS

_Changed = tuple[int, int, int, int | None, int | None]
"""State, delivery count, enqueued at, expires at, due at: what an update changes."""

_Rewrite = tuple[_Changed, bytes, bytes | None]
"""What is changed, payload, annex."""

_Kind = tuple[int, int, int, int | None, int | None, bytes | None, bytes | None]
"""All columns of a new message but its key and payload: those of an update, session id and annex."""

_SLICE_BYTES = 32 * 1024 * 1024
"""Bytes of messages handed to SQLite at a time; one message may be longer."""

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Batch:
    """Changes in the shape of the store's tables; a message is known by its key."""

    def __init__(self, changes: Changes) -> None:
        self.entities = [_entity_row(entity) for entity in changes.entities.values()]
        self.owners = {id for id, _ in changes.appends}
        """Entities that are appended to, which must exist."""
        self.appends: list[tuple[int, bytes, _Kind]] = []
        """Those without a body."""
        self.copies: list[tuple[int, bytes, _Kind, int]] = []
        """Those with one: its key comes last."""
        self.bodies: dict[int, bytes] = {}
        """Of the copies, by key; the store may have them already."""
        self.updates: dict[int, _Changed] = {}
        self.rewrites: dict[int, _Rewrite] = {}
        self.removals = [id << NUMBER_BITS | message.sequence_number for id, message in changes.removals]
        self.freed = {message.body.key for _, message in changes.removals if message.body is not None}
        """Bodies of removed messages, which go unless another message has them."""
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        """By entity and session id: the state, or None, and when."""
        self.seen: dict[int, list[bytes]] = {}
        """By the rowid of their history."""
        self.forgotten: dict[int, int] = {}
        """By entity: the rowid before which its history is dropped."""
        self.deltas = changes.deltas()
        self.dropped = list(changes.dropped_entities)
        self.size = 0
        """Bytes of payloads, bodies and annexes, of session ids and states, and of what was seen."""
        self._append(changes.appends)
        for id, message, _ in changes.updates:
            self._update(id << NUMBER_BITS | message.sequence_number, _changed(message))
        for id, message, _, _ in changes.rewrites:
            key = id << NUMBER_BITS | message.sequence_number
            self._rewrite(key, (_changed(message), message.payload, message.annex))
            self.size += len(message.payload) + len(message.annex or b"")
        for id, session_id, state, updated_at in changes.session_states:
            name = session_id.encode()
            self.session_states[id, name] = (state, updated_at)
            self.size += len(name) + len(state or b"")
        changes.check_seen()
        for id, seen, at in changes.seen:
            self.seen.setdefault(id << NUMBER_BITS | at, []).append(seen)
            self.size += len(seen)
        for id, before in changes.forgotten:
            self._forget(id, (id << NUMBER_BITS) + min(before, MAX_NUMBER + 1))

    def _append(self, appends: list[tuple[int, StoredMessage]]) -> None:
        size = 0
        for id, message in appends:
            number = message.sequence_number
            if not 0 < number <= MAX_NUMBER:
                raise StoreError(f"The sequence number {number} is not between 1 and {MAX_NUMBER}.")
            key = id << NUMBER_BITS | number
            payload, annex, body = message.payload, message.annex, message.body
            size += len(payload)
            # As bytes: in SQLite's JSON a string ends at its first NUL.
            session_id = None if message.session_id is None else message.session_id.encode()
            if annex is not None or session_id is not None:
                size += len(session_id or b"") + len(annex or b"")
            kind = (
                message.state,
                message.delivery_count,
                message.enqueued_at,
                message.expires_at,
                message.due_at,
                session_id,
                annex,
            )
            if body is None:
                self.appends.append((key, payload, kind))
            else:
                self.copies.append((key, payload, kind, body.key))
                if body.key not in self.bodies:
                    self.bodies[body.key] = body.data
                    size += len(body.data)
        self.size += size

    def _update(self, key: int, changed: _Changed) -> None:
        if key in self.rewrites:
            self.rewrites[key] = (changed, *self.rewrites[key][1:])
        else:
            self.updates[key] = changed

    def _rewrite(self, key: int, rewrite: _Rewrite) -> None:
        self.updates.pop(key, None)
        self.rewrites[key] = rewrite

    def _forget(self, id: int, before: int) -> None:
        self.forgotten[id] = max(before, self.forgotten.get(id, 0))

    @property
    def rows(self) -> int:
        appends = len(self.appends) + len(self.copies) + len(self.bodies)
        messages = appends + len(self.updates) + len(self.rewrites) + len(self.removals)
        return messages + len(self.session_states) + len(self.seen)

    @property
    def is_long(self) -> bool:
        """`parameters` may give several rows."""
        return self.size >= _SLICE_BYTES

    @property
    def makes_longer(self) -> bool:
        """Something is added that needs room of its own."""
        return bool(self.appends or self.copies or self.rewrites or self.entities or self.seen)

    @property
    def stands_alone(self) -> bool:
        """Entities come and go seldom; alone, nothing that a later commit does can come before it."""
        return bool(self.entities or self.dropped)

    @classmethod
    def join(cls, batches: Iterable[Batch]) -> Batch:
        """One batch that does, in one go, what these do one after the other."""
        joined = cls(Changes())
        for batch in batches:
            joined.entities += batch.entities
            joined.owners |= batch.owners
            joined.appends += batch.appends
            joined.copies += batch.copies
            joined.bodies |= batch.bodies
            for key, changed in batch.updates.items():
                joined._update(key, changed)
            for key, rewrite in batch.rewrites.items():
                joined._rewrite(key, rewrite)
            # A removed number never comes back, so nothing of a later batch is meant for it.
            joined.removals += batch.removals
            joined.freed |= batch.freed
            joined.session_states |= batch.session_states
            for key, seen in batch.seen.items():
                joined.seen.setdefault(key, []).extend(seen)
            for id, before in batch.forgotten.items():
                joined._forget(id, before)
            for id, delta in batch.deltas.items():
                joined.deltas[id] = _sum(joined.deltas[id], delta) if id in joined.deltas else delta
            joined.dropped += batch.dropped
            joined.size += batch.size
        return joined

    def parameters(self) -> Iterator[dict[str, Any]]:
        """Rows for the writer's `batch` view, to be inserted in this order; nearly always one.

        `bytes` holds the payloads one after the other, `first_key` and `last_key` the longest run of removals; each of
        the others is a JSON array, mostly of arrays, or None. What is bytes is told by at which byte of `bytes`, from
        1, it begins, and how long it is.
        """
        slice_ = _Slice()
        slice_.put("entities", self.entities)
        slice_.put("owners", sorted(self.owners))
        taken = slice_.take_appends(self.appends, 0)
        while taken < len(self.appends):
            yield slice_.parameters()
            slice_ = _Slice()
            taken = slice_.take_appends(self.appends, taken)
        for body, data in self.bodies.items():
            slice_.add("bodies", body, *slice_.place(data))
            if slice_.size >= _SLICE_BYTES:
                yield slice_.parameters()
                slice_ = _Slice()
        taken = slice_.take_copies(self.copies, 0)
        while taken < len(self.copies):
            yield slice_.parameters()
            slice_ = _Slice()
            taken = slice_.take_copies(self.copies, taken)
        slice_.put("updates", [(key, *changed) for key, changed in self.updates.items()])
        rewrites = list(self.rewrites.items())
        taken = slice_.take_rewrites(rewrites, 0)
        while taken < len(rewrites):
            yield slice_.parameters()
            slice_ = _Slice()
            taken = slice_.take_rewrites(rewrites, taken)
        for (id, name), (state, updated_at) in self.session_states.items():
            slice_.add("session_states", id, *slice_.place(name), *slice_.place(state), updated_at)
            if slice_.size >= _SLICE_BYTES:
                yield slice_.parameters()
                slice_ = _Slice()
        for key, seen in self.seen.items():
            slice_.add("seen", key, *slice_.place(b"".join(seen)))
            if slice_.size >= _SLICE_BYTES:
                yield slice_.parameters()
                slice_ = _Slice()
        runs = list(_runs(self.removals))
        if runs:
            # Mostly there is one run, and SQLite deletes that straight away.
            longest = max(runs, key=lambda run: run[1] - run[0])
            runs.remove(longest)
            slice_.first_key, slice_.last_key = longest
        slice_.put("runs", runs)
        slice_.put("freed", sorted(self.freed))
        slice_.put("forgotten", [(id << NUMBER_BITS, before) for id, before in self.forgotten.items()])
        slice_.put("deltas", [(id, *_counter_row(delta)) for id, delta in self.deltas.items()])
        slice_.put("dropped", self.dropped)
        yield slice_.parameters()


class _Slice:
    """The parameters of one statement in the making."""

    def __init__(self) -> None:
        self.size = 0
        self.first_key: int | None = None
        self.last_key: int | None = None
        """Of the one run of removals that is not among the rows."""
        self._parts: list[bytes] = []
        self._sections: dict[str, list[Any]] = {}

    def place(self, content: bytes | None) -> tuple[int | None, int | None]:
        if content is None:
            return None, None
        begin = self.size + 1
        self._parts.append(content)
        self.size += len(content)
        return begin, len(content)

    def take_appends(self, messages: list[tuple[int, bytes, _Kind]], begin: int) -> int:
        """`place` and `add` for the many, from there to the returned place: all that fit.

        Neighbours that are alike but for their payloads share a row: each is only a number in it, where its payload
        begins in the high bits and how long it is in the low 32.
        """
        runs: list[Any] = []
        places: list[int] = []
        next_key, kind_of_run = -1, None
        parts = self._parts
        taken = begin
        for key, payload, kind in islice(messages, begin, None):
            if self.size >= _SLICE_BYTES:
                break
            if key != next_key or kind != kind_of_run:
                kind_of_run = kind
                *columns, session_id, annex = kind
                places = []
                runs.append((key, *columns, *self.place(session_id), *self.place(annex), places))
            next_key = key + 1
            length = len(payload)
            places.append((self.size + 1) << 32 | length)
            parts.append(payload)
            self.size += length
            taken += 1
        self.put("appends", runs)
        return taken

    def take_copies(self, messages: list[tuple[int, bytes, _Kind, int]], begin: int) -> int:
        """As `take_appends`. Copies of one message go to many entities, so they share a row whatever their keys are:
        each is its key, the place of its payload, and the key of its body. Those of one message follow each other,
        mostly with one payload, which has then one place.
        """
        runs: list[Any] = []
        copies: list[tuple[int, int, int]] = []
        kind_of_run = placed = None
        place = 0
        taken = begin
        for key, payload, kind, body in islice(messages, begin, None):
            if self.size >= _SLICE_BYTES:
                break
            if kind != kind_of_run:
                kind_of_run = kind
                *columns, session_id, annex = kind
                copies = []
                runs.append((*columns, *self.place(session_id), *self.place(annex), copies))
            if payload is not placed:
                placed = payload
                place = (self.size + 1) << 32 | len(payload)
                self.place(payload)
            copies.append((key, place, body))
            taken += 1
        self.put("copies", runs)
        return taken

    def take_rewrites(self, messages: list[tuple[int, _Rewrite]], begin: int) -> int:
        """As `take_appends`: messages are mostly deferred in order, and many at a time."""
        runs: list[Any] = []
        places: list[int] = []
        next_key, changed_of_run, annex_of_run = -1, None, None
        taken = begin
        for key, (changed, payload, annex) in islice(messages, begin, None):
            if self.size >= _SLICE_BYTES:
                break
            if key != next_key or changed != changed_of_run or annex != annex_of_run:
                changed_of_run, annex_of_run = changed, annex
                places = []
                runs.append((key, *changed, *self.place(annex), places))
            next_key = key + 1
            places.append((self.size + 1) << 32 | len(payload))
            self.place(payload)
            taken += 1
        self.put("rewrites", runs)
        return taken

    def add(self, section: str, *row: object) -> None:
        rows = self._sections.get(section)
        if rows is None:
            rows = self._sections[section] = []
        rows.append(row)

    def put(self, section: str, rows: list[Any]) -> None:
        if rows:
            self._sections[section] = rows

    def parameters(self) -> dict[str, Any]:
        # SQLite's substr() gives NULL, not an empty blob, when there is nothing to take from: one byte more.
        parameters: dict[str, Any] = dict.fromkeys(SECTIONS)
        parameters["bytes"] = b"".join([*self._parts, b"\0"])
        parameters["first_key"], parameters["last_key"] = self.first_key, self.last_key
        for section, rows in self._sections.items():
            parameters[section] = _encode(rows)
        return parameters


SECTIONS = (
    "bytes",
    "entities",
    "owners",
    "appends",
    "bodies",
    "copies",
    "updates",
    "rewrites",
    "first_key",
    "last_key",
    "runs",
    "freed",
    "session_states",
    "seen",
    "forgotten",
    "deltas",
    "dropped",
)


def _changed(message: StoredMessage) -> _Changed:
    return (
        message.state,
        message.delivery_count,
        message.enqueued_at,
        message.expires_at,
        message.due_at,
    )


def _entity_row(entity: StoredEntity) -> tuple[int | str, ...]:
    if not 0 < entity.id <= MAX_ENTITY:
        raise StoreError(f"The entity number {entity.id} is not between 1 and {MAX_ENTITY}.")
    try:
        definition = json.dumps(entity.definition)
    except (TypeError, ValueError) as error:
        raise StoreError(f"An entity's definition cannot be kept as JSON: {error}.") from error
    return (entity.id, entity.path, entity.kind, definition, *_counter_row(entity.counters))


def _counter_row(of: Counters) -> tuple[int, int, int, int, int]:
    return (of.last_sequence_number, of.active, of.deferred, of.scheduled, of.size_in_bytes)


def _sum(one: Counters, other: Counters) -> Counters:
    return Counters(
        max(one.last_sequence_number, other.last_sequence_number),
        one.active + other.active,
        one.deferred + other.deferred,
        one.scheduled + other.scheduled,
        one.size_in_bytes + other.size_in_bytes,
    )


def _runs(keys: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours: messages are mostly settled in order."""
    if not keys:
        return
    keys.sort()
    first = last = keys[0]
    for key in keys:
        if key > last + 1:
            yield first, last
            first = key
        last = key
    yield first, last
