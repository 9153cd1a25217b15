"""Requests that wait: for the store, and for messages.

A request that waits for messages may wait for minutes. It ends early when its client has gone or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final, Protocol

from aiohttp import web

from peeklock.broker.entity import Done
from peeklock.broker.errors import BrokerError, OperationNotAllowed, ServerBusy


class Crowded(OperationNotAllowed):
    """The connection ends with this answer."""

    def __init__(self) -> None:
        super().__init__("Too many requests have come behind one that waits for a message.")


End = Callable[[BrokerError | None], None]
"""Told why the wait ends, or None when the client has gone."""


class Waits:
    """The waiting requests of all HTTP connections. A connection has one request at a time."""

    def __init__(self) -> None:
        self._ends: dict[object, End] = {}
        """By the protocol of the connection."""
        self._is_stopping = False

    @contextmanager
    def entered(self, request: web.Request, end: End) -> Iterator[None]:
        """As long as this lasts, `end` is told when the client goes or the server stops. It may be told at once.

        A client that sends many requests behind one that waits is not read from, and could go unnoticed: it is Crowded.
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
            with request[CONNECTION].watched(lambda: end(Crowded())):
                yield
        finally:
            self._ends.pop(protocol, None)

    def lost(self, protocol: object) -> None:
        """The connection is gone."""
        end = self._ends.pop(protocol, None)
        if end is not None:
            end(None)

    def stop(self) -> None:
        self._is_stopping = True
        for end in list(self._ends.values()):
            end(_stopping())


class Connection(Protocol):
    """What the bytes of a connection go to first."""

    def watched(self, on_paused: Callable[[], None]) -> AbstractContextManager[None]:
        """As long as this lasts, `on_paused` is told when no more is read from the client."""
        ...


WAITS: Final = web.RequestKey("waits", Waits)
CONNECTION: Final = web.RequestKey("connection", Connection)


def _stopping() -> ServerBusy:
    return ServerBusy("The broker is stopping.")


async def durable(start: Callable[[Done], None]) -> None:
    """Start a change and wait until the store has it; raises why it has not."""
    outcome: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
    # The request may have been given up meanwhile; the change goes on.
    start(lambda error: None if outcome.done() else outcome.set_result(error))
    error = await outcome
    if error is not None:
        raise error
