"""A copy of the changes of a commit, as rows of the tables.

The broker may modify its objects after `Batch(changes)` has returned, and the writer thread uses the batch later.
"""

from __future__ import annotations

import json

from ..base import MAX_ENTITY_ID, MAX_NUMBER, Changes, Counters, StoredEntity, StoredMessage, StoreError
from .keys import NUMBER_BITS

Row = tuple[
    int, int, bytes, bytes | None, int, int, int | None, int | None, bytes | None, int | None, int | None
]  # fmt: skip
"""A new message: key, enqueued_at, payload, annex, state, delivery_count, expires_at, due_at, session_id, key and size
of the body."""

Changed = tuple[int, int, int, int | None, int | None]
"""The columns that an update changes: enqueued_at, state, delivery_count, expires_at, due_at."""

Rewritten = tuple[int, bytes, bytes | None, int, int, int | None, int | None]
"""The columns that a rewrite changes: enqueued_at, payload, annex, state, delivery_count, expires_at, due_at."""

EntityRow = tuple[int, str, str, str, Counters]
"""Id, path, kind, definition, counters."""

_ROW_BYTES = 100
"""What a row takes besides its payload, roughly."""


class Batch:
    """The changes of one commit as rows. Raises StoreError for invalid changes, UnicodeEncodeError for a session id."""

    def __init__(self, changes: Changes) -> None:
        self.entities = [_entity_row(entity) for entity in changes.entities.values()]
        self.owners = {id for id, _ in changes.appends}
        """Ids of the entities with appended messages; they must exist."""
        self.bodies: dict[int, bytes] = {}
        """The bodies of appended messages, by key; the store may have them already."""
        self.appends = [self._row(id, message) for id, message in changes.appends]
        self.updates = [(id << NUMBER_BITS | each.sequence_number, _changed(each)) for id, each, _ in changes.updates]
        self.rewrites = [
            (id << NUMBER_BITS | each.sequence_number, _rewritten(each)) for id, each, _, _ in changes.rewrites
        ]
        self.removals = [id << NUMBER_BITS | message.sequence_number for id, message in changes.removals]
        self.freed = {message.body.key for _, message in changes.removals if message.body is not None}
        """Keys of the bodies of removed messages; the ones without another message are deleted."""
        changes.check_runs()
        self.run_updates = [
            (id << NUMBER_BITS | run.first, id << NUMBER_BITS | run.last, before, after)
            for id, run, before, after in changes.run_updates
        ]
        """First key, last key, previous state, new state."""
        self.run_removals = [
            (id << NUMBER_BITS | run.first, id << NUMBER_BITS | run.last, before)
            for id, run, before in changes.run_removals
        ]
        changes.check_claims()
        self.claims = dict(changes.claims)
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        """By entity id and session id: the state, or None to clear it, and the time."""
        for id, session_id, state, updated_at in changes.session_states:
            self.session_states[id, session_id.encode()] = (state, updated_at)
        changes.check_seen()
        self.seen = list(changes.seen)
        self.forgotten = list(changes.forgotten)
        self.deltas = changes.deltas()
        self.dropped = list(changes.dropped_entities)
        self.rows = (
            len(self.appends) + len(self.updates) + len(self.rewrites) + len(self.removals) + len(self.session_states)
        )
        self.size = self._size()

    def _row(self, id: int, message: StoredMessage) -> Row:
        number = message.sequence_number
        if not 0 < number <= MAX_NUMBER:
            raise StoreError(f"The sequence number {number} is not between 1 and {MAX_NUMBER}.")
        session_id, body = message.session_id, message.body
        if body is not None:
            self.bodies[body.key] = body.data
        return (
            id << NUMBER_BITS | number,
            message.enqueued_at,
            message.payload,
            message.annex,
            message.state,
            message.delivery_count,
            message.expires_at,
            message.due_at,
            None if session_id is None else session_id.encode(),
            None if body is None else body.key,
            None if body is None else len(body.data),
        )

    def _size(self) -> int:
        size = _ROW_BYTES * self.rows
        size += sum([len(row[2]) for row in self.appends]) + sum(map(len, self.bodies.values()))
        size += sum([len(row[1]) for _, row in self.rewrites])
        size += sum([len(content or b"") for content in self.claims.values()])
        return size + sum([len(state or b"") for state, _ in self.session_states.values()])


def _entity_row(entity: StoredEntity) -> EntityRow:
    try:
        definition = json.dumps(entity.definition)
    except (TypeError, ValueError) as error:
        raise StoreError(f"The definition of an entity cannot be saved as JSON: {error}.") from error
    if not 0 < entity.id <= MAX_ENTITY_ID:
        raise StoreError(f"The entity id {entity.id} is not between 1 and {MAX_ENTITY_ID}.")
    counters = Counters()
    counters.add(entity.counters)
    return entity.id, entity.path, entity.kind, definition, counters


def _changed(message: StoredMessage) -> Changed:
    return message.enqueued_at, message.state, message.delivery_count, message.expires_at, message.due_at


def _rewritten(message: StoredMessage) -> Rewritten:
    return (
        message.enqueued_at,
        message.payload,
        message.annex,
        message.state,
        message.delivery_count,
        message.expires_at,
        message.due_at,
    )
