"""Events on the broker's side that no client can cause."""

from __future__ import annotations

from peeklock.broker.session_queue import SessionQueue
from serving import BrokerThread


def cut_connections(broker: BrokerThread) -> None:
    """Break the connections of all clients."""

    def cut() -> None:
        for shell in list(broker.broker.shells):
            shell.abort()

    broker.call(cut)


def await_session_waiter(broker: BrokerThread, path: str) -> None:
    """Wait until a client waits for the next session of that queue."""
    queue = broker.broker.namespace.queue(path)
    assert isinstance(queue, SessionQueue)
    while not broker.call(lambda: queue.sessions.waiting):
        pass
