"""Listening sockets, with protocol detection by the first bytes of each connection.

TLS is recognised by peeking at the first byte, so that all bytes are left for the TLS layer. Inside TLS, and on plain
connections, the first four bytes distinguish HTTP from AMQP. Connections that do not send them in time are closed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from peeklock.server.acceptor import Acceptor, log_refused
from peeklock.server.admission import TOO_MANY, Admission, Ticket
from peeklock.server.logs import event
from peeklock.server.peers import peer_name, socket_name

log = logging.getLogger(__name__)

TLS_RECORD: Final = b"\x16"
_METHODS: Final = (b"GET ", b"PUT ", b"POST", b"HEAD", b"DELE", b"OPTI", b"PATC")

MakeProtocol = Callable[[Ticket], asyncio.Protocol]
"""The protocol releases the ticket when the connection is lost."""


class Listener:
    """One listening socket."""

    def __init__(
        self,
        sock: socket.socket,
        tls: Callable[[], ssl.SSLContext],
        amqp: MakeProtocol,
        http: MakeProtocol,
        *,
        admission: Admission,
        first_bytes_seconds: float,
    ) -> None:
        self._socket = sock
        self._tls = tls
        self._amqp = amqp
        self._http = http
        self._first_bytes_seconds = first_bytes_seconds
        self._loop = asyncio.get_running_loop()
        self._silent: dict[socket.socket, tuple[Ticket, asyncio.TimerHandle]] = {}
        """Connections that have sent nothing yet, with their deadline."""
        self._starting: set[asyncio.Task[None]] = set()
        """Connections in their TLS handshake."""
        self._sniffers: set[Sniffer] = set()
        self._acceptor = Acceptor(sock, admission, self._on_accepted)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop accepting connections, and close those whose protocol is not known yet."""
        self.detach()
        self._socket.close()

    def detach(self) -> None:
        """Do the same, but leave the listening socket open for another listener."""
        self._acceptor.stop()
        for connection in list(self._silent):
            self._close_silent(connection)
        for task in self._starting:
            task.cancel()
        for sniffer in list(self._sniffers):
            sniffer.abort()

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere, and from which nothing was read."""
        self._acceptor.admit(connection, socket_name(connection))

    def _on_accepted(self, connection: socket.socket, peer: str, ticket: Ticket) -> None:
        ticket.evict = partial(self._evict, connection, peer)
        timeout = ticket.first_bytes_timeout(self._first_bytes_seconds)
        deadline = self._loop.call_later(timeout, self._give_up, connection, peer)
        self._silent[connection] = ticket, deadline
        self._loop.add_reader(connection, self._peek, connection)

    def _give_up(self, connection: socket.socket, peer: str) -> None:
        if self._silent[connection][0].is_reserved:
            log_refused(peer, TOO_MANY)
        else:
            _log_dropped(peer, "the client sent nothing in time")
        self._close_silent(connection)

    def _evict(self, connection: socket.socket, peer: str) -> None:
        log_refused(peer, TOO_MANY)
        self._close_silent(connection)

    def _close_silent(self, connection: socket.socket) -> None:
        self._forget(connection).release()
        connection.close()

    def _forget(self, connection: socket.socket) -> Ticket:
        self._loop.remove_reader(connection)
        ticket, deadline = self._silent.pop(connection)
        deadline.cancel()
        return ticket

    def _peek(self, connection: socket.socket) -> None:
        """Start TLS or the sniffer when the first byte has arrived, without reading it."""
        try:
            first = connection.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        if not first:
            self._close_silent(connection)
            return
        ticket = self._forget(connection)
        task = self._loop.create_task(self._start(connection, ticket, first == TLS_RECORD))
        ticket.evict = partial(self._evict_starting, task, socket_name(connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    def _evict_starting(self, task: asyncio.Task[None], peer: str) -> None:
        log_refused(peer, TOO_MANY)
        task.cancel()

    async def _start(self, connection: socket.socket, ticket: Ticket, with_tls: bool) -> None:
        peer = socket_name(connection)
        timeout = ticket.first_bytes_timeout(self._first_bytes_seconds)
        try:
            await self._loop.connect_accepted_socket(
                lambda: Sniffer(self._amqp, self._http, timeout, self._sniffers, ticket),
                connection,
                ssl=self._tls() if with_tls else None,
                ssl_handshake_timeout=timeout if with_tls else None,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError) as error:
            event(log, logging.INFO, "connection not established", peer=peer, reason=str(error) or "it was closed")
            connection.close()
            ticket.release()


class Sniffer(asyncio.Protocol):
    """The protocol of a connection until its first four bytes have arrived; then AMQP's or HTTP's replaces it."""

    def __init__(
        self, amqp: MakeProtocol, http: MakeProtocol, timeout: float, sniffers: set[Sniffer], ticket: Ticket
    ) -> None:
        self._ticket = ticket
        self._amqp = amqp
        self._http = http
        self._timeout = timeout
        self._sniffers = sniffers
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(self._timeout, self._give_up)
        self._sniffers.add(self)
        self._ticket.evict = self._refuse

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        self._ticket.release()

    def abort(self) -> None:
        self._forget()
        self._transport.abort()

    def _give_up(self) -> None:
        if self._ticket.is_reserved:
            self._refuse()
        else:
            _log_dropped(peer_name(self._transport), "the client did not send the first 4 bytes in time")
            self.abort()

    def _refuse(self) -> None:
        log_refused(peer_name(self._transport), TOO_MANY)
        self.abort()

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if len(self._seen) < 4:
            return
        is_http = self._seen[:4] in _METHODS
        if self._ticket.is_reserved and not is_http:
            self._refuse()
            return
        self._forget()
        # Bytes of neither protocol go to AMQP, which answers with its header and closes the connection (2.2).
        protocol = (self._http if is_http else self._amqp)(self._ticket)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        protocol.data_received(self._seen)

    def _forget(self) -> None:
        self._deadline.cancel()
        self._sniffers.discard(self)


def _log_dropped(peer: str, reason: str) -> None:
    event(log, logging.WARNING, "connection dropped", peer=peer, reason=reason)
