"""The check of a commit before it is written to the log: every record of the log must be applicable to the index.

So an append to an entity that does not exist, or with a sequence number that is in use, is rejected before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...base import StoredEntity, StoreError
from ..keys import MAX_NUMBER, NUMBER_BITS
from .batch import Batch
from .entry import Entry


class Known:
    """The existing entities, and for each the highest key that a message of it may have."""

    def __init__(self, entities: Iterable[StoredEntity], any_exists: Callable[[list[int]], bool]) -> None:
        self._last = {each.id: each.id << NUMBER_BITS | each.counters.last_sequence_number for each in entities}
        self._any_exists = any_exists
        """Returns whether a message has one of these keys. Reads the index, so it is called only if needed. May raise
        StoreError."""

    def check(self, batch: Batch, entry: Entry, *, is_alone: bool) -> None:
        """Raise StoreError if the commit cannot be applied, or if that is uncertain because others are written with it.

        The highest keys include its appends from now on, also if the commit fails later.
        """
        created = batch.created
        unknown = [id for id in batch.owners if id not in self._last and id not in created]
        if unknown:
            raise StoreError(f"Cannot append a message to entity {min(unknown)}: it does not exist.")
        doubtful: list[int] = []
        for first, _, _, places in entry.appends:
            self._note(first, first + len(places) - 1, doubtful)
        for key, *_ in entry.copies:
            self._note(key, key, doubtful)
        if doubtful:
            self._check_doubtful(batch, doubtful, is_alone)

    def learn(self, batch: Batch) -> None:
        """Update the set of entities after the commit."""
        for id in batch.created:
            self._last.setdefault(id, id << NUMBER_BITS | batch.deltas[id].last_sequence_number)
        for id in batch.dropped:
            self._last.pop(id, None)

    def _note(self, first: int, last: int, doubtful: list[int]) -> None:
        id = first >> NUMBER_BITS
        known = self._last.get(id)
        if known is None or first <= known:
            doubtful.extend(range(first, last + 1))
        if known is not None and last > known:
            self._last[id] = last

    def _check_doubtful(self, batch: Batch, doubtful: list[int], is_alone: bool) -> None:
        """Raise StoreError if one of the keys is in use, or if that cannot be determined.

        The doubtful keys are not above the entity's highest key. They may still be unused, but the index does not know
        yet the commits that are written together with this one.
        """
        keys = [key for key, *_ in batch.copies]
        for first, _, payloads in batch.appends:
            keys += range(first, first + len(payloads))
        if len(set(keys)) < len(keys) or not is_alone or self._any_exists(doubtful):
            numbers = ", ".join(str(key & MAX_NUMBER) for key in doubtful[:3])
            raise StoreError(f"Cannot append messages: a sequence number is in use, among {numbers}.")
