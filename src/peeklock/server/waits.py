"""HTTP requests that wait: for a commit, or for messages.

A request may wait for messages for minutes. Its wait ends early when the client disconnects or the broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from aiohttp import web

from peeklock.broker.entity import Done
from peeklock.broker.errors import BrokerError, OperationNotAllowed, ServerBusy


class TooManyRequests(OperationNotAllowed):
    """The client has sent too many requests behind one that waits. The connection is closed after this answer."""

    def __init__(self) -> None:
        super().__init__("Too many requests were sent on this connection while an earlier one waits for a message.")


End = Callable[[BrokerError | None], None]
"""Ends a wait: called with the error to answer with, or with None if the client has disconnected."""


class Waits:
    """The waiting requests of all HTTP connections. A connection has at most one: requests are handled in order."""

    def __init__(self) -> None:
        self._ends: dict[object, End] = {}
        """By the protocol of the connection."""
        self._is_stopping = False

    @contextmanager
    def registered(self, request: web.Request, end: End) -> Iterator[None]:
        """Within this context, call `end` when the client disconnects or the broker stops; at once if that is so now.

        If the client sends many requests behind the one that waits, aiohttp stops reading from the connection, and a
        disconnect would go unnoticed. So the wait ends with TooManyRequests.
        """
        protocol = request.protocol
        if protocol.transport is None:
            end(None)
            yield
            return
        if self._is_stopping:
            end(_stopping())
        self._ends[protocol] = end
        try:
            with request[CONNECTION].watched(lambda: end(TooManyRequests())):
                yield
        finally:
            self._ends.pop(protocol, None)

    def on_lost(self, protocol: object) -> None:
        """End the wait of a connection that was lost."""
        end = self._ends.pop(protocol, None)
        if end is not None:
            end(None)

    def stop(self) -> None:
        """End all waits, now and later: the broker is stopping."""
        self._is_stopping = True
        for end in list(self._ends.values()):
            end(_stopping())


class Connection(Protocol):
    """The part of a connection's protocol that reports when reading is paused."""

    def watched(self, on_paused: Callable[[], None]) -> AbstractContextManager[None]:
        """Within this context, call `on_paused` when aiohttp stops reading from the client."""
        ...


WAITS: Final = web.RequestKey("waits", Waits)
CONNECTION: Final = web.RequestKey("connection", Connection)


def _stopping() -> ServerBusy:
    return ServerBusy("The broker is stopping.")


async def durable(start: Callable[[Done], None]) -> None:
    """Start a change and wait until it is durable. Raises the error if it fails."""
    outcome: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    # If the request was cancelled, the change continues and its outcome is dropped.
    start(lambda error: None if outcome.done() else outcome.set_result(error))
    error = await outcome
    if error is not None:
        raise error
