"""A copy of the changes of a commit, in the shape of the index's tables.

The broker may modify its objects after `Batch(changes)` has returned, and the batch may be used on another thread.
"""

from __future__ import annotations

import json
from typing import Any

from ...base import ACTIVE, MAX_ENTITY_ID, Changes, Counters, StoredEntity, StoredMessage, StoreError
from ..keys import MAX_NUMBER, NUMBER_BITS

Changed = tuple[int, int, int, int | None, int | None]
"""The columns that an update changes: state, delivery count, enqueued_at, expires_at, due_at."""

Columns = tuple[int, int, int, int | None, int | None, bytes | None, bytes | None]
"""The columns of a new message except key and payload: the ones in `Changed`, session id, annex."""


class Batch:
    """The changes of one commit as rows; messages are identified by their keys."""

    def __init__(self, changes: Changes) -> None:
        self.entities = [_entity_row(entity) for entity in changes.entities.values()]
        self.owners = {id for id, _ in changes.appends}
        """Ids of the entities with appended messages; they must exist."""
        self.appends: list[tuple[int, Columns, list[bytes]]] = []
        """Messages without a body, as runs of consecutive keys with equal columns: first key, columns, payloads."""
        self.copies: list[tuple[int, bytes, Columns, int]] = []
        """Messages with a body: key, payload, columns, key of the body."""
        self.bodies: dict[int, bytes] = {}
        """The bodies of the copies, by key; the store may have them already."""
        self.updates: dict[int, Changed] = {}
        self.rewrites: dict[int, tuple[Changed, bytes, bytes | None]] = {}
        """By key: changed columns, payload, annex."""
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
        """By entity id and claim id: the content, or None to delete the claim."""
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        """By entity id and session id: the state, or None to clear it, and the time."""
        self.seen: dict[int, list[bytes]] = {}
        """Keys of duplicate detection, by the rowid in the history table."""
        self.forgotten: dict[int, int] = {}
        """By entity id: the rowid before which its history is deleted."""
        self.moves: list[tuple[int, bytes, int]] = []
        """Payloads to write again, so that their segment can be freed: key, payload, segment. Messages that are no
        longer in that segment are skipped."""
        self.body_moves: list[tuple[int, bytes, int]] = []
        """Bodies to write again, like `moves`."""
        self.damaged: list[int] = []
        """Keys of messages that were found damaged, whatever their state is when the commit is applied."""
        self.deltas = changes.deltas()
        self.dropped = list(changes.dropped_entities)
        self.size = 0
        """Bytes of payloads, bodies, annexes, claims, session ids, session states and seen keys."""
        self._append(changes.appends)
        for id, message, _ in changes.updates:
            self._update(id << NUMBER_BITS | message.sequence_number, _changed(message))
        for id, message, _, _ in changes.rewrites:
            key = id << NUMBER_BITS | message.sequence_number
            self.updates.pop(key, None)
            self.rewrites[key] = (_changed(message), message.payload, message.annex)
            self.size += len(message.payload) + len(message.annex or b"")
        for (_, claim), content in self.claims.items():
            self.size += len(claim) + len(content or b"")
        for id, session_id, state, updated_at in changes.session_states:
            name = session_id.encode()
            self.session_states[id, name] = (state, updated_at)
            self.size += len(name) + len(state or b"")
        changes.check_seen()
        for id, seen, at in changes.seen:
            self.seen.setdefault(id << NUMBER_BITS | at, []).append(seen)
            self.size += len(seen)
        for id, before in changes.forgotten:
            self.forgotten[id] = max((id << NUMBER_BITS) + min(before, MAX_NUMBER + 1), self.forgotten.get(id, 0))

    def _append(self, appends: list[tuple[int, StoredMessage]]) -> None:
        size = 0
        runs: dict[int, _RunBuilder] = {}
        """By entity id: the last run."""
        run = _RunBuilder()
        owner = 0
        plain: Any = None
        """Columns of the last plain message: messages of one commit mostly share them, also across entities."""
        plain_at = 0
        plain_annex: bytes | None = None
        annex_size = 0
        for id, message in appends:
            number = message.sequence_number
            if not 0 < number <= MAX_NUMBER:
                raise StoreError(f"The sequence number {number} is not between 1 and {MAX_NUMBER}.")
            if id != owner:
                owner = id
                last = runs.get(id)
                if last is None:
                    last = runs[id] = _RunBuilder()
                run = last
            payload = message.payload
            size += len(payload)
            columns: Any
            if _is_plain(message):
                if plain is None or message.enqueued_at != plain_at or message.annex is not plain_annex:
                    plain_at, plain_annex = message.enqueued_at, message.annex
                    annex_size = 0 if plain_annex is None else len(plain_annex)
                    plain = (*_changed(message), None, plain_annex)
                columns = plain
                size += annex_size
            else:
                annex, body = message.annex, message.body
                # As bytes: in SQLite's JSON a string ends at its first NUL.
                session_id = None if message.session_id is None else message.session_id.encode()
                size += len(session_id or b"") + len(annex or b"")
                columns = (*_changed(message), session_id, annex)
                if body is not None:
                    self.copies.append((id << NUMBER_BITS | number, payload, columns, body.key))
                    if body.key not in self.bodies:
                        self.bodies[body.key] = body.data
                        size += len(body.data)
                    continue
            if number != run.next_number or (columns is not run.columns and columns != run.columns):
                run.columns, run.payloads = columns, []
                self.appends.append((id << NUMBER_BITS | number, columns, run.payloads))
            run.payloads.append(payload)
            run.next_number = number + 1
        self.size += size

    def _update(self, key: int, changed: Changed) -> None:
        if key in self.rewrites:
            self.rewrites[key] = (changed, *self.rewrites[key][1:])
        else:
            self.updates[key] = changed

    def move(self, key: int, payload: bytes, segment: int) -> None:
        """Write the payload of a message again, if it is still in this segment."""
        self.moves.append((key, payload, segment))
        self.size += len(payload)

    def move_body(self, key: int, data: bytes, segment: int) -> None:
        """Write a body again, if it is still in this segment."""
        self.body_moves.append((key, data, segment))
        self.size += len(data)

    def mark_damaged(self, id: int, number: int) -> None:
        self.damaged.append(id << NUMBER_BITS | number)

    @property
    def created(self) -> set[int]:
        """Ids of the entities that this commit creates or changes."""
        return {int(id) for id, *_ in self.entities}

    @property
    def rows(self) -> int:
        """The number of rows that the commit adds, changes or removes; a run counts as one."""
        appended = sum([len(payloads) for _, _, payloads in self.appends])
        messages = (
            appended + len(self.copies) + len(self.bodies) + len(self.updates) + len(self.rewrites) + len(self.removals)
        )
        runs = len(self.run_updates) + len(self.run_removals) + len(self.damaged)
        others = len(self.claims) + len(self.session_states) + len(self.seen)
        return messages + len(self.moves) + len(self.body_moves) + runs + others

    @property
    def needs_space(self) -> bool:
        """Whether the commit adds data, for which the disk must have space besides the reserve."""
        added = self.appends or self.copies or self.rewrites or self.entities or self.seen
        return bool(added or self.moves or self.body_moves)

    @property
    def is_logged_alone(self) -> bool:
        """Whether the commit creates or drops entities.

        Such a commit is never in a group with others, so no later commit is written or applied before it.
        """
        return bool(self.entities or self.dropped)

    @property
    def is_applied_alone(self) -> bool:
        """Whether the commit depends on the current state of messages, so that it must not be joined with others."""
        return bool(self.is_logged_alone or self.run_updates or self.run_removals or self.damaged)


