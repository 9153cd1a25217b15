"""The messages of a queue that wait to be received: a window of the lowest numbers in memory, the rest in the store.

Every active message with a number up to `_through` is in memory here, or was taken; those beyond it are only in
the store, and are read when the window runs low. So memory holds the working set, however long the queue is.

All that is in memory is counted in a budget that all windows share. A message that comes back when the budget is used
up makes this window shorter: the highest numbers are let go of, and are read again in their turn.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final

from peeklock.broker.claim_records import Coverage
from peeklock.broker.returns import Returns
from peeklock.broker.waiting import Waiting
from peeklock.store.base import MAX_NUMBER, Range, Run, Store, StoredMessage, StoreError

log = logging.getLogger(__name__)

FIRST_PAGE_MESSAGES = 128
"""Pages grow from here: most that accept a session take a few messages of it and leave. Where many are in memory the
next page is as long."""
PAGE_MESSAGES = 2048
PAGE_BYTES = 4 * 1024 * 1024
LEAST_PAGE_BYTES = 64 * 1024
"""What a page has when the budget is used up: every queue can be received from, however much others keep in memory."""
LOW_MESSAGES = 16_384
"""Below this many in memory the next page is read, so that it is there when the window runs out: the store may have to
see to what was committed lately first. Pages that are still growing are half used by then."""
LOW_BYTES = 8 * 1024 * 1024
"""Also below this, or half of what is left of the memory that all windows share, if that is more."""
WINDOW_MESSAGES = 100_000
OBJECT_BYTES: Final = 300
"""What a message costs in memory beside its payload, about."""


_number_of = attrgetter("sequence_number")


def memory_cost(message: StoredMessage) -> int:
    """About what a message holds in memory; of a body that is shared a share."""
    cost = len(message.payload) + OBJECT_BYTES
    if message.body is not None:
        cost += message.body.cost
    if message.annex is not None:
        cost += len(message.annex)
    return cost


ReadPage = Callable[[Callable[[list[StoredMessage] | StoreError], None]], None]
PageRead = Callable[[list[StoredMessage] | StoreError, set[int]], None]
"""(the page, numbers of messages that changed while it was read)"""


def _unwatched(read: ReadPage, found: PageRead) -> None:
    """A function, because mypyc does not compile a lambda within a lambda that is a default."""
    read(lambda page: found(page, set()))


class Budget:
    """The memory that all windows of a namespace share."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = 128 * 1024 * 1024) -> None:
        self.limit = limit
        self.used = 0


