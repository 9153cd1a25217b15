"""Delivery by priority: messages of a higher priority first, and those of one priority in order of their numbers.

Each of the ten priorities has a lane: a backlog with a window of its own. Such a queue has no sessions, so the session
id of a stored message is the name of its lane, and the store finds messages of a lane as it finds those of a session.
So a message is found by its priority without reading those before it, after a restart too. Sequence numbers, peeking
and browsing do not depend on priorities.
"""

from __future__ import annotations

from typing import Final

from peeklock.broker.annex import DEFAULT_PRIORITY, Annex
from peeklock.broker.backlog import Backlog
from peeklock.broker.waiting import Waiting
from peeklock.store.base import Run, StoredMessage

HIGHEST: Final = 9
"""As in JMS. AMQP allows up to 255 (3.2.1); higher priorities count as this."""
LANES: Final = tuple(f"priority {level}" for level in range(HIGHEST + 1))


def lane_of(annex: bytes | None) -> str:
    """The name of the lane of a message with that annex."""
    priority = None if annex is None else Annex.decode(annex).priority
    return LANES[DEFAULT_PRIORITY if priority is None else min(priority, HIGHEST)]


class PriorityBacklog(Waiting):
    """Active messages of a queue, lane by lane."""

    def __init__(self, lanes: list[Backlog]) -> None:
        """`lanes`: the highest priority first; the session id of a lane is its name."""
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
            is_whole = lane.through == lane.tail  # before the lane reads from a store that may answer at once
            message = lane.take()
            if message is not None or not is_whole:
                return message  # None: the lane has more messages, which are being read; lower priorities wait for them
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
