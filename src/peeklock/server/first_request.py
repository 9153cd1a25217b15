"""The protocol of an HTTP connection in front of aiohttp's own: a deadline for the first request, and byte counts.

aiohttp buffers incomplete requests, requests behind the current one, and incomplete WebSocket messages. Until a token
is verified they count as memory of an unauthenticated connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

from aiohttp import web

from peeklock.server.acceptor import log_refused
from peeklock.server.admission import TOO_MANY, Ticket
from peeklock.server.logs import event
from peeklock.server.peers import peer_name
from peeklock.server.request_memory import RequestMemory
from peeklock.server.shell import Shell

log = logging.getLogger(__name__)


class FirstRequest(asyncio.Protocol):
    """Forwards everything to aiohttp's protocol, and drops the connection if no first request arrives in time.

    It also counts what the connection holds before a token is verified, and is dropped if that is too much. A drop is
    logged. aiohttp closes connections that stay idle after their first request; that is usual and not logged.
    """

    def __init__(
        self,
        inner: web.RequestHandler,
        seconds: float,
        ticket: Ticket,
        on_lost: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._ticket = ticket
        self._on_lost = on_lost
        self._seconds = seconds
        self._memory = RequestMemory()
        self._held = 0
        """Bytes that are counted for this connection as an unauthenticated one."""
        self._is_dropped = False
        self._is_upgraded = False
        """The connection is a WebSocket, and its shell counts."""
        self._on_paused: Callable[[], None] | None = None
        self.unfinished = 0
        """Bytes received of an incomplete WebSocket message, as long as they are counted."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(self._seconds, self._give_up)
        self._ticket.evict = self._evict
        self._ticket.token_verified = self._mark_verified
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_waiting()
        self._ticket.unauthenticated.forget(self)
        self._inner.connection_lost(exc)
        self._memory.on_lost()
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        if not self._memory.is_verified_body:
            self._memory.receive(len(data))
            self._update_held()
        if self._is_dropped:
            return
        self._inner.data_received(data)
        if self._on_paused is not None and not self._transport.is_reading():
            self._on_paused()

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a complete head has reached a handler."""
        self.stop_waiting()
        self._memory.begin(request)
        self._update_held()

    def end(self) -> None:
        """Note that the handler has returned."""
        self._memory.end()
        self._update_held()

    def _mark_verified(self) -> None:
        self._memory.mark_verified()
        self._update_held()

    def _update_held(self) -> None:
        held = self._memory.held
        if held != self._held and not self._is_upgraded and not self._transport.is_closing():
            self._held = held
            self._ticket.unauthenticated.hold(self, held)

    def drop(self, reason: str) -> None:
        """Log the reason and abort the connection."""
        event(log, logging.WARNING, "connection dropped", peer=peer_name(self._transport), reason=reason)
        self.stop_waiting()
        self._is_dropped = True
        self._transport.abort()
        # Frees an incomplete head now: the loop reports the lost connection only after it has read from all others.
        # aiohttp does the same then, and has no method for it.
        self._inner.force_close()
        self._inner._parser = None

    def abort(self) -> None:
        """Close the connection at once."""
        self.stop_waiting()
        self._transport.abort()

    def count_unfinished(self, shell: Shell) -> None:
        """Count received bytes for the shell until its client has logged in: aiohttp buffers incomplete messages."""
        self._is_upgraded = True
        self._ticket.unauthenticated.forget(self)

        def counted(data: bytes) -> None:
            self.unfinished += len(data)
            self._inner.data_received(data)
            if not shell.note_unfinished(self.unfinished):
                self._receive_by(self._inner.data_received)

        self._receive_by(counted)

    @contextmanager
    def watched(self, on_paused: Callable[[], None]) -> Iterator[None]:
        """Within this context, call `on_paused` when reading is paused: then a lost connection would go unnoticed."""

        self._on_paused = on_paused
        if not self._transport.is_reading():
            on_paused()
        try:
            yield
        finally:
            self._on_paused = None

    def _receive_by(self, receive: Callable[[bytes], None]) -> None:
        """Replace `data_received`. The transport keeps a bound method, so it must be given the protocol again."""
        self.data_received = receive  # type: ignore[method-assign,assignment]
        if not self._transport.is_closing():
            self._transport.set_protocol(self)

    def eof_received(self) -> None:
        self._inner.eof_received()

    def pause_writing(self) -> None:
        self._memory.set_unread(self._transport.get_write_buffer_size())
        self._update_held()
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._memory.set_unread(0)
        self._update_held()
        self._inner.resume_writing()

    def stop_waiting(self) -> None:
        """Cancel the deadline: the first request has arrived, or the connection has ended."""
        self._deadline.cancel()

    def _give_up(self) -> None:
        self.drop("no complete HTTP request came in time")

    def _evict(self) -> None:
        log_refused(peer_name(self._transport), TOO_MANY)
        self.stop_waiting()
        self._transport.abort()