class Backlog(Waiting):
    """Waiting messages in order of their numbers: all of a queue, or those of one session or priority."""

    def __init__(
        self,
        entity: int,
        store: Store,
        budget: Budget,
        on_loaded: Callable[[], None],
        on_failed: Callable[[], None] = lambda: None,
        session_id: str | None = None,
        is_out: Callable[[int], bool] = lambda number: False,
        watch: Callable[[ReadPage, PageRead], None] = _unwatched,
    ) -> None:
        self._entity = entity
        self.session_id = session_id
        """None: of any session."""
        self._store = store
        self._budget = budget
        self._on_loaded = on_loaded
        self._on_failed = on_failed
        self._is_out = is_out
        """Whether that message was taken from here and not given back."""
        self._watch = watch
        """Reads a page and tells what changed meanwhile: taken messages, where some may be on the page."""
        self._ready: deque[StoredMessage] = deque()
        """Ascending."""
        self._returned: list[tuple[int, StoredMessage]] = []
        """A heap of those that came back, or came late with a low number."""
        self._returned_numbers: set[int] = set()
        self._bytes = 0
        self._through = 0
        self._tail = 0
        self._read_again = 0
        """Up to this number messages may have been taken though they are beyond the window: it was longer before."""
        self._back_beyond = MAX_NUMBER
        """The lowest number that came back beyond the window since a claim last began to look."""
        self._gone: set[int] = set()
        """Of those here: to be skipped."""
        self._limit = min(FIRST_PAGE_MESSAGES, PAGE_MESSAGES)
        """Messages of the next page."""
        self._low = LOW_MESSAGES
        self._loading = False
        self._is_load_watched = False
        self._returns: Returns | None = None
        """While some look through it for messages that they select."""
        self._forgotten = False
        self._late: list[StoredMessage] = []
        """Arrived, with a number in the range that is being read: the read may have been too early for them."""
        self._missed: int | None = None
        """The lowest number among others like these, for which there was no memory."""
        self.held = False
        """While set no page is read: somebody is removing messages that may lie beyond the window."""

    def resume(self, tail: int, any_stored: bool) -> None:
        """Start with what the store has: numbers up to `tail`."""
        self._tail = tail
        self._through = 0 if any_stored else tail

    @property
    def lanes(self) -> list[Backlog]:
        return [self]

    def hold(self, held: bool) -> None:
        self.held = held

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
        """The waiting message with the lowest number. None: there is none, or it is still being read."""
        ready, returned = self._ready, self._returned
        while ready or returned:
            if returned and (not ready or returned[0][0] < ready[0].sequence_number):
                message = heappop(returned)[1]
                self._returned_numbers.discard(message.sequence_number)
            else:
                message = ready.popleft()
            size = memory_cost(message)
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
        if number > self._through:
            return
        ready, gone = self._ready, self._gone
        gone.add(number)
        while ready and ready[0].sequence_number in gone:  # nobody may come to take them: give their memory back
            message = ready.popleft()
            gone.discard(message.sequence_number)
            self._let_go(message)

    def drop(self, message: StoredMessage) -> None:
        self.discard(message.sequence_number)

    def begin_claim(self) -> int:
        self._back_beyond = MAX_NUMBER
        return self.next_after(0) - 1

    def drop_runs(self, runs: list[Run]) -> None:
        self.drop_some(runs)
        # Nothing else waits up to there, but for what came back meanwhile where the window had not come yet.
        last = runs[-1].last
        self._tail = max(self._tail, last)
        if self._back_beyond <= last:
            self._read_again = max(self._read_again, last)
        self._through = max(self._through, min(last, self._back_beyond - 1))

    def drop_some(self, runs: list[Run]) -> None:
        """As `drop_runs`, when there are some of other lanes among them."""
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
                self._let_go(message)
        ready.extendleft(reversed(kept))
        if self._returned:
            claimed = Coverage(runs)
            for number, message in self._returned:
                if claimed.has(number):
                    self._let_go(message)
            self._returned = [each for each in self._returned if not claimed.has(each[0])]
            heapify(self._returned)
            self._returned_numbers = {number for number, _ in self._returned}

    def read_again(self, runs: list[Run]) -> None:
        first = runs[0].first
        self._back_beyond = min(self._back_beyond, first)
        if self._returns is not None:
            self._returns.note_all_from(first)
        if first <= self._through:
            self._shorten(first - 1)
        if self._loading and (self._missed is None or first < self._missed):
            self._missed = first  # the page may have been read before

    def next_after(self, number: int, session_id: str | None = None) -> int:
        ready = self._ready
        at = bisect_right(ready, number, key=_number_of)
        lowest = ready[at].sequence_number if at < len(ready) else max(number, self._through) + 1
        for each in self._returned_numbers:
            if number < each < lowest:
                lowest = each
        return lowest

    # --- for those who take some messages only ---

    def select(self, returns: Returns | None) -> None:
        """From now on, as long as that is not None, note which messages come back."""
        self._returns = returns

    @property
    def through(self) -> int:
        """The end of the window: waiting messages up to this number are in memory."""
        return self._through

    @property
    def tail(self) -> int:
        """The highest number that there is."""
        return self._tail

    @property
    def may_take_beyond(self) -> bool:
        """Whether a message beyond the window can be taken: no page is on its way that would not notice."""
        return not self._loading or self._is_load_watched

    def merge_returned(self) -> None:
        """Put the messages that came back among the others."""
        returned = [message for _, message in self._returned]
        self._returned.clear()
        self._returned_numbers.clear()
        if len(returned) > 16:
            self._ready = deque(sorted([*self._ready, *returned], key=_number_of))
            return
        for message in returned:
            self._ready.insert(bisect_left(self._ready, message.sequence_number, key=_number_of), message)

    def next_waiting(self, after: int) -> StoredMessage | None:
        """The first message in memory above that number; of those that came back only the ones that were merged."""
        ready = self._ready
        at = bisect_right(ready, after, key=_number_of)
        while at < len(ready):
            message = ready[at]
            if message.sequence_number not in self._gone:
                return message
            at += 1
        return None

    def waiting(self, number: int) -> StoredMessage | None:
        """That message, if it waits in memory; of those that came back only the ones that were merged."""
        message = self.next_waiting(number - 1)
        return message if message is not None and message.sequence_number == number else None

    def take_out(self, number: int) -> None:
        """That message, which is in memory, is taken."""
        ready = self._ready
        at = bisect_left(ready, number, key=_number_of)
        message = ready[at]
        assert message.sequence_number == number
        del ready[at]
        self._let_go(message)

    def take_beyond(self, number: int) -> None:
        """That message, which is beyond the window, is taken."""
        self._read_again = max(self._read_again, number)

    def forget(self) -> None:
        """The entity is gone: give the memory back."""
        self._forgotten = True
        self._budget.used -= self._bytes
        self._bytes = 0
        self._ready.clear()
        self._returned.clear()
        self._returned_numbers.clear()
        self._gone.clear()
        self._late.clear()
        self._through = self._tail

    def _put_back(self, message: StoredMessage) -> None:
        """Into its place, unless it is there."""
        number = message.sequence_number
        if number in self._gone:
            self._gone.discard(number)  # it was to leave and could not
        # A page may have seen a message before we were told that it is in the store; it may even be taken by now.
        elif number not in self._returned_numbers and not self._is_ready(number) and not self._is_out(number):
            if not self._has_room(message):
                self._make_room(message)
            if number <= self._through:
                heappush(self._returned, (number, message))
                self._returned_numbers.add(number)
                self._took_memory(message)

    def _has_room(self, message: StoredMessage) -> bool:
        size = memory_cost(message)
        return self._budget.used + size <= self._budget.limit

    def _make_room(self, message: StoredMessage) -> None:
        """Let go of the higher half of the window and, when that is not enough, of all above the message, and of it."""
        held = sorted([*self._ready, *(each for _, each in self._returned)], key=_number_of)
        kept, most = 0, self._bytes // 2
        for each in held:
            kept += memory_cost(each)
            if kept > most:
                self._shorten(each.sequence_number - 1)
                break
        if message.sequence_number <= self._through and not self._has_room(message):
            self._shorten(message.sequence_number - 1)

    def _shorten(self, through: int) -> None:
        """The window ends here; what is behind it is read again."""
        self._read_again = max(self._read_again, self._through)
        self._through = through
        ready = self._ready
        while ready and ready[-1].sequence_number > through:
            self._let_go(ready.pop())
        for number, message in self._returned:
            if number > through:
                self._let_go(message)
                self._back_beyond = min(self._back_beyond, number)
        self._returned = [each for each in self._returned if each[0] <= through]
        heapify(self._returned)
        self._returned_numbers = {number for number, _ in self._returned}
        self._gone = {number for number in self._gone if number <= through}

    def _is_ready(self, number: int) -> bool:
        ready = self._ready
        if not ready or number < ready[0].sequence_number or number > ready[-1].sequence_number:
            return False
        return ready[bisect_left(ready, number, key=_number_of)].sequence_number == number

    def _took_memory(self, message: StoredMessage) -> None:
        size = memory_cost(message)
        self._bytes += size
        self._budget.used += size

    def _let_go(self, message: StoredMessage) -> None:
        size = memory_cost(message)
        self._bytes -= size
        self._budget.used -= size

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
            max_bytes=min(PAGE_BYTES, max(LEAST_PAGE_BYTES, self._budget.limit - self._budget.used)),
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
            self._let_go(message)
        if isinstance(page, StoreError):
            # Asked again when somebody next wants a message.
            log.error("messages of entity %d could not be read: %s", self._entity, page)
            self._on_failed()
            return
        limit = wanted.limit
        self._low = LOW_MESSAGES if limit == PAGE_MESSAGES else limit // 2
        self._limit = min(4 * limit, PAGE_MESSAGES)
        if self._through == wanted.after:  # else it became shorter meanwhile, and the page does not follow
            whole = len(page) < limit and sum(message.read_size for message in page) < wanted.max_bytes
            self._through = wanted.through if whole else page[-1].sequence_number
            for message in page:
                number = message.sequence_number
                if changed is None or (number not in changed and not self._is_out(number)):
                    self._ready.append(message)
                    self._took_memory(message)
            for message in late:
                self.add(message)
            if missed is not None and missed <= self._through:
                self._shorten(missed - 1)
        self._on_loaded()
