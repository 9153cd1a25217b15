"""What the bytes of an HTTP connection go to first, before the server's own protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from peeklock.server.admission import TOO_MANY, Ticket
from peeklock.server.listener import tell_refused
from peeklock.server.logs import event
from peeklock.server.peers import peer_name
from peeklock.server.shell import Shell

log = logging.getLogger(__name__)


class FirstRequest(asyncio.Protocol):
    """Stands before the server's protocol, and says in the log when the first request did not come in time.

    For later ones the server has a limit of its own; that a connection stays idle is usual, and not worth a line.
    """

    def __init__(
        self,
        inner: asyncio.Protocol,
        silent: dict[asyncio.Protocol, FirstRequest],
        seconds: float,
        ticket: Ticket,
        on_lost: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._ticket = ticket
        self._on_lost = on_lost
        self._silent = silent
        self._seconds = seconds
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.unfinished = 0
        """What came of a WebSocket message that is not whole yet, while that is counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._silent[self._inner] = self
        self._deadline = asyncio.get_running_loop().call_later(self._seconds, self._give_up)
        self._ticket.evict = self._evict
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.came()
        self._inner.connection_lost(exc)
        self._on_lost()

    def count_unfinished(self, shell: Shell) -> None:
        """Count what comes until the shell's client has logged in: the server keeps a message until it is whole."""

        def counted(data: bytes) -> None:
            self.unfinished += len(data)
            self._inner.data_received(data)
            if not shell.note_unfinished(self.unfinished):
                self._receive_by(self._inner.data_received)

        self._receive_by(counted)

    @contextmanager
    def watched(self, on_paused: Callable[[], None]) -> Iterator[None]:
        """As long as this lasts, `on_paused` is told when no more is read, so that the client's end is not seen."""

        def watching(data: bytes) -> None:
            self._inner.data_received(data)
            if not self._transport.is_reading():
                on_paused()

        self._receive_by(watching)
        if not self._transport.is_reading():
            on_paused()
        try:
            yield
        finally:
            self._receive_by(self._inner.data_received)

    def _receive_by(self, receive: Callable[[bytes], None]) -> None:
        """The loop knows a protocol's method, so it is told of another."""
        self.data_received = receive  # type: ignore[method-assign,assignment]
        if not self._transport.is_closing():
            self._transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def came(self) -> None:
        """The request has, or never will."""
        self._deadline.cancel()
        self._silent.pop(self._inner, None)

    def _give_up(self) -> None:
        peer = peer_name(self._transport)
        event(log, logging.WARNING, "connection dropped", peer=peer, reason="its request did not come in time")
        self.came()
        self._transport.abort()

    def _evict(self) -> None:
        tell_refused(peer_name(self._transport), TOO_MANY)
        self.came()
        self._transport.abort()
