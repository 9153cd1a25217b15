"""What is handed to the store, copied out of the broker's hands.

The broker may go on changing its objects once `Batch(changes)` has returned; the batch may then go to another thread.
"""

from __future__ import annotations

import json
from typing import Any

from ...base import ACTIVE, MAX_ENTITY, Changes, Counters, StoredEntity, StoredMessage, StoreError
from ..keys import MAX_NUMBER, NUMBER_BITS

Changed = tuple[int, int, int, int | None, int | None]
"""State, delivery count, enqueued at, expires at, due at: what an update changes."""

Kind = tuple[int, int, int, int | None, int | None, bytes | None, bytes | None]
"""All columns of a new message but its key and payload: those of an update, session id and annex."""


class Batch:
    """Changes in the shape of the store's tables; a message is known by its key."""

    def __init__(self, changes: Changes) -> None:
        self.entities = [_entity_row(entity) for entity in changes.entities.values()]
        self.owners = {id for id, _ in changes.appends}
        """Entities that are appended to, which must exist."""
        self.appends: list[tuple[int, Kind, list[bytes]]] = []
        """Those without a body, as runs of neighbours that are alike: the first key, columns, payloads."""
        self.copies: list[tuple[int, bytes, Kind, int]] = []
        """Those with one: its key comes last."""
        self.bodies: dict[int, bytes] = {}
        """Of the copies, by key; the store may have them already."""
        self.updates: dict[int, Changed] = {}
        self.rewrites: dict[int, tuple[Changed, bytes, bytes | None]] = {}
        """What is changed, payload, annex."""
        self.removals = [id << NUMBER_BITS | message.sequence_number for id, message in changes.removals]
        self.freed = {message.body.key for _, message in changes.removals if message.body is not None}
        """Bodies of removed messages, which go unless another message has them."""
        changes.check_runs()
        self.run_updates = [
            (id << NUMBER_BITS | run.first, id << NUMBER_BITS | run.last, before, after)
            for id, run, before, after in changes.run_updates
        ]
        """First key, last key, state before, state."""
        self.run_removals = [
            (id << NUMBER_BITS | run.first, id << NUMBER_BITS | run.last, before)
            for id, run, before in changes.run_removals
        ]
        changes.check_claims()
        self.claims = dict(changes.claims)
        """By entity and id: what is kept of it, or None."""
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        """By entity and session id: the state, or None, and when."""
        self.seen: dict[int, list[bytes]] = {}
        """By the rowid of their history."""
        self.forgotten: dict[int, int] = {}
        """By entity: the rowid before which its history is dropped."""
        self.moves: list[tuple[int, bytes, int]] = []
        """Messages whose payloads are to leave the segment that comes last, if they are still there."""
        self.body_moves: list[tuple[int, bytes, int]] = []
        """As moves, of bodies."""
        self.damaged: list[int] = []
        """Keys of messages that were found damaged, whatever state they are in by now."""
        self.deltas = changes.deltas()
        self.dropped = list(changes.dropped_entities)
        self.size = 0
        """Bytes of payloads, bodies and annexes, of claims, of session ids and states, and of what was seen."""
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
        runs: dict[int, _Run] = {}
        """By entity: the last one."""
        run = _Run()
        owner = 0
        plain: Any = None
        """Columns of the last message that was plain: those of one turn share them, whichever entity they are for."""
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
                    last = runs[id] = _Run()
                run = last
            payload = message.payload
            size += len(payload)
            kind: Any
            if _is_plain(message):
                if plain is None or message.enqueued_at != plain_at or message.annex is not plain_annex:
                    plain_at, plain_annex = message.enqueued_at, message.annex
                    annex_size = 0 if plain_annex is None else len(plain_annex)
                    plain = (*_changed(message), None, plain_annex)
                kind = plain
                size += annex_size
            else:
                annex, body = message.annex, message.body
                # As bytes: in SQLite's JSON a string ends at its first NUL.
                session_id = None if message.session_id is None else message.session_id.encode()
                size += len(session_id or b"") + len(annex or b"")
                kind = (*_changed(message), session_id, annex)
                if body is not None:
                    self.copies.append((id << NUMBER_BITS | number, payload, kind, body.key))
                    if body.key not in self.bodies:
                        self.bodies[body.key] = body.data
                        size += len(body.data)
                    continue
            if number != run.next_number or (kind is not run.kind and kind != run.kind):
                run.kind, run.payloads = kind, []
                self.appends.append((id << NUMBER_BITS | number, kind, run.payloads))
            run.payloads.append(payload)
            run.next_number = number + 1
        self.size += size

    def _update(self, key: int, changed: Changed) -> None:
        if key in self.rewrites:
            self.rewrites[key] = (changed, *self.rewrites[key][1:])
        else:
            self.updates[key] = changed

    def move(self, key: int, payload: bytes, segment: int) -> None:
        self.moves.append((key, payload, segment))
        self.size += len(payload)

    def move_body(self, key: int, data: bytes, segment: int) -> None:
        self.body_moves.append((key, data, segment))
        self.size += len(data)

    def mark_damaged(self, id: int, number: int) -> None:
        self.damaged.append(id << NUMBER_BITS | number)

    @property
    def created(self) -> set[int]:
        return {int(id) for id, *_ in self.entities}

    @property
    def rows(self) -> int:
        appended = sum([len(payloads) for _, _, payloads in self.appends])
        messages = (
            appended + len(self.copies) + len(self.bodies) + len(self.updates) + len(self.rewrites) + len(self.removals)
        )
        runs = len(self.run_updates) + len(self.run_removals) + len(self.damaged)
        others = len(self.claims) + len(self.session_states) + len(self.seen)
        return messages + len(self.moves) + len(self.body_moves) + runs + others

    @property
    def makes_longer(self) -> bool:
        """Something is added that needs room of its own."""
        added = self.appends or self.copies or self.rewrites or self.entities or self.seen
        return bool(added or self.moves or self.body_moves)

    @property
    def stands_alone(self) -> bool:
        """Entities come and go seldom; alone, nothing that a later commit does can come before it."""
        return bool(self.entities or self.dropped)

    @property
    def is_applied_alone(self) -> bool:
        """What is done depends on the state that messages are in, so nothing changes places with it."""
        return bool(self.stands_alone or self.run_updates or self.run_removals or self.damaged)


