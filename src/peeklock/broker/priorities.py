"""Delivery by priority: messages of a higher priority first, and messages of one priority in order of their numbers.

Each of the ten priorities has a lane: a backlog with a window of its own. Such a queue has no sessions, so the session
id of a stored message can hold the name of its lane. The store finds the messages of a lane like those of a session,
without reading lower numbers of other priorities, also after a restart. Sequence numbers, peeking and browsing do not
depend on priorities.
"""

from __future__ import annotations

from typing import Final

from peeklock.broker.annex import DEFAULT_PRIORITY, Annex
from peeklock.broker.backlog import Backlog
from peeklock.broker.waiting import Waiting
from peeklock.store.base import Run, StoredMessage

HIGHEST: Final = 9
"""The highest priority, as in JMS. AMQP allows up to 255 (3.2.1); a higher priority counts as 9."""
LANES: Final = tuple(f"priority {level}" for level in range(HIGHEST + 1))


def lane_of(annex: bytes | None) -> str:
    """Return the name of the lane for a message with that annex."""
    priority = None if annex is None else Annex.decode(annex).priority
    return LANES[DEFAULT_PRIORITY if priority is None else min(priority, HIGHEST)]


class PriorityBacklog(Waiting):
    """The active messages of a queue that delivers by priority: a backlog for each lane."""

    def __init__(self, lanes: list[Backlog]) -> None:
        """`lanes` has the highest priority first. The session id of a lane is its name."""
        self._lanes = lanes
        self._by_name = {lane.session_id: lane for lane in lanes}

    @property
    def lanes(self) -> list[Backlog]:
        return self._lanes

    @property
    def at_hand(self) -> int:
        return sum(lane.at_hand for lane in self._lanes)

    @property
    def loading(self) -> bool:
        return any(lane.loading for lane in self._lanes)

    def resume(self, tail: int, any_stored: bool) -> None:
        for lane in self._lanes:
            lane.resume(tail, any_stored)

    def add(self, message: StoredMessage) -> None:
        self._by_name[message.session_id].add(message)

    def take(self) -> StoredMessage | None:
        for lane in self._lanes:
            is_whole = lane.through == lane.tail  # before `take`, which may read from a store that answers at once
            message = lane.take()
            if message is not None or not is_whole:
                return message  # None: messages of the lane are being read, and lower priorities must wait for them
        return None

    def drop(self, message: StoredMessage) -> None:
        self._by_name[message.session_id].drop(message)

    def drop_runs(self, runs: list[Run]) -> None:
        for lane in self._lanes:
            lane.drop_some(runs)

    def read_again(self, runs: list[Run]) -> None:
        for lane in self._lanes:
            lane.read_again(runs)

    def next_after(self, number: int, session_id: str | None = None) -> int:
        return min(lane.next_after(number) for lane in self._lanes)

    def hold(self, held: bool) -> None:
        for lane in self._lanes:
            lane.hold(held)

    def forget(self) -> None:
        for lane in self._lanes:
            lane.forget()
