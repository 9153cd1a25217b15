"""What a group of waiting commits changes, together: the rows to write in one transaction.

The commits of a group are merged into sections. Within a section the tables are changed in a fixed order, one statement
for each kind of change; so a commit begins a new section if that order would give another result. A message that is
appended and removed in the same section is never written.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable

from ..base import MAX_NUMBER, Counters, StoredEntity, StoreError
from .batch import Batch, Changed, EntityRow, Rewritten, Row
from .keys import NUMBER_BITS

RunUpdate = tuple[int, int, int, int]
RunRemoval = tuple[int, int, int]


class Known:
    """What the only writer of a namespace knows of its contents."""

    def __init__(self, entities: Iterable[StoredEntity], dropped: Iterable[int]) -> None:
        self.last = {each.id: each.id << NUMBER_BITS | each.counters.last_sequence_number for each in entities}
        """By id of each existing entity: the highest key that a message of it may have."""
        self.dropped = set(dropped)
        """Ids of dropped entities that may still have rows."""


class Section:
    """Changes of commits that can be merged."""

    def __init__(self) -> None:
        self.purges: list[int] = []
        """Dropped entities whose ids new entities use: all their rows are deleted first."""
        self.entities: dict[int, EntityRow] = {}
        self.bodies: dict[int, bytes] = {}
        self.appends: dict[int, Row] = {}
        self.updates: dict[int, Changed] = {}
        self.rewrites: dict[int, Rewritten] = {}
        self.removals: set[int] = set()
        self.freed: set[int] = set()
        self.run_updates: list[RunUpdate] = []
        self.run_removals: list[RunRemoval] = []
        self.claims: dict[tuple[int, bytes], bytes | None] = {}
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        self.seen: dict[int, list[bytes]] = {}
        """Keys of duplicate detection, by the key of the row in the history."""
        self.forgotten: dict[int, int] = {}
        """By entity id: the key of the history before which its rows are deleted."""
        self.deltas: dict[int, Counters] = {}
        self.dropped: list[int] = []
        self._doubtful: set[int] = set()
        """Keys of appends that may be in use. They are written in any case, so that the database decides."""

    @property
    def is_closed(self) -> bool:
        """Whether the next commit needs a new section."""
        return bool(self.run_updates or self.run_removals or self.dropped)

    def add(self, batch: Batch, fresh: dict[int, int], existing: set[int]) -> None:
        """Merge a commit. `fresh` has by entity id the key above which keys are unused, `existing` the entities."""
        for entity in batch.entities:
            id, path, kind, definition, counters = entity
            before = self.entities.get(id)
            self.entities[id] = (id, path, kind, definition, before[4] if before else counters)
        appends = self.appends
        for row in batch.appends:
            key = row[0]
            if key <= fresh[key >> NUMBER_BITS]:
                self._doubtful.add(key)
            appends[key] = row
        for key, changed in batch.updates:
            self._update(key, changed)
        for key, rewritten in batch.rewrites:
            self._rewrite(key, rewritten)
        if batch.removals:
            if appends:
                for key in batch.removals:
                    if key in appends and key not in self._doubtful:
                        del appends[key]
                    else:
                        self.removals.add(key)
            else:
                self.removals.update(batch.removals)
        self.bodies |= batch.bodies
        self.freed |= batch.freed
        self.run_updates += batch.run_updates
        self.run_removals += batch.run_removals
        for name, content in batch.claims.items():
            if name[0] in existing:
                self.claims[name] = content
        for session, state in batch.session_states.items():
            if session[0] in existing:
                self.session_states[session] = state
        for id, key_of_message, at in batch.seen:
            if id in existing:
                self.seen.setdefault(id << NUMBER_BITS | at, []).append(key_of_message)
        for id, before_time in batch.forgotten:
            end = (id << NUMBER_BITS) + min(max(before_time, 0), MAX_NUMBER + 1)
            self.forgotten[id] = max(end, self.forgotten.get(id, 0))
        for id, delta in batch.deltas.items():
            if id not in self.deltas:
                self.deltas[id] = Counters()  # not the commit's own, which may be planned again
            self.deltas[id].add(delta)
        self.dropped += batch.dropped

    def _update(self, key: int, changed: Changed) -> None:
        if (row := self.appends.get(key)) is not None:
            enqueued_at, *others = changed
            self.appends[key] = (key, enqueued_at, row[2], row[3], *others, *row[8:])  # type: ignore[assignment]
        elif (rewritten := self.rewrites.get(key)) is not None:
            enqueued_at, *others = changed
            self.rewrites[key] = (enqueued_at, rewritten[1], rewritten[2], *others)  # type: ignore[assignment]
        else:
            self.updates[key] = changed

    def _rewrite(self, key: int, rewritten: Rewritten) -> None:
        if (row := self.appends.get(key)) is not None:
            self.appends[key] = (key, *rewritten, *row[8:])
        else:
            self.updates.pop(key, None)
            self.rewrites[key] = rewritten


class Plan:
    """The sections of a group. It changes `known` only when `finish` is called."""

    def __init__(self, known: Known) -> None:
        self.sections: list[Section] = []
        self._known = known
        self._last: dict[int, int | None] = {}
        """What the group changes in `Known.last`; None for a dropped entity."""
        self._purged: set[int] = set()

    def add(self, batch: Batch) -> None:
        """Add a commit. Raise StoreError, and add nothing, if an append of it is invalid."""
        created = {row[0] for row in batch.entities}
        section = self.sections[-1] if self.sections else None
        purges = [id for id in created if self._last_of(id) is None and self._was_dropped(id)]
        if section is None or section.is_closed or purges:
            section = Section()
        fresh = self._check(batch, created, section)
        if section not in self.sections:
            self.sections.append(section)
        section.purges += purges
        self._purged.update(purges)
        named = {name[0] for names in (batch.claims, batch.session_states) for name in names}
        named |= {id for id, _, _ in batch.seen}
        existing = {id for id in named if id in created or self._last_of(id) is not None}
        section.add(batch, fresh, existing)
        for id in created:
            if self._last_of(id) is None:
                self._last[id] = 0
        for row in batch.appends:
            id = row[0] >> NUMBER_BITS
            if row[0] > fresh[id]:
                fresh[id] = row[0]
        self._last.update(fresh)
        for id in batch.dropped:
            if self._last_of(id) is not None:
                self._last[id] = None
                self._purged.discard(id)

    def finish(self) -> None:
        """Note that the group is durable."""
        self._known.dropped -= self._purged
        for id, last in self._last.items():
            if last is not None:
                self._known.last[id] = last
            else:
                self._known.last.pop(id, None)
                self._known.dropped.add(id)

    def _check(self, batch: Batch, created: set[int], section: Section) -> dict[int, int]:
        """Return by entity id the highest key in use. Raise StoreError for an append that is refused."""
        fresh: dict[int, int] = {}
        for id in sorted(batch.owners):
            last = self._last_of(id)
            if last is None:
                if id not in created:
                    raise StoreError(f"Cannot append a message to entity {id}: it does not exist.")
                last = 0
            fresh[id] = last
        keys = [row[0] for row in batch.appends]
        taken = section.appends.keys() & keys if section.appends else None
        if taken or len(set(keys)) < len(keys):
            number = (min(taken) if taken else min(key for key in keys if keys.count(key) > 1)) & MAX_NUMBER
            raise StoreError(f"Cannot append messages: a sequence number is in use, among {number}.")
        return fresh

    def _last_of(self, id: int) -> int | None:
        if id in self._last:
            return self._last[id]
        return self._known.last.get(id)

    def _was_dropped(self, id: int) -> bool:
        return (id in self._known.dropped and id not in self._purged) or (id in self._last and self._last[id] is None)


def separate(runs: Iterable[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Divide runs into groups without overlaps, in order: one statement changes each row only once."""
    groups: list[list[tuple[int, ...]]] = []
    spans: list[tuple[int, int]] = []
    for run in runs:
        span = (run[0], run[1])
        at = bisect_right(spans, span)
        overlaps = (at > 0 and spans[at - 1][1] >= span[0]) or (at < len(spans) and spans[at][0] <= span[1])
        if overlaps or not groups:
            groups.append([])
            spans = []
        insort(spans, span)
        groups[-1].append(run)
    return groups