class _Run:
    """Messages of one entity in the making of a run."""

    def __init__(self) -> None:
        self.next_number = 0
        self.kind: Any = None
        """As an object: compiled, a tuple whose fields are known would be made anew each time."""
        self.payloads: list[bytes] = []


def _is_plain(message: StoredMessage) -> bool:
    """As nearly all are: two of them differ by when they were enqueued, by their payload, and seldom by their annex."""
    return (
        message.state == ACTIVE
        and not message.delivery_count
        and message.expires_at is None
        and message.due_at is None
        and message.session_id is None
        and message.body is None
    )


def counter_row(of: Counters) -> tuple[int, int, int, int, int, int, int]:
    return (of.last_sequence_number, of.active, of.deferred, of.scheduled, of.size_in_bytes, of.damaged, of.claimed)


def _changed(message: StoredMessage) -> Changed:
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
        f"{entity.path}{entity.kind}".encode()
    except UnicodeEncodeError as error:
        raise StoreError(f"An entity's path or kind is not text that can be kept: {error}.") from error
    except (TypeError, ValueError) as error:
        raise StoreError(f"An entity's definition cannot be kept as JSON: {error}.") from error
    counters = counter_row(entity.counters)
    if not all(0 <= counter < 1 << 63 for counter in counters):
        raise StoreError(f"The counters of the entity {entity.id} are not numbers of 63 bits.")
    return (entity.id, entity.path, entity.kind, definition, *counters)
