"""The ids of entities: numbers of 19 bits. An id is reused only after all other free ids were used.

The store keeps messages under the id of their entity, so an id belongs to one entity at a time. It is free again when
no commit or read for the deleted entity is under way.
"""

from __future__ import annotations

from collections.abc import Iterable

from peeklock.broker.errors import QuotaExceeded
from peeklock.broker.journal import Journal
from peeklock.store.base import Store


class EntityIds:
    """The ids that are in use, and the next one."""

    def __init__(self, highest: int, journal: Journal, store: Store) -> None:
        self.last = 0
        """The id assigned last. The search for a free id starts after it."""
        self._highest = highest
        self._journal = journal
        self._store = store
        self._taken: set[int] = set()
        self._dropped: list[int] = []
        """Ids of deleted entities that `_free_dropped` does not handle yet, because it is handling others."""
        self._is_waiting = False

    def resume(self, taken: Iterable[int], last: int) -> None:
        """At start: set the ids of all entities in the store, and the id assigned last."""
        self._taken = set(taken)
        self.last = last if 0 < last <= self._highest else max(self._taken, default=0)

    def take(self, count: int) -> list[int]:
        """Assign `count` free ids. Raise QuotaExceeded if there are not enough; then none is assigned."""
        if len(self._taken) + count > self._highest:
            raise QuotaExceeded(
                f"The namespace has {len(self._taken)} entities, its dead-letter and transfer dead-letter queues "
                f"included; at most {self._highest} can exist at once. Delete entities that are not used."
            )
        found: list[int] = []
        candidate = self.last
        while len(found) < count:
            candidate = candidate % self._highest + 1
            if candidate not in self._taken:
                found.append(candidate)
                self._taken.add(candidate)
        self.last = candidate
        return found

    def release(self, ids: Iterable[int]) -> None:
        """Free the ids of entities that could not be created. The store never had them."""
        self._taken.difference_update(ids)

    def retire(self, ids: Iterable[int]) -> None:
        """Free the ids of deleted entities when no commit or read for them is under way."""
        self._dropped += ids
        if not self._is_waiting:
            self._free_dropped()

    def _free_dropped(self) -> None:
        """Free the dropped ids when all commits and reads for the deleted entities are over.

        A commit that failed is tried again in part, after commits that were staged later, so wait until all commits are
        settled. Reads are answered in order, so wait for the answer of one more read.
        """
        ids, self._dropped = self._dropped, []
        self._is_waiting = True

        def settled() -> None:
            self._store.read_session_state(ids[0], "", answered)

        def answered(_: object) -> None:
            self._taken.difference_update(ids)
            self._is_waiting = False
            if self._dropped:
                self._free_dropped()

        self._journal.when_settled(settled)
