"""A store that forgets: everything lives in this process, and callbacks run at once.

It keeps every promise of `store.base` except outliving the process, at a cost per message that does not
grow with the backlog: sequence numbers stand in sorted blocks, one sorting for each question a read asks.
What is handed over is copied, and so is what is handed out, so that a message here changes by a commit only.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from itertools import islice

from .base import (
    ACTIVE,
    DEFERRED,
    SCHEDULED,
    Changes,
    Committed,
    Counters,
    ExpiredRead,
    MessagesRead,
    Range,
    StoredEntity,
    StoredMessage,
    StoreError,
)

_NUMBER_BITS = 44
_MAX_NUMBER = (1 << _NUMBER_BITS) - 1


class MemoryStore:
    """`store.base.Store` without a disk; what it was given lasts as long as the object, closed or not."""

    def __init__(self) -> None:
        self._entities: dict[int, _Entity] = {}
        self._is_open = False

    def open(self) -> list[StoredEntity]:
        self._is_open = True
        return [_copy_entity(entity.stored) for entity in self._entities.values()]

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
        try:
            self._check_open()
        except StoreError as error:
            done(error)
            return
        entity = self._entities.get(wanted.entity)
        done(entity.read(wanted) if entity else [])

    def read_expired(self, entity: int, now: int, limit: int, done: ExpiredRead) -> None:
        try:
            self._check_open()
        except StoreError as error:
            done(error)
            return
        found = self._entities.get(entity)
        done(found.read_expired(now, limit) if found else ([], None))

    def close(self) -> None:
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError("The store is closed.")

    def _check(self, changes: Changes) -> dict[int, StoredEntity]:
        """Refuse what cannot be done before any of it is done; returns its entities, copied."""
        try:
            entities = {id: _copy_entity(entity) for id, entity in changes.entities.items()}
        except (TypeError, ValueError) as error:
            raise StoreError(f"An entity's definition cannot be kept as JSON: {error}.") from error
        fresh = set()
        for id, message in changes.appends:
            number = message.sequence_number
            if not 0 < number <= _MAX_NUMBER:
                raise StoreError(f"The sequence number {number} is not between 1 and {_MAX_NUMBER}.")
            if id in self._entities:
                taken = number in self._entities[id].messages
            elif id in entities:
                taken = False
            else:
                raise StoreError(f"A message was appended to the entity {id}, which does not exist.")
            if taken or (id, number) in fresh:
                raise StoreError(f"The entity {id} already has a message with the number {number}.")
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
            self._entities[id].add(_copy(message))
        for id, message, _ in changes.updates:
            if owner := self._entities.get(id):
                owner.update(message, with_payload=False)
        for id, message, _, _ in changes.rewrites:
            if owner := self._entities.get(id):
                owner.update(message, with_payload=True)
        for id, message in changes.removals:
            if owner := self._entities.get(id):
                owner.remove(message.sequence_number)
        for id, delta in changes.deltas().items():
            if owner := self._entities.get(id):
                _add(owner.stored.counters, delta)
        for id in changes.dropped_entities:
            self._entities.pop(id, None)


class _Entity:
    """The messages of one entity, and the orders in which they are asked for."""

    def __init__(self, stored: StoredEntity) -> None:
        self.stored = stored
        self.messages: dict[int, StoredMessage] = {}
        self._by_state = {ACTIVE: _SortedNumbers(), DEFERRED: _SortedNumbers(), SCHEDULED: _SortedNumbers()}
        self._by_session: dict[str, _SortedNumbers] = {}
        self._expiries = _SortedNumbers()
        """Of active messages: the time in the high bits, the sequence number in the low ones."""

    def add(self, message: StoredMessage) -> None:
        number = message.sequence_number
        self.messages[number] = message
        self._by_state[message.state].add(number)
        if message.session_id is not None:
            self._by_session.setdefault(message.session_id, _SortedNumbers()).add(number)
        if message.expires_at is not None and message.state == ACTIVE:
            self._expiries.add(message.expires_at << _NUMBER_BITS | number)

    def remove(self, number: int) -> StoredMessage | None:
        message = self.messages.pop(number, None)
        if message is None:
            return None
        self._by_state[message.state].remove(number)
        if message.session_id is not None:
            session = self._by_session[message.session_id]
            session.remove(number)
            if not session:
                del self._by_session[message.session_id]
        if message.expires_at is not None and message.state == ACTIVE:
            self._expiries.remove(message.expires_at << _NUMBER_BITS | number)
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

    def read(self, wanted: Range) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        size = 0
        for number in self._numbers(wanted):
            if len(found) >= wanted.limit:
                break
            message = self.messages[number]
            if wanted.state is None or message.state == wanted.state:
                found.append(_copy(message))
                size += len(message.payload)
                if size >= wanted.max_bytes:
                    break
        return found

    def _numbers(self, wanted: Range) -> Iterator[int]:
        after, through = wanted.after, wanted.through
        if wanted.session_id is not None:
            session = self._by_session.get(wanted.session_id)
            return session.between(after, through) if session else iter(())
        if wanted.state is not None:
            state = self._by_state.get(wanted.state)
            return state.between(after, through) if state else iter(())
        return merge(*(numbers.between(after, through) for numbers in self._by_state.values()))

    def read_expired(self, now: int, limit: int) -> tuple[list[StoredMessage], int | None]:
        first = list(islice(self._expiries.between(-1, None), limit + 1))
        expired = [key for key in first[:limit] if key >> _NUMBER_BITS <= now]
        others = first[len(expired) :]
        return (
            [_copy(self.messages[key & _MAX_NUMBER]) for key in expired],
            others[0] >> _NUMBER_BITS if others else None,
        )


class _SortedNumbers:
    """Distinct numbers in order, in blocks short enough that adding to and taking from one costs nothing."""

    _BLOCK = 1024

    __slots__ = ("_blocks", "_lasts")

    def __init__(self) -> None:
        self._blocks: list[list[int]] = []
        self._lasts: list[int] = []
        """The last number of each block."""

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, number: int) -> None:
        blocks, lasts = self._blocks, self._lasts
        if not lasts or number > lasts[-1]:  # the usual case, numbers being handed out in order
            if blocks and len(blocks[-1]) < self._BLOCK:
                blocks[-1].append(number)
                lasts[-1] = number
            else:
                blocks.append([number])
                lasts.append(number)
            return
        at = bisect_left(lasts, number)
        block = blocks[at]
        insort(block, number)
        if len(block) > 2 * self._BLOCK:
            blocks[at : at + 1] = [block[: self._BLOCK], block[self._BLOCK :]]
            lasts.insert(at, block[self._BLOCK - 1])

    def remove(self, number: int) -> None:
        """The number must be there."""
        at = bisect_left(self._lasts, number)
        block = self._blocks[at]
        del block[bisect_left(block, number)]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def between(self, after: int, through: int | None) -> Iterator[int]:
        """after < number <= through, ascending."""
        for at in range(bisect_right(self._lasts, after), len(self._blocks)):
            block = self._blocks[at]
            for index in range(bisect_right(block, after), len(block)):
                number = block[index]
                if through is not None and number > through:
                    return
                yield number


def _add(counters: Counters, delta: Counters) -> None:
    counters.last_sequence_number = max(counters.last_sequence_number, delta.last_sequence_number)
    counters.active += delta.active
    counters.deferred += delta.deferred
    counters.scheduled += delta.scheduled
    counters.size_in_bytes += delta.size_in_bytes


def _copy(of: StoredMessage) -> StoredMessage:
    return StoredMessage(
        of.sequence_number,
        of.payload,
        of.enqueued_at,
        of.expires_at,
        of.delivery_count,
        of.state,
        of.session_id,
        of.due_at,
        of.annex,
    )


def _copy_entity(entity: StoredEntity) -> StoredEntity:
    definition = json.loads(json.dumps(entity.definition))
    return replace(entity, definition=definition, counters=replace(entity.counters))
