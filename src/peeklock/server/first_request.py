"""The protocol of an HTTP connection in front of aiohttp's own: a deadline for the first request, and byte counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from peeklock.server.admission import TOO_MANY, Ticket
from peeklock.server.listener import log_refused
from peeklock.server.logs import event
from peeklock.server.peers import peer_name
from peeklock.server.shell import Shell

log = logging.getLogger(__name__)


class FirstRequest(asyncio.Protocol):
    """Forwards everything to aiohttp's protocol, and drops the connection if no first request arrives in time.

    A drop is logged. aiohttp closes connections that stay idle after their first request; that is usual and not logged.
    """

    def __init__(
        self,
        inner: asyncio.Protocol,
        awaited: dict[asyncio.Protocol, FirstRequest],
        seconds: float,
        ticket: Ticket,
        on_lost: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._ticket = ticket
        self._on_lost = on_lost
        self._awaited = awaited
        self._seconds = seconds
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.unfinished = 0
        """Bytes received of an incomplete WebSocket message, as long as they are counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._awaited[self._inner] = self
        self._deadline = asyncio.get_running_loop().call_later(self._seconds, self._give_up)
        self._ticket.evict = self._evict
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        self._inner.connection_lost(exc)
        self._on_lost()

    def count_unfinished(self, shell: Shell) -> None:
        """Count received bytes until the shell's client has logged in: aiohttp buffers incomplete messages."""

        def counted(data: bytes) -> None:
            self.unfinished += len(data)
            self._inner.data_received(data)
            if not shell.note_unfinished(self.unfinished):
                self._receive_by(self._inner.data_received)

        self._receive_by(counted)

    @contextmanager
    def watched(self, on_paused: Callable[[], None]) -> Iterator[None]:
        """Within this context, call `on_paused` when reading is paused: then a lost connection would go unnoticed."""

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
        """Replace `data_received`. The transport keeps a bound method, so it must be given the protocol again."""
        self.data_received = receive  # type: ignore[method-assign,assignment]
        if not self._transport.is_closing():
            self._transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def stop_waiting(self) -> None:
        """Cancel the deadline: the first request has arrived, or the connection has ended."""
        self._deadline.cancel()
        self._awaited.pop(self._inner, None)

    def _give_up(self) -> None:
        peer = peer_name(self._transport)
        event(log, logging.WARNING, "connection dropped", peer=peer, reason="no complete HTTP request came in time")
        self.stop_waiting()
        self._transport.abort()

    def _evict(self) -> None:
        log_refused(peer_name(self._transport), TOO_MANY)
        self.stop_waiting()
        self._transport.abort()
