"""The store in memory: its contents last as long as the process, and callbacks run before the call returns.

It meets the contract of `store.base` except durability. The cost of a message does not grow with the backlog: for each
order that reads use, the sequence numbers are kept in a sorted set. Messages are copied when they are committed and
when they are read, so only a commit changes a stored message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import islice
from typing import TypeVar
from weakref import WeakValueDictionary

from .base import (
    ACTIVE,
    CLAIMED,
    DEFERRED,
    MAX_NUMBER,
    SCHEDULED,
    Body,
    Changes,
    Committed,
    MessagesRead,
    OnDamage,
    Position,
    Range,
    Run,
    RunsRead,
    SeenRead,
    SessionCountsRead,
    SessionsRead,
    SessionStateRead,
    StoredEntity,
    StoredMessage,
    StoreError,
    TimedRead,
    ignore_damage,
)
from .sorted_numbers import SortedNumbers

_Result = TypeVar("_Result")

_NUMBER_BITS = 44
_BEFORE_ALL = -(1 << 128)
_STATES = (ACTIVE, DEFERRED, SCHEDULED, CLAIMED)


class MemoryStore:
    """Implements `store.base.Store` in memory. The contents last as long as the object, also after `close`."""

    def __init__(self) -> None:
        self._entities: dict[int, _Entity] = {}
        self._bodies: WeakValueDictionary[int, Body] = WeakValueDictionary()
        """The bodies of all stored messages, by key."""
        self._is_open = False

    def open(self, on_damage: OnDamage = ignore_damage) -> list[StoredEntity]:
        self._is_open = True
        return [_copy_entity(entity.stored) for entity in self._entities.values()]

    def highest_body_key(self) -> int:
        return max(self._bodies, default=0)

    def claims(self) -> list[tuple[int, bytes, bytes]]:
        return [(id, claim, content) for id, owner in self._entities.items() for claim, content in owner.claims.items()]

    def commit(self, changes: Changes, done: Committed) -> None:
        try:
            self._check_open()
            created = self._check(changes)
        except StoreError as error:
            done(error)
            return
        self._apply(changes, created)
        done(None)

    def read(self, wanted: Range, done: MessagesRead) -> None:
        self._read(wanted.entity, lambda entity: entity.read(wanted), done)

    def read_runs(self, wanted: Range, done: RunsRead, now: int | None = None, excluded: Sequence[int] = ()) -> None:
        if wanted.state is None:
            done(StoreError("A read of runs must name one state."))
        else:
            self._read(wanted.entity, lambda entity: entity.read_runs(wanted, now, excluded), done)

    def read_numbers(self, entity: int, numbers: Sequence[int], max_bytes: int, done: MessagesRead) -> None:
        self._read(entity, lambda entity: entity.read_numbers(numbers, max_bytes), done)

    def read_expired(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        self._read(entity, lambda entity: entity.read_expired(now, limit, max_bytes, after), done)

    def read_due(
        self, entity: int, now: int, limit: int, max_bytes: int, done: TimedRead, after: Position | None = None
    ) -> None:
        self._read(entity, lambda entity: entity.read_due(now, limit, max_bytes, after), done)

    def read_session_counts(self, entity: int, done: SessionCountsRead) -> None:
        self._read(entity, lambda entity: entity.read_session_counts(), done)

    def read_session_state_sizes(self, entity: int, done: SessionCountsRead) -> None:
        self._read(entity, lambda entity: entity.read_session_state_sizes(), done)

    def read_session_state(self, entity: int, session_id: str, done: SessionStateRead) -> None:
        self._read(entity, lambda entity: entity.read_session_state(session_id), done)

    def read_sessions(self, entity: int, updated_after: int | None, skip: int, top: int, done: SessionsRead) -> None:
        self._read(entity, lambda entity: entity.read_sessions(updated_after, skip, top), done)

    def read_seen(self, entity: int, since: int, done: SeenRead) -> None:
        self._read(entity, lambda entity: entity.read_seen(since), done)

    def close(self) -> None:
        self._is_open = False

    def _read(self, id: int, read: Callable[[_Entity], _Result], done: Callable[[_Result | StoreError], None]) -> None:
        """Call `read` with the entity and pass the result to `done`. An entity that does not exist reads as empty."""
        try:
            self._check_open()
        except StoreError as error:
            done(error)
            return
        done(read(self._entities.get(id) or _Entity(StoredEntity(id, "", "", {}))))

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError("The store is closed.")

    def _check(self, changes: Changes) -> dict[int, StoredEntity]:
        """Raise StoreError if the changes are invalid, before any is applied. Return copies of their entities."""
        try:
            entities = {id: _copy_entity(entity) for id, entity in changes.entities.items()}
        except (TypeError, ValueError) as error:
            raise StoreError(f"The definition of an entity cannot be saved as JSON: {error}.") from error
        changes.check_seen()
        changes.check_runs()
        changes.check_claims()
        fresh = set()
        for id, message in changes.appends:
            number = message.sequence_number
            if not 0 < number <= MAX_NUMBER:
                raise StoreError(f"The sequence number {number} is not between 1 and {MAX_NUMBER}.")
            if id in self._entities:
                taken = number in self._entities[id].messages
            elif id in entities:
                taken = False
            else:
                raise StoreError(f"Cannot append a message to entity {id}: it does not exist.")
            if taken or (id, number) in fresh:
                raise StoreError(f"Cannot append a message to entity {id}: sequence number {number} is in use.")
            fresh.add((id, number))
        return entities

    def _apply(self, changes: Changes, entities: dict[int, StoredEntity]) -> None:
        for id, entity in entities.items():
            if existing := self._entities.get(id):
                entity.counters = existing.stored.counters
                existing.stored = entity
            else:
                self._entities[id] = _Entity(entity)
        for id, message in changes.appends:
            kept = message.copy()
            if kept.body is not None:
                kept.body = self._bodies.setdefault(kept.body.key, kept.body)
            self._entities[id].add(kept)
        for id, message, _ in changes.updates:
            if owner := self._entities.get(id):
                owner.update(message, with_payload=False)
        for id, message, _, _ in changes.rewrites:
            if owner := self._entities.get(id):
                owner.update(message, with_payload=True)
        for id, message in changes.removals:
            if owner := self._entities.get(id):
                owner.remove(message.sequence_number)
        for id, run, before, after in changes.run_updates:
            if owner := self._entities.get(id):
                owner.move_run(run, before, after)
        for id, run, before in changes.run_removals:
            if owner := self._entities.get(id):
                owner.remove_run(run, before)
        for (id, claim), content in changes.claims.items():
            if owner := self._entities.get(id):
                owner.set_claim(claim, content)
        for id, session_id, state, updated_at in changes.session_states:
            if owner := self._entities.get(id):
                owner.set_session_state(session_id, state, updated_at)
        for id, key, at in changes.seen:
            if owner := self._entities.get(id):
                owner.see(key, at)
        for id, time in changes.forgotten:
            if owner := self._entities.get(id):
                owner.forget(time)
        for id, delta in changes.deltas().items():
            if owner := self._entities.get(id):
                owner.stored.counters.add(delta)
        for id in changes.dropped_entities:
            self._entities.pop(id, None)


class _Entity:
    """The messages of one entity, with an index for each order that reads use."""

    def __init__(self, stored: StoredEntity) -> None:
        self.stored = stored
        self.messages: dict[int, StoredMessage] = {}
        self._by_state = {state: SortedNumbers() for state in _STATES}
        self._by_session: dict[int, dict[str, SortedNumbers]] = {state: {} for state in _STATES}
        """Sequence numbers by state, then by session id."""
        self._expiries = SortedNumbers()
        """For active messages: expires_at in the high bits, the sequence number in the low bits."""
        self._due_times = SortedNumbers()
        """For scheduled messages: due_at in the high bits, the sequence number in the low bits."""
        self.claims: dict[bytes, bytes] = {}
        """Contents by claim id."""
        self._session_states: dict[str, tuple[bytes, int]] = {}
        """By session id: the state, and the time when it was set."""
        self._seen: dict[int, list[bytes]] = {}
        """Keys of duplicate detection, by the time when they were seen."""
        self._seen_times = SortedNumbers()

    def add(self, message: StoredMessage) -> None:
        number = message.sequence_number
        self.messages[number] = message
        self._by_state[message.state].add(number)
        if message.session_id is not None:
            self._by_session[message.state].setdefault(message.session_id, SortedNumbers()).add(number)
        if message.expires_at is not None and message.state == ACTIVE:
            self._expiries.add(message.expires_at << _NUMBER_BITS | number)
        if message.due_at is not None and message.state == SCHEDULED:
            self._due_times.add(message.due_at << _NUMBER_BITS | number)

    def remove(self, number: int) -> StoredMessage | None:
        message = self.messages.pop(number, None)
        if message is None:
            return None
        self._by_state[message.state].remove(number)
        if message.session_id is not None:
            sessions = self._by_session[message.state]
            session = sessions[message.session_id]
            session.remove(number)
            if not session:
                del sessions[message.session_id]
        if message.expires_at is not None and message.state == ACTIVE:
            self._expiries.remove(message.expires_at << _NUMBER_BITS | number)
        if message.due_at is not None and message.state == SCHEDULED:
            self._due_times.remove(message.due_at << _NUMBER_BITS | number)
        return message

    def update(self, changed: StoredMessage, *, with_payload: bool) -> None:
        message = self.remove(changed.sequence_number)
        if message is None:
            return
        message.state = changed.state
        message.delivery_count = changed.delivery_count
        message.enqueued_at = changed.enqueued_at
        message.expires_at = changed.expires_at
        message.due_at = changed.due_at
        if with_payload:
            message.payload = changed.payload
            message.annex = changed.annex
        self.add(message)

    def move_run(self, run: Run, before: int, after: int) -> None:
        for number in list(self._by_state[before].between(run.first - 1, run.last)):
            message = self.remove(number)
            if message is not None:
                message.state = after
                self.add(message)

    def remove_run(self, run: Run, before: int) -> None:
        for number in list(self._by_state[before].between(run.first - 1, run.last)):
            self.remove(number)

    def set_claim(self, claim: bytes, content: bytes | None) -> None:
        if content is None:
            self.claims.pop(claim, None)
        else:
            self.claims[claim] = content

    def read(self, wanted: Range) -> list[StoredMessage]:
        return self._copies(islice(self._numbers(wanted), wanted.limit), wanted.max_bytes)

    def _copies(self, numbers: Iterable[int], max_bytes: int) -> list[StoredMessage]:
        """Copy these messages, up to the one that reaches `max_bytes`."""
        found: list[StoredMessage] = []
        size = 0
        for number in numbers:
            message = self.messages[number]
            found.append(message.copy())
            size += message.read_size
            if size >= max_bytes:
                break
        return found

    def _numbers(self, wanted: Range) -> Iterator[int]:
        orders = []
        for state in _STATES if wanted.state is None else (wanted.state,):
            if wanted.session_id is None:
                numbers = self._by_state.get(state)
            else:
                numbers = self._by_session.get(state, {}).get(wanted.session_id)
            if numbers:
                orders.append(numbers.between(wanted.after, wanted.through))
        return orders[0] if len(orders) == 1 else merge(*orders)

    def read_runs(self, wanted: Range, now: int | None, excluded: Sequence[int]) -> list[Run]:
        runs: list[Run] = []
        skipped = set(excluded)
        count = size = 0
        for number in self._numbers(wanted):
            message = self.messages[number]
            is_expired = now is not None and message.expires_at is not None and message.expires_at <= now
            if is_expired or number in skipped:
                continue
            if count == wanted.limit:
                break
            if runs and runs[-1].last == number - 1:
                runs[-1] = Run(runs[-1].first, number, runs[-1].size + message.size)
            else:
                runs.append(Run(number, number, message.size))
            count += 1
            size += message.size
            if size >= wanted.max_bytes:
                break
        return runs

    def read_numbers(self, numbers: Sequence[int], max_bytes: int) -> list[StoredMessage]:
        return self._copies((number for number in sorted(set(numbers)) if number in self.messages), max_bytes)

    def read_expired(
        self, now: int, limit: int, max_bytes: int, after: Position | None
    ) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(self._expiries, now, limit, max_bytes, after)

    def read_due(
        self, now: int, limit: int, max_bytes: int, after: Position | None
    ) -> tuple[list[StoredMessage], int | None]:
        return self._read_timed(self._due_times, now, limit, max_bytes, after)

    def _read_timed(
        self, times: SortedNumbers, now: int, limit: int, max_bytes: int, after: Position | None
    ) -> tuple[list[StoredMessage], int | None]:
        behind = _BEFORE_ALL if after is None else after[0] << _NUMBER_BITS | after[1]
        first = list(islice(times.between(behind, None), limit + 1))
        past = (key & MAX_NUMBER for key in first[:limit] if key >> _NUMBER_BITS <= now)
        found = self._copies(past, max_bytes)
        others = first[len(found) :]
        return found, others[0] >> _NUMBER_BITS if others else None

    def read_session_counts(self) -> dict[str, int]:
        ordered = sorted(self._by_session[ACTIVE].items(), key=lambda session: session[1].first)
        return {session_id: len(numbers) for session_id, numbers in ordered}

    def set_session_state(self, session_id: str, state: bytes | None, updated_at: int) -> None:
        if state is None:
            self._session_states.pop(session_id, None)
        else:
            self._session_states[session_id] = (state, updated_at)

    def read_session_state_sizes(self) -> dict[str, int]:
        return {session_id: len(state) for session_id, (state, _) in self._session_states.items()}

    def read_session_state(self, session_id: str) -> bytes | None:
        found = self._session_states.get(session_id)
        return found[0] if found else None

    def read_sessions(self, updated_after: int | None, skip: int, top: int) -> list[str]:
        if updated_after is None:
            names = self._by_session[ACTIVE].keys() | self._session_states.keys()
        else:
            names = {id for id, (_, at) in self._session_states.items() if at > updated_after}
        return sorted(names)[skip : skip + top]

    def see(self, key: bytes, at: int) -> None:
        if at not in self._seen:
            self._seen[at] = []
            self._seen_times.add(at)
        self._seen[at].append(key)

    def forget(self, before: int) -> None:
        for at in list(self._seen_times.between(_BEFORE_ALL, before - 1)):
            self._seen_times.remove(at)
            del self._seen[at]

    def read_seen(self, since: int) -> list[tuple[bytes, int]]:
        return [(key, at) for at in self._seen_times.between(since - 1, None) for key in self._seen[at]]


def _copy_entity(entity: StoredEntity) -> StoredEntity:
    definition = json.loads(json.dumps(entity.definition))
    return replace(entity, definition=definition, counters=replace(entity.counters))
