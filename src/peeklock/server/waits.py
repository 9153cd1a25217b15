"""Requests that wait: for the store, and for messages.

A request that waits for messages may wait for minutes. It ends early when its client has gone or the server stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from peeklock.broker.entity import Done
from peeklock.broker.errors import BrokerError, ServerBusy

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
        """As long as this lasts, `end` is told when the client goes or the server stops. It may be told at once."""
        protocol = request.protocol
        if protocol.transport is None:
            end(None)
        elif self._is_stopping:
            end(_stopping())
        self._ends[protocol] = end
        try:
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


WAITS: Final = web.RequestKey("waits", Waits)


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