class _RunBuilder:
    """The run of one entity that messages are being appended to."""

    def __init__(self) -> None:
        self.next_number = 0
        self.columns: Any = None
        """Typed as Any: compiled code would copy a tuple with known item types at each assignment."""
        self.payloads: list[bytes] = []


def _is_plain(message: StoredMessage) -> bool:
    """Return whether only number, payload, enqueued_at and annex distinguish the message from a default one.

    Nearly all messages are plain.
    """
    return (
        message.state == ACTIVE
        and not message.delivery_count
        and message.expires_at is None
        and message.due_at is None
        and message.session_id is None
        and message.body is None
    )


def counter_row(counters: Counters) -> tuple[int, int, int, int, int, int, int]:
    return (
        counters.last_sequence_number,
        counters.active,
        counters.deferred,
        counters.scheduled,
        counters.size_in_bytes,
        counters.damaged,
        counters.claimed,
    )


def _changed(message: StoredMessage) -> Changed:
    return (
        message.state,
        message.delivery_count,
        message.enqueued_at,
        message.expires_at,
        message.due_at,
    )


def _entity_row(entity: StoredEntity) -> tuple[int | str, ...]:
    if not 0 < entity.id <= MAX_ENTITY_ID:
        raise StoreError(f"The entity id {entity.id} is not between 1 and {MAX_ENTITY_ID}.")
    try:
        definition = json.dumps(entity.definition)
        f"{entity.path}{entity.kind}".encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"The path or kind of an entity cannot be encoded as UTF-8: {error}.") from error
    except (TypeError, ValueError) as error:
        raise StoreError(f"The definition of an entity cannot be saved as JSON: {error}.") from error
    counters = counter_row(entity.counters)
    if not all(0 <= counter < 1 << 63 for counter in counters):
        raise StoreError(f"The counters of entity {entity.id} must be from 0 to {(1 << 63) - 1}.")
    return (entity.id, entity.path, entity.kind, definition, *counters)
