"""What the log must know before it takes a commit: what is in it finds its place in the index, whatever comes.

So an append to an entity that does not exist, and a second message with one number, are refused beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...base import StoredEntity, StoreError
from ..keys import MAX_NUMBER, NUMBER_BITS
from .batch import Batch
from .entry import Entry


class Known:
    """Entities, and up to which key each of them may have messages."""

    def __init__(self, entities: Iterable[StoredEntity], are_taken: Callable[[list[int]], bool]) -> None:
        self._last = {each.id: each.id << NUMBER_BITS | each.counters.last_sequence_number for each in entities}
        self._are_taken = are_taken
        """Whether any of these keys is a message's; asks the index, and so is for the seldom case. StoreError."""

    def check(self, batch: Batch, entry: Entry, *, is_alone: bool) -> None:
        """StoreError if it cannot be applied, or if that cannot be said while it is not alone.

        What it appends is known from now on, though it should fail.
        """
        created = batch.created
        unknown = [id for id in batch.owners if id not in self._last and id not in created]
        if unknown:
            raise StoreError(f"A message was appended to the entity {min(unknown)}, which does not exist.")
        doubtful: list[int] = []
        for first, _, _, places in entry.appends:
            self._note(first, first + len(places) - 1, doubtful)
        for key, *_ in entry.copies:
            self._note(key, key, doubtful)
        if doubtful:
            self._check_doubtful(batch, doubtful, is_alone)

    def learn(self, batch: Batch) -> None:
        """It is committed."""
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
        """Numbers mostly rise; those that do not may be new all the same. Of what is written together with this the
        index does not know yet."""
        keys = [key for key, *_ in batch.copies]
        for first, _, payloads in batch.appends:
            keys += range(first, first + len(payloads))
        if len(set(keys)) < len(keys) or not is_alone or self._are_taken(doubtful):
            numbers = ", ".join(str(key & MAX_NUMBER) for key in doubtful[:3])
            raise StoreError(f"A message was appended with a number that another has: among {numbers}.")
