"""Receivers that wait for a session."""

from __future__ import annotations

from typing import Any

import pytest

from nodes.asking import accept_session
from peeklock.client import Connection, Receiver, Timeout
from raw_client import eventually
from serving import BrokerThread


class Waiting:
    """A receiver that asked for the next session and has no answer yet."""

    def __init__(self, connection: Connection, broker: BrokerThread, **options: Any) -> None:
        self.connection = connection
        self._broker = broker
        connection.authenticate("sessions")
        waiting, links = self.waiters, set(connection.session().links)
        with pytest.raises(Timeout):
            accept_session(connection, None, timeout=0, **options)
        eventually(lambda: self.waiters == waiting + 1)
        (link,) = set(connection.session().links) - links
        self.link: Receiver = link.node

    @property
    def waiters(self) -> int:
        queue: Any = self._broker.broker.namespace.queue("sessions")
        return self._broker.call(lambda: queue.sessions.waiting)

    def answered(self) -> Receiver:
        """Wait for the answer to the attach. Raise LinkClosed if it is a refusal."""
        self.link.wait_for(lambda: self.link._answered, 10, "the answer")
        return self.link
