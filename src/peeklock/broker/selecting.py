"""Serves the consumers of a queue that have message selectors: they get only the messages that match.

Each consumer has a position: all active messages up to it were evaluated and did not match. So each consumer evaluates
a message once, whatever the length of the queue. Returned messages are recorded for all consumers (`return_log`). In a
queue with priorities there is a position in each lane. Messages in the window are evaluated in memory. Messages beyond
it are read from the store by pages, one read at a time for a queue, and only while a consumer can take messages.

The work of one turn is bounded, so that other connections are served in between, and a long turn is followed by a rest.
Consumers without a selector cause no work here.
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
"""The most work in one turn of the loop: the sum of the costs of evaluating its messages."""
PAGE_BYTES: Final = 256 * 1024
"""The most bytes of a page for a selector of cost 1."""


class Selects(Protocol):
    """A selector (`rules.selectors`)."""

    @property
    def cost(self) -> int:
        """The cost of evaluating a small message."""
        ...

    def work(self, message: StoredMessage) -> int:
        """Return the cost of evaluating the message."""
        ...

    def matches(self, message: StoredMessage) -> bool: ...


class Host(Protocol):
    """The queue, or one session of a queue."""

    @property
    def path(self) -> str: ...

    @property
    def id(self) -> int: ...

    @property
    def is_deleting(self) -> bool:
        """Whether no messages are delivered, because the queue is being deleted."""
        ...

    def wake(self) -> None: ...

    def wake_later(self) -> None: ...

    def is_taken(self, number: int) -> bool:
        """Return whether an active message cannot be received, because it is locked, claimed or being removed."""
        ...

    @property
    def watches(self) -> Watches: ...

    def deliver_selected(self, consumer: Any, message: StoredMessage) -> None:
        """Deliver a message that matched the consumer's selector, or expire it if its time to live is over."""
        ...


class Place:
    """The position of a consumer in one lane."""

    __slots__ = ("backlog", "position", "returns", "seen_returns")

    def __init__(self, backlog: Backlog, returns: ReturnLog) -> None:
        self.backlog = backlog
        self.returns = returns
        self.position = 0
        self.seen_returns = returns.end
        """The index after the last returned message that the consumer has evaluated."""


class Selection:
    """One consumer, its selector and its positions."""

    __slots__ = ("consumer", "is_reading", "places", "selector")

    def __init__(self, consumer: Any, selector: Selects, places: list[Place]) -> None:
        self.consumer = consumer
        self.selector = selector
        self.places = places
        """The positions, in the order of the lanes."""
        self.is_reading = False


