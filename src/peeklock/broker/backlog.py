"""The messages of a queue that wait to be received: a window of the lowest numbers in memory, the rest in the store.

Every active message with a number up to `_through` is in memory here, or was taken; those beyond it are only in
the store, and are read when the window runs low. So memory holds the working set, however long the queue is.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

from peeklock.store.base import Range, Store, StoredMessage, StoreError

log = logging.getLogger(__name__)

FIRST_PAGE_MESSAGES = 128
"""Pages grow from here: most that accept a session take a few messages of it and leave. Where many are in memory the
next page is as long."""
PAGE_MESSAGES = 2048
PAGE_BYTES = 4 * 1024 * 1024
LOW_MESSAGES = 16_384
"""Below this many in memory the next page is read, so that it is there when the window runs out: the store may have to
see to what was committed lately first. Pages that are still growing are half used by then."""
LOW_BYTES = 8 * 1024 * 1024
"""Also below this, or half of what is left of the memory that all windows share, if that is more."""
WINDOW_MESSAGES = 100_000
OBJECT_BYTES: Final = 300
"""What a message costs in memory beside its payload, about."""


_number_of = attrgetter("sequence_number")


def _cost(message: StoredMessage) -> int:
    """Of a message whose body is shared: a share of that."""
    return len(message.payload) + OBJECT_BYTES + (0 if message.body is None else message.body.cost)


class Budget:
    """The memory that all windows of a namespace share."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 128 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0


class Backlog:
    """Waiting messages in order of their numbers."""

    def __init__(
        self,
        entity: int,
        store: Store,
        budget: Budget,
        on_loaded: Callable[[], None],
        on_failed: Callable[[], None] = lambda: None,
        session_id: str | None = None,
        is_out: Callable[[int], bool] = lambda number: False,
    ) -> None:
        self._entity = entity
        self._session_id = session_id
        self._store = store
        self._budget = budget
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._is_out = is_out
        """Whether that message was taken from here and not given back."""
        self._ready: deque[StoredMessage] = deque()
        """Ascending."""
        self._returned: list[tuple[int, StoredMessage]] = []
        """A heap of those that came back, or came late with a low number."""
        self._returned_numbers: set[int] = set()
        self._bytes = 0
        self._through = 0
        self._tail = 0
        self._gone: set[int] = set()
        """Of those here: to be skipped."""
        self._limit = min(FIRST_PAGE_MESSAGES, PAGE_MESSAGES)
        """Messages of the next page."""
        self._low = LOW_MESSAGES
        self._loading = False
        self._forgotten = False
        self._late: list[StoredMessage] = []
        """Arrived, with a number in the range that is being read: the read may have been too early for them."""
        self.held = False
        """While set no page is read: somebody is removing messages that may lie beyond the window."""

    def resume(self, tail: int, any_stored: bool) -> None:
        """Start with what the store has: numbers up to `tail`."""
        self._tail = tail
        self._through = 0 if any_stored else tail

    @property
    def at_hand(self) -> int:
        """About how many can be taken without reading."""
        return len(self._ready)

    @property
    def loading(self) -> bool:
        return self._loading

    def add(self, message: StoredMessage) -> None:
        """A message that is active in the store and now waits here: new, or come back."""
        if self._forgotten:
            return
        number = message.sequence_number
        if number > self._tail:
            whole = self._through == self._tail
            self._tail = number
            if whole and len(self._ready) < WINDOW_MESSAGES and self._budget.used < self._budget.limit:
                self._through = number
                self._ready.append(message)
                self._took_memory(message)
        elif number <= self._through:
            self._put_back(message)
        elif self._loading:
            self._late.append(message)

    def take(self) -> StoredMessage | None:
        """The waiting message with the lowest number. None: there is none, or it is still being read."""
        ready, returned = self._ready, self._returned
        while ready or returned:
            if returned and (not ready or returned[0][0] < ready[0].sequence_number):
                message = heappop(returned)[1]
                self._returned_numbers.discard(message.sequence_number)
            else:
                message = ready.popleft()
            size = len(message.payload) + OBJECT_BYTES if message.body is None else _cost(message)
            self._bytes -= size
            self._budget.used -= size
            if self._gone and message.sequence_number in self._gone:
                self._gone.discard(message.sequence_number)
            else:
                if self._through != self._tail and len(ready) < self._low:
                    self._load()
                return message
        self._load()
        return None

    def discard(self, number: int) -> None:
        """That message left for good while it waited; it is skipped when its turn comes."""
        if number <= self._through:
            self._gone.add(number)

    def forget(self) -> None:
        """The entity is gone: give the memory back."""
        self._forgotten = True
        self._budget.used -= self._bytes
        self._bytes = 0
        self._ready.clear()
        self._returned.clear()
        self._returned_numbers.clear()
        self._gone.clear()
        self._through = self._tail

    def _put_back(self, message: StoredMessage) -> None:
        """Into its place, unless it is there."""
        number = message.sequence_number
        if number in self._gone:
            self._gone.discard(number)  # it was to leave and could not
        # A page may have seen a message before we were told that it is in the store; it may even be taken by now.
        elif number not in self._returned_numbers and not self._is_ready(number) and not self._is_out(number):
            heappush(self._returned, (number, message))
            self._returned_numbers.add(number)
            self._took_memory(message)

    def _is_ready(self, number: int) -> bool:
        ready = self._ready
        if not ready or number < ready[0].sequence_number or number > ready[-1].sequence_number:
            return False
        return ready[bisect_left(ready, number, key=_number_of)].sequence_number == number

    def _took_memory(self, message: StoredMessage) -> None:
        size = len(message.payload) + OBJECT_BYTES if message.body is None else _cost(message)
        self._bytes += size
        self._budget.used += size

    def _load(self) -> None:
        """Read the next page, unless there is none or the window is full enough."""
        if self._loading or self.held or self._through == self._tail:
            return
        if self._ready and self._bytes > max(LOW_BYTES, (self._budget.limit - self._budget.used) // 2):
            return
        self._loading = True
        through, limit = self._tail, min(max(self._limit, len(self._ready)), PAGE_MESSAGES)
        wanted = Range(
            entity=self._entity,
            after=self._through,
            through=through,
            limit=limit,
            max_bytes=PAGE_BYTES,
            session_id=self._session_id,
        )
        self._store.read(wanted, lambda page: self._loaded(page, through, limit))

    def _loaded(self, page: list[StoredMessage] | StoreError, asked_through: int, limit: int) -> None:
        self._loading = False
        late, self._late = self._late, []
        if self._forgotten:
            return
        if isinstance(page, StoreError):
            # Asked again when somebody next wants a message.
            log.error("messages of entity %d could not be read: %s", self._entity, page)
            self._on_failed()
            return
        self._low = LOW_MESSAGES if limit == PAGE_MESSAGES else limit // 2
        self._limit = min(4 * limit, PAGE_MESSAGES)
        whole = len(page) < limit and sum(message.size for message in page) < PAGE_BYTES
        self._through = asked_through if whole else page[-1].sequence_number
        for message in page:
            self._ready.append(message)
            self._took_memory(message)
        for message in late:
            self.add(message)
        self._on_loaded()
