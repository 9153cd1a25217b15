"""Accepting connections from a listening socket, within the connection limits."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from peeklock.server.admission import Admission, Ticket
from peeklock.server.logs import event
from peeklock.server.peers import address_of, name_of

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
_OUT_OF_FILES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

OnAccepted = Callable[[socket.socket, str, Ticket], None]
"""Called with the connection, the client's name and the ticket, which the receiver releases."""


class Acceptor:
    """Accepts connections until `stop`. The listening socket stays open."""

    def __init__(self, sock: socket.socket, admission: Admission, on_accepted: OnAccepted) -> None:
        self._socket = sock
        self._admission = admission
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._loop.add_reader(sock, self._accept)

    def stop(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)

    def admit(self, connection: socket.socket, peer: str) -> None:
        """Pass the connection on with a ticket, or close it if a limit is reached."""
        ticket = self._admission.admit(address_of(peer))
        if isinstance(ticket, str):
            log_refused(peer, ticket)
            connection.close()
            return
        connection.setblocking(False)
        with suppress(OSError):  # the client has closed it already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._on_accepted(connection, peer, ticket)

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                log.error("connections cannot be accepted: %s", error.strerror)
                self._loop.remove_reader(self._socket)
                self._retry = self._loop.call_later(1.0, self._accept_again)
                return
            self.admit(connection, name_of(address))

    def _accept_again(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._accept)


def log_refused(peer: str, reason: str) -> None:
    event(log, logging.WARNING, "connection refused", peer=peer, reason=reason)