class Selecting:
    """All consumers with selectors of one queue or session."""

    def __init__(self, host: Host, machinery: Machinery, lanes: list[Backlog]) -> None:
        self._host = host
        self._store = machinery.store
        self._agenda = machinery.agenda
        self._pace = machinery.pace
        self._lanes = [(lane, ReturnLog()) for lane in lanes]
        self._selections: set[Selection] = set()
        self._wanting: dict[Selection, None] = {}
        """Consumers that could take a message when last asked, in the order of their turns."""
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
        """Queue a consumer that can take messages."""
        if selection in self._selections:
            self._wanting.setdefault(selection)

    def close(self) -> None:
        """Remove all consumers, because the queue was deleted or the session closed."""
        self._selections.clear()
        self._wanting.clear()

    def serve(self) -> None:
        """Do one turn: evaluate messages in memory, and start the next read."""
        if not self._wanting or self._is_resting:
            return
        if self._pace.is_resting:
            self._is_resting = True
            self._pace.when_rested(self._end_rest)
            return
        started = self._agenda.monotonic()
        for lane, _ in self._lanes:
            lane.merge_returned()
        self._serve_consumers()
        self._pace.worked(started)

    def _end_rest(self) -> None:
        self._is_resting = False
        self._host.wake()

    def _serve_consumers(self) -> None:
        work = TURN_WORK
        for selection in list(self._wanting):
            if not selection.is_reading:
                work = self._evaluate(selection, work)
                if work <= 0:
                    self._move_to_end(selection)
                    self._host.wake()
                    return

    def _move_to_end(self, selection: Selection) -> None:
        """Move a consumer to the end of the queue of consumers, so that the others have their turn first."""
        if selection in self._wanting:
            del self._wanting[selection]
            self._wanting[selection] = None

    # --- in memory ---

    def _evaluate(self, selection: Selection, work: int) -> int:
        """Evaluate messages for one consumer until `work` is used up. Return the work that is left."""
        for place in selection.places:
            work, is_complete = self._evaluate_lane(selection, place, work)
            if not is_complete:
                return work
        selection.consumer.on_starved()
        return work

    def _evaluate_lane(self, selection: Selection, place: Place, work: int) -> tuple[int, bool]:
        """Evaluate messages of one lane. Return the work that is left, and whether all of the lane was evaluated."""
        consumer, backlog, returns = selection.consumer, place.backlog, place.returns
        while work > 0:
            if not consumer.ready():
                self._wanting.pop(selection, None)
                break
            if place.seen_returns < returns.first:  # the log has dropped returned messages that were not evaluated
                place.position = min(place.position, returns.lowest_forgotten - 1)
                place.seen_returns = returns.first
            if place.seen_returns < returns.end:
                number = returns.at(place.seen_returns)
                if backlog.through < number <= place.position:
                    self._read_return(selection, place, number)
                    break
                place.seen_returns += 1
                # A message above the position is evaluated when the position reaches it.
                message = backlog.waiting(number) if number <= place.position else None
            else:
                message = backlog.next_waiting(place.position)
                if message is None:
                    place.position = max(place.position, backlog.through)
                    if place.position >= backlog.tail:
                        return work, True
                    self._read_page(selection, place)
                    break
                place.position = message.sequence_number
            if message is not None:
                work -= selection.selector.work(message)
                if selection.selector.matches(message):
                    backlog.take_out(message.sequence_number)
                    self._host.deliver_selected(consumer, message)
        return work, False

    # --- in the store ---

    def _read_page(self, selection: Selection, place: Place) -> None:
        wanted = Range(
            entity=self._host.id,
            after=place.position,
            through=place.backlog.tail,
            limit=max(1, TURN_WORK // selection.selector.cost),
            max_bytes=PAGE_BYTES // selection.selector.cost,
            session_id=place.backlog.session_id,
        )
        read = partial(self._store.read, wanted)
        self._read(selection, place, read, partial(self._evaluate_page, selection, place, wanted))

    def _read_return(self, selection: Selection, place: Place, number: int) -> None:
        read = partial(self._store.read_numbers, self._host.id, [number], PAGE_BYTES)
        self._read(selection, place, read, partial(self._evaluate_return, selection, place, number))

    def _read(
        self,
        selection: Selection,
        place: Place,
        read: Callable[[Callable[[Any], None]], None],
        evaluate: Callable[[list[StoredMessage], set[int]], None],
    ) -> None:
        if self._is_reading or not place.backlog.may_take_beyond:
            return  # the read that is under way wakes the queue when it is answered
        self._is_reading = selection.is_reading = True
        self._move_to_end(selection)

        def found(answer: list[StoredMessage] | StoreError, changed: set[int]) -> None:
            self._is_reading = selection.is_reading = False
            if isinstance(answer, StoreError):
                log.error("messages of '%s' could not be read: %s", self._host.path, answer)
                self._host.wake_later()
                return
            if selection in self._selections and not self._host.is_deleting:
                started = self._agenda.monotonic()
                evaluate(answer, changed)
                self._pace.worked(started)
            self._host.wake()

        self._host.watches.read(read, found)

    def _evaluate_page(
        self, selection: Selection, place: Place, wanted: Range, page: list[StoredMessage], changed: set[int]
    ) -> None:
        if place.backlog.through > wanted.after:
            return  # the window has grown into this page, so its messages must be taken from the window
        for message in page:
            if not self._evaluate_beyond(selection, place, message, changed):
                return
            place.position = message.sequence_number
        if len(page) < wanted.limit and sum(message.read_size for message in page) < wanted.max_bytes:
            place.position = wanted.through

    def _evaluate_return(
        self, selection: Selection, place: Place, number: int, found: list[StoredMessage], changed: set[int]
    ) -> None:
        if number <= place.backlog.through:
            return
        for message in found:
            if not self._evaluate_beyond(selection, place, message, changed):
                return
        place.seen_returns += 1

    def _evaluate_beyond(self, selection: Selection, place: Place, message: StoredMessage, changed: set[int]) -> bool:
        """Evaluate a message beyond the window, and take it if it matches. Return False if it cannot be taken now."""
        number = message.sequence_number
        # A message that changed was taken meanwhile. If it was returned too, the log has it.
        if message.state == ACTIVE and number not in changed and not self._host.is_taken(number):
            if not selection.selector.matches(message):
                return True
            if not selection.consumer.ready():
                return False
            place.backlog.take_beyond(number)
            self._host.deliver_selected(selection.consumer, message)
        return True
