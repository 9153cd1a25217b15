"""Serves consumers of a queue that take only the messages that their selectors match.

Each consumer has a position: all active messages up to it were evaluated and did not match. So each consumer evaluates
a message once, however long the queue is; returned messages are noted for all consumers (`return_log`). In a queue with
priorities there is a position in each lane. Messages in the window are evaluated in memory. Messages beyond it are read
from the store by pages, one read at a time for a queue, and only while a consumer can take messages.

The work of one turn is bounded, so that other connections are served in between, and a long turn is followed by a rest.
Consumers without a selector cost nothing here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from peeklock.broker.backlog import Backlog
from peeklock.broker.errors import QuotaExceeded
from peeklock.broker.return_log import ReturnLog
from peeklock.limits.broker import MAX_SELECTIONS
from peeklock.store.base import ACTIVE, Range, StoredMessage, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.watches import Watches

log = logging.getLogger(__name__)

TURN_WORK: Final = 256
"""The work of one turn of the loop: messages times the cost of their selector."""
PAGE_BYTES: Final = 256 * 1024


class Selects(Protocol):
    """A selector (`rules.selectors`)."""

    @property
    def cost(self) -> int:
        """The cost of evaluating a small message."""
        ...

    def work(self, message: StoredMessage) -> int:
        """The cost of evaluating that message."""
        ...

    def matches(self, message: StoredMessage) -> bool: ...


class Host(Protocol):
    """The queue, or one session."""

    @property
    def path(self) -> str: ...

    @property
    def id(self) -> int: ...

    @property
    def is_deleting(self) -> bool:
        """Whether it is about to be deleted, so that nothing is delivered."""
        ...

    def wake(self) -> None: ...

    def wake_later(self) -> None: ...

    def is_taken(self, number: int) -> bool:
        """Whether an active message cannot be received."""
        ...

    @property
    def watches(self) -> Watches: ...

    def deliver_selected(self, consumer: Any, message: StoredMessage) -> None:
        """Deliver a message that was taken to the consumer; or let it expire, if its time to live is over."""
        ...


class Place:
    """The position of a consumer in one lane."""

    __slots__ = ("backlog", "position", "returns", "seen_returns")

    def __init__(self, backlog: Backlog, returns: ReturnLog) -> None:
        self.backlog = backlog
        self.returns = returns
        self.position = 0
        self.seen_returns = returns.end
        """How many of the returned messages it has evaluated."""


class Selection:
    """One consumer, its selector and its positions."""

    __slots__ = ("consumer", "is_reading", "places", "selector")

    def __init__(self, consumer: Any, selector: Selects, places: list[Place]) -> None:
        self.consumer = consumer
        self.selector = selector
        self.places = places
        """In the order of the lanes."""
        self.is_reading = False


class Selecting:
    """All consumers with selectors of one queue."""

    def __init__(self, host: Host, machinery: Machinery, lanes: list[Backlog]) -> None:
        self._host = host
        self._store = machinery.store
        self._agenda = machinery.agenda
        self._pace = machinery.pace
        self._lanes = [(lane, ReturnLog()) for lane in lanes]
        self._selections: set[Selection] = set()
        self._wanting: dict[Selection, None] = {}
        """Consumers that could take a message when last asked, next in turn first."""
        self._is_reading = False
        self._is_resting = False
        for lane, returns in self._lanes:
            lane.select(returns)

    @property
    def is_over(self) -> bool:
        return not self._selections

    def add(self, consumer: Any, selector: Selects) -> Selection:
        if len(self._selections) >= MAX_SELECTIONS:
            raise QuotaExceeded(
                f"'{self._host.path}' has {MAX_SELECTIONS} receivers with message selectors; no more are allowed."
            )
        selection = Selection(consumer, selector, [Place(lane, returns) for lane, returns in self._lanes])
        self._selections.add(selection)
        return selection

    def remove(self, selection: Selection) -> None:
        self._selections.discard(selection)
        self._wanting.pop(selection, None)
        if not self._selections:
            for lane, _ in self._lanes:
                lane.select(None)

    def want(self, selection: Selection) -> None:
        """The consumer can take messages."""
        if selection in self._selections:
            self._wanting.setdefault(selection)

    def close(self) -> None:
        """The queue was deleted."""
        self._selections.clear()
        self._wanting.clear()

    def serve(self) -> None:
        """Do one turn: evaluate messages in memory, and start the next read."""
        if not self._wanting or self._is_resting:
            return
        if self._pace.is_resting:
            self._is_resting = True
            self._pace.when_rested(self._go_on)
            return
        started = self._agenda.monotonic()
        for lane, _ in self._lanes:
            lane.merge_returned()
        self._look_around()
        self._pace.worked(started)

    def _go_on(self) -> None:
        self._is_resting = False
        self._host.wake()

    def _look_around(self) -> None:
        work = TURN_WORK
        for selection in list(self._wanting):
            if not selection.is_reading:
                work = self._look(selection, work)
                if work <= 0:
                    self._to_the_end(selection)
                    self._host.wake()
                    return

    def _to_the_end(self, selection: Selection) -> None:
        """Let the other consumers have their turn first."""
        if selection in self._wanting:
            del self._wanting[selection]
            self._wanting[selection] = None

    # --- in memory ---

    def _look(self, selection: Selection, work: int) -> int:
        """Evaluate messages as far as the work allows; returns the work that is left."""
        for place in selection.places:
            work, is_over = self._look_at_lane(selection, place, work)
            if not is_over:
                return work
        selection.consumer.starved()
        return work

    def _look_at_lane(self, selection: Selection, place: Place, work: int) -> tuple[int, bool]:
        """As `_look`, in one lane; returns also whether all of the lane was evaluated."""
        consumer, backlog, returns = selection.consumer, place.backlog, place.returns
        while work > 0:
            if not consumer.ready():
                self._wanting.pop(selection, None)
                break
            if place.seen_returns < returns.first:  # some returned messages are no longer noted
                place.position = min(place.position, returns.lowest_forgotten - 1)
                place.seen_returns = returns.first
            if place.seen_returns < returns.end:
                number = returns.at(place.seen_returns)
                if backlog.through < number <= place.position:
                    self._read_return(selection, place, number)
                    break
                place.seen_returns += 1
                # Messages above the position are evaluated in their turn.
                message = backlog.waiting(number) if number <= place.position else None
            else:
                message = backlog.next_waiting(place.position)
                if message is None:
                    place.position = max(place.position, backlog.through)
                    if place.position >= backlog.tail:
                        return work, True
                    self._read_on(selection, place)
                    break
                place.position = message.sequence_number
            if message is not None:
                work -= selection.selector.work(message)
                if selection.selector.matches(message):
                    backlog.take_out(message.sequence_number)
                    self._host.deliver_selected(consumer, message)
        return work, False

    # --- in the store ---

    def _read_on(self, selection: Selection, place: Place) -> None:
        wanted = Range(
            entity=self._host.id,
            after=place.position,
            through=place.backlog.tail,
            limit=max(1, TURN_WORK // selection.selector.cost),
            max_bytes=PAGE_BYTES // selection.selector.cost,
            session_id=place.backlog.session_id,
        )
        read = partial(self._store.read, wanted)
        self._read(selection, place, read, partial(self._look_at_page, selection, place, wanted))

    def _read_return(self, selection: Selection, place: Place, number: int) -> None:
        read = partial(self._store.read_numbers, self._host.id, [number], PAGE_BYTES)
        self._read(selection, place, read, partial(self._look_at_return, selection, place, number))

    def _read(
        self,
        selection: Selection,
        place: Place,
        read: Callable[[Callable[[Any], None]], None],
        look: Callable[[list[StoredMessage], set[int]], None],
    ) -> None:
        if self._is_reading or not place.backlog.may_take_beyond:
            return  # the other read wakes the queue when it is answered
        self._is_reading = selection.is_reading = True
        self._to_the_end(selection)

        def found(answer: list[StoredMessage] | StoreError, changed: set[int]) -> None:
            self._is_reading = selection.is_reading = False
            if isinstance(answer, StoreError):
                log.error("messages of '%s' could not be read: %s", self._host.path, answer)
                self._host.wake_later()
                return
            if selection in self._selections and not self._host.is_deleting:
                started = self._agenda.monotonic()
                look(answer, changed)
                self._pace.worked(started)
            self._host.wake()

        self._host.watches.read(read, found)

    def _look_at_page(
        self, selection: Selection, place: Place, wanted: Range, page: list[StoredMessage], changed: set[int]
    ) -> None:
        if place.backlog.through > wanted.after:
            return  # the window reaches this page now: its messages must be taken from the window
        for message in page:
            if not self._look_beyond(selection, place, message, changed):
                return
            place.position = message.sequence_number
        if len(page) < wanted.limit and sum(message.read_size for message in page) < wanted.max_bytes:
            place.position = wanted.through

    def _look_at_return(
        self, selection: Selection, place: Place, number: int, found: list[StoredMessage], changed: set[int]
    ) -> None:
        if number <= place.backlog.through:
            return
        for message in found:
            if not self._look_beyond(selection, place, message, changed):
                return
        place.seen_returns += 1

    def _look_beyond(self, selection: Selection, place: Place, message: StoredMessage, changed: set[int]) -> bool:
        """Evaluate a message beyond the window, and take it if it matches; False if it cannot be taken now."""
        number = message.sequence_number
        # A changed message was taken meanwhile; if it was returned, that is noted.
        if message.state == ACTIVE and number not in changed and not self._host.is_taken(number):
            if not selection.selector.matches(message):
                return True
            if not selection.consumer.ready():
                return False
            place.backlog.take_beyond(number)
            self._host.deliver_selected(selection.consumer, message)
        return True
