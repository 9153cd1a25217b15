"""The invariants of windows when no commit and no read is under way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.world import World
from peeklock.broker.backlog import Backlog
from peeklock.broker.queue import Queue
from peeklock.broker.session_queue import SessionQueue
from peeklock.broker.topic import Topic
from peeklock.broker.window_budget import memory_cost
from peeklock.store.base import ACTIVE, MAX_NUMBER, StoredMessage


def check_windows(world: World) -> None:
    """Check that the windows have exactly the active messages of the store, and that their memory is counted."""
    used = 0
    for container in world.namespace.entities:
        assert not container.leaving
        assert not container.watches.under_way
        if isinstance(container, Topic):
            continue
        assert not container.is_swept
        assert not any(lock.settling for lock in container.locks.by_number.values())
        stored = world.stored_of(container.id)
        numbers = {message.sequence_number for message in stored}
        assert numbers >= container.locks.by_number.keys(), "a lock on a message that is gone"
        for backlog in _backlogs(container):
            used += _bytes_in(backlog)
        if isinstance(container, SessionQueue):
            _check_sessions(container, stored, world.clock())
        else:
            for backlog in container._waiting.lanes:
                _check_window(container, backlog, _active(stored, backlog.session_id), world.clock())
    assert world.namespace._machinery.budget.used == used


def _backlogs(queue: Queue | SessionQueue) -> Iterator[Backlog]:
    if isinstance(queue, SessionQueue):
        yield from (session.backlog for session in queue.sessions._held if session.backlog is not None)
    else:
        yield from queue._waiting.lanes


def _active(stored: list[StoredMessage], session: str | None = None) -> dict[int, StoredMessage]:
    return {
        message.sequence_number: message
        for message in stored
        if message.state == ACTIVE and session in (None, message.session_id)
    }


def _check_window(queue: Queue | SessionQueue, backlog: Backlog, active: dict[int, StoredMessage], now: int) -> None:
    window = _window(backlog)
    assert len(window) == len(set(window)), "twice in the window"
    assert not set(window) & queue.locks.by_number.keys(), "locked and waiting"
    known = {number for number in active if number <= backlog._through} - queue.locks.by_number.keys()
    # A claim passes over messages that expired: what removes them reads them from the store.
    expired = {number for number in known if (active[number].expires_at or MAX_NUMBER) <= now}
    assert known - expired <= set(window) <= known, "in the window is what waits"


def _check_sessions(queue: SessionQueue, stored: list[StoredMessage], now: int) -> None:
    counts = Counter(message.session_id for message in stored if message.state == ACTIVE)
    assert {id: session.active for id, session in queue.sessions._by_id.items() if session.active} == dict(counts)
    for id, session in queue.sessions._by_id.items():
        assert session.id == id
        assert session.active or session.holder is not None
        assert (id in queue.sessions._free) == (session.holder is None)
        assert session.holder is not None or not session.locks
        if session.backlog is not None:
            _check_window(queue, session.backlog, _active(stored, id), now)
    assert queue.sessions._free.keys() <= queue.sessions._by_id.keys()
    assert not (queue.sessions._free and queue.sessions._waiters), "somebody waits though a session is free"
    assert sum(len(session.locks) for session in queue.sessions._by_id.values()) == len(queue.locks.by_number)


def _window(backlog: Backlog) -> list[int]:
    numbers = [message.sequence_number for message in backlog._ready]
    numbers += [number for number, _ in backlog._returned.heap]
    return [number for number in numbers if number not in backlog._removed]


def _bytes_in(backlog: Backlog) -> int:
    messages = [*backlog._ready, *(message for _, message in backlog._returned.heap)]
    assert backlog._bytes == sum(map(memory_cost, messages))
    return backlog._bytes
