"""The active messages of a queue: a window of the lowest sequence numbers in memory, the rest in the store.

Every active message with a number up to `_through` is in memory, or was taken. Messages with higher numbers are only in
the store and are read when the window runs low. So memory holds the working set, whatever the length of the queue.

All messages in memory count in a budget that all windows share. If a message is returned when the budget is used up,
this window is shortened: the messages with the highest numbers are dropped from memory and read again later.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from operator import attrgetter

from peeklock.broker.claim_records import Coverage
from peeklock.broker.paging import Paging
from peeklock.broker.return_log import ReturnLog
from peeklock.broker.returned_messages import ReturnedMessages
from peeklock.broker.waiting import Waiting
from peeklock.broker.window_budget import Budget, memory_cost
from peeklock.store.base import MAX_NUMBER, Range, Run, Store, StoredMessage, StoreError

log = logging.getLogger(__name__)

WINDOW_MESSAGES = 100_000
_number_of = attrgetter("sequence_number")


ReadPage = Callable[[Callable[[list[StoredMessage] | StoreError], None]], None]
PageRead = Callable[[list[StoredMessage] | StoreError, set[int]], None]
"""Called with the page, and with the numbers of messages that changed while it was read."""


def _unwatched(read: ReadPage, found: PageRead) -> None:
    """Read a page without noting changes. (mypyc does not compile a lambda within a lambda that is a default.)"""
    read(lambda page: found(page, set()))


class Backlog(Waiting):
    """Active messages in order of their numbers: all messages of a queue, or of one session or priority."""

    def __init__(
        self,
        entity: int,
        store: Store,
        budget: Budget,
        on_loaded: Callable[[], None],
        on_failed: Callable[[], None] = lambda: None,
        session_id: str | None = None,
        is_taken: Callable[[int], bool] = lambda number: False,
        watch: Callable[[ReadPage, PageRead], None] = _unwatched,
    ) -> None:
        self._entity = entity
        self.session_id = session_id
        """The session or priority whose messages it has; None: all messages of the queue."""
        self._store = store
        self._budget = budget
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._is_taken = is_taken
        """Whether a message was taken and not returned."""
        self._watch = watch
        """Reads a page and notes which messages change meanwhile. Used if messages of the page may have been taken."""
        self._ready: deque[StoredMessage] = deque()
        """The messages of the window except returned ones, by ascending number."""
        self._returned = ReturnedMessages()
        """Messages that were returned, or that arrived late with a low number."""
        self._bytes = 0
        self._through = 0
        self._tail = 0
        self._read_again = 0
        """Messages beyond the window and up to this number may be taken, because the window was longer before."""
        self._back_beyond = MAX_NUMBER
        """The lowest number returned beyond the window since a claim last began to search."""
        self._removed: set[int] = set()
        """Numbers of messages in memory that were removed. `take` skips them."""
        self._paging = Paging(budget)
        self._loading = False
        self._is_load_watched = False
        self._returns: ReturnLog | None = None
        """Set while consumers with selectors use the window."""
        self._forgotten = False
        self._late: list[StoredMessage] = []
        """Messages that arrived with a number in the range that is being read. The page may not have them."""
        self._missed: int | None = None
        """The lowest number of messages that belong into `_late` but did not fit into the memory budget."""
        self.held = False
        """While set, no page is read, because a sweep removes messages beyond the window."""

    def resume(self, tail: int, any_stored: bool) -> None:
        """At start: set the highest number in the store, and whether the store has any message."""
        self._tail = tail
        self._through = 0 if any_stored else tail

    @property
    def lanes(self) -> list[Backlog]:
        return [self]

    def hold(self, held: bool) -> None:
        self.held = held

    @property
    def at_hand(self) -> int:
        """About how many messages can be taken without reading from the store."""
        return len(self._ready)

    @property
    def loading(self) -> bool:
        return self._loading

    def add(self, message: StoredMessage) -> None:
        """Add a message that is active in the store: a new one, or one that was returned."""
        if self._forgotten:
            return
        number = message.sequence_number
        if number > self._tail:
            whole = self._through == self._tail
            self._tail = number
            if whole and len(self._ready) < WINDOW_MESSAGES and self._has_room(message):
                self._through = number
                self._ready.append(message)
                self._took_memory(message)
            return
        if self._returns is not None:
            self._returns.note(number)
        if number <= self._through:
            self._put_back(message)
            return
        self._back_beyond = min(self._back_beyond, number)
        if self._loading:
            if self._has_room(message):
                self._late.append(message)
                self._took_memory(message)
            elif self._missed is None or number < self._missed:
                self._missed = number

    def take(self) -> StoredMessage | None:
        """Take the message with the lowest number. Return None if there is none, or if it is still being read."""
        ready, returned = self._ready, self._returned.heap
        while ready or returned:
            if returned and (not ready or returned[0][0] < ready[0].sequence_number):
                message = self._returned.pop()
            else:
                message = ready.popleft()
            size = memory_cost(message)
            self._bytes -= size
            self._budget.used -= size
            if self._removed and message.sequence_number in self._removed:
                self._removed.discard(message.sequence_number)
            else:
                if self._through != self._tail and len(ready) < self._paging.low:
                    self._load()
                return message
        self._load()
        return None

    def drop(self, message: StoredMessage) -> None:
        number = message.sequence_number
        if number > self._through:
            return
        ready, removed = self._ready, self._removed
        removed.add(number)
        # Release the memory of removed messages at the head: there may be no consumer whose `take` would do it.
        while ready and ready[0].sequence_number in removed:
            message = ready.popleft()
            removed.discard(message.sequence_number)
            self._release_memory(message)

    def begin_claim(self) -> int:
        self._back_beyond = MAX_NUMBER
        return self.next_after(0) - 1

    def drop_runs(self, runs: list[Run]) -> None:
        self.drop_some(runs)
        # No other message up to `last` is active, except messages that were returned meanwhile beyond the window.
        last = runs[-1].last
        self._tail = max(self._tail, last)
        if self._back_beyond <= last:
            self._read_again = max(self._read_again, last)
        self._through = max(self._through, min(last, self._back_beyond - 1))

    def drop_some(self, runs: list[Run]) -> None:
        """Drop claimed messages from memory, if messages between the runs may still be active.

        `drop_runs` also ends the window after the runs. This method does not: other lanes have messages in between.
        """
        ready, last = self._ready, runs[-1].last
        at = 0
        kept: list[StoredMessage] = []
        while ready and ready[0].sequence_number <= last:
            message = ready.popleft()
            number = message.sequence_number
            while runs[at].last < number:
                at += 1
            if number < runs[at].first:
                kept.append(message)
            else:
                self._release_memory(message)
        ready.extendleft(reversed(kept))
        if self._returned.numbers:
            for message in self._returned.remove_all(Coverage(runs).has):
                self._release_memory(message)

    def read_again(self, runs: list[Run]) -> None:
        first = runs[0].first
        self._back_beyond = min(self._back_beyond, first)
        if self._returns is not None:
            self._returns.note_all_from(first)
        if first <= self._through:
            self._shorten(first - 1)
        if self._loading and (self._missed is None or first < self._missed):
            self._missed = first  # the store may have read the page before the messages became active

    def next_after(self, number: int, session_id: str | None = None) -> int:
        ready = self._ready
        at = bisect_right(ready, number, key=_number_of)
        lowest = ready[at].sequence_number if at < len(ready) else max(number, self._through) + 1
        for each in self._returned.numbers:
            if number < each < lowest:
                lowest = each
        return lowest

    # --- for consumers with selectors ---

    def select(self, returns: ReturnLog | None) -> None:
        """Record returned messages in this log from now on; None: stop recording."""
        self._returns = returns

    @property
    def through(self) -> int:
        """The end of the window: active messages up to this number are in memory."""
        return self._through

    @property
    def tail(self) -> int:
        """The highest number of the queue."""
        return self._tail

    @property
    def may_take_beyond(self) -> bool:
        """Whether messages beyond the window can be taken: no page is being read, or its changes are watched."""
        return not self._loading or self._is_load_watched

    def merge_returned(self) -> None:
        """Merge the returned messages into the window, by number."""
        returned = self._returned.clear()
        if len(returned) > 16:
            self._ready = deque(sorted([*self._ready, *returned], key=_number_of))
            return
        for message in returned:
            self._ready.insert(bisect_left(self._ready, message.sequence_number, key=_number_of), message)

    def next_waiting(self, after: int) -> StoredMessage | None:
        """Return the first message in memory above a number. Returned messages count only if they were merged."""
        ready = self._ready
        at = bisect_right(ready, after, key=_number_of)
        while at < len(ready):
            message = ready[at]
            if message.sequence_number not in self._removed:
                return message
            at += 1
        return None

    def waiting(self, number: int) -> StoredMessage | None:
        """Return the message with that number, if it is in memory. Returned messages count only if they were merged."""
        message = self.next_waiting(number - 1)
        return message if message is not None and message.sequence_number == number else None

    def take_out(self, number: int) -> None:
        """Take a message that is in memory."""
        ready = self._ready
        at = bisect_left(ready, number, key=_number_of)
        message = ready[at]
        assert message.sequence_number == number
        del ready[at]
        self._release_memory(message)

    def take_beyond(self, number: int) -> None:
        """Record that a message beyond the window is taken."""
        self._read_again = max(self._read_again, number)

    def forget(self) -> None:
        """Release the memory: the entity was deleted."""
        self._forgotten = True
        self._budget.used -= self._bytes
        self._bytes = 0
        self._ready.clear()
        self._returned.clear()
        self._removed.clear()
        self._late.clear()
        self._through = self._tail

    def _put_back(self, message: StoredMessage) -> None:
        """Put a returned message into the window, unless the window has it."""
        number = message.sequence_number
        if number in self._removed:
            self._removed.discard(number)  # its removal failed, and it is still in memory
        # A page may have had the message before its commit was answered. It may even be taken by now.
        elif number not in self._returned.numbers and not self._is_ready(number) and not self._is_taken(number):
            if not self._has_room(message):
                self._make_room(message)
            if number <= self._through:
                self._returned.push(message)
                self._took_memory(message)

    def _has_room(self, message: StoredMessage) -> bool:
        size = memory_cost(message)
        return self._budget.used + size <= self._budget.limit

    def _make_room(self, message: StoredMessage) -> None:
        """Drop the higher half of the window from memory; if that is not enough, also drop all after the message."""
        held = sorted([*self._ready, *(each for _, each in self._returned.heap)], key=_number_of)
        kept, most = 0, self._bytes // 2
        for each in held:
            kept += memory_cost(each)
            if kept > most:
                self._shorten(each.sequence_number - 1)
                break
        if message.sequence_number <= self._through and not self._has_room(message):
            self._shorten(message.sequence_number - 1)

    def _shorten(self, through: int) -> None:
        """End the window at a number; messages after it are read again."""
        self._read_again = max(self._read_again, self._through)
        self._through = through
        ready = self._ready
        while ready and ready[-1].sequence_number > through:
            self._release_memory(ready.pop())
        for message in self._returned.remove_all(lambda number: number > through):
            self._release_memory(message)
            self._back_beyond = min(self._back_beyond, message.sequence_number)
        self._removed = {number for number in self._removed if number <= through}

    def _is_ready(self, number: int) -> bool:
        ready = self._ready
        if not ready or number < ready[0].sequence_number or number > ready[-1].sequence_number:
            return False
        return ready[bisect_left(ready, number, key=_number_of)].sequence_number == number

    def _took_memory(self, message: StoredMessage) -> None:
        size = memory_cost(message)
        self._bytes += size
        self._budget.used += size

    def _release_memory(self, message: StoredMessage) -> None:
        size = memory_cost(message)
        self._bytes -= size
        self._budget.used -= size

    def _load(self) -> None:
        """Read the next page, unless there is none or the window is full enough."""
        if self._loading or self.held or self._through == self._tail:
            return
        if self._ready and self._paging.is_full_enough(self._bytes):
            return
        self._loading = True
        wanted = Range(
            entity=self._entity,
            after=self._through,
            through=self._tail,
            limit=self._paging.limit(len(self._ready)),
            max_bytes=self._paging.max_bytes,
            session_id=self.session_id,
        )
        read = partial(self._store.read, wanted)
        self._is_load_watched = self._through < self._read_again or self._returns is not None
        if self._is_load_watched:
            self._watch(read, lambda page, changed: self._loaded(page, wanted, changed))
        else:
            read(lambda page: self._loaded(page, wanted, None))

    def _loaded(self, page: list[StoredMessage] | StoreError, wanted: Range, changed: set[int] | None) -> None:
        self._loading = False
        late, self._late = self._late, []
        missed, self._missed = self._missed, None
        if self._forgotten:
            return
        for message in late:
            self._release_memory(message)
        if isinstance(page, StoreError):
            # The page is read again when a consumer next asks for a message.
            log.error("messages of entity %d could not be read: %s", self._entity, page)
            self._on_failed()
            return
        self._paging.on_page(wanted.limit)
        if self._through == wanted.after:  # otherwise the window was shortened, and the page is not adjacent to it
            whole = len(page) < wanted.limit and sum(message.read_size for message in page) < wanted.max_bytes
            self._through = wanted.through if whole else page[-1].sequence_number
            for message in page:
                number = message.sequence_number
                if changed is None or (number not in changed and not self._is_taken(number)):
                    self._ready.append(message)
                    self._took_memory(message)
            for message in late:
                self.add(message)
            if missed is not None and missed <= self._through:
                self._shorten(missed - 1)
        self._on_loaded()
