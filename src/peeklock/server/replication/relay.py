"""The relay of a node that is not active: it passes the bytes of every connection to the active node and back.

It does not look at the bytes, so TLS, WebSocket, HTTP and AMQP are alike, and the active node's certificate is the one
that clients see. While no node is active, connections are held: nothing is read from them, so that the broker can serve
them if this node becomes active. Which node is active is decided by `node`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, cast

from peeklock.server.acceptor import Acceptor, log_refused
from peeklock.server.admission import TOO_MANY, Admission, Ticket
from peeklock.server.logs import event

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 2.0
"""Time for one attempt to connect to the active node."""
RETRY_SECONDS: Final = 0.25
"""Between attempts."""
CHECK_SECONDS: Final = 1.0
"""Between checks whether the client of a held connection has closed it."""
BUFFER_BYTES: Final = 256 * 1024
"""Bytes that wait for one side of a connection. Beyond it: the relay stops reading from the other side."""
CLOSING_SECONDS: Final = 2.0
"""Time for the remaining bytes of a connection whose other side has ended."""

Target = tuple[str, int]


class Relay:
    """Accepts connections on listening sockets, and relays or holds them."""

    def __init__(self, sockets: Sequence[socket.socket], admission: Admission, hold_seconds: float) -> None:
        self._sockets = sockets
        self._admission = admission
        self._hold_seconds = hold_seconds
        self._target: Target | None = None
        self._epoch = 0
        self._has_target = asyncio.Event()
        self._acceptors: list[Acceptor] = []
        self._held: dict[socket.socket, tuple[asyncio.Task[None], Ticket]] = {}
        """Connections that wait for an active node, with the tasks that connect them."""
        self._pairs: set[Pair] = set()

    @property
    def held(self) -> int:
        return len(self._held)

    @property
    def relayed(self) -> int:
        return len(self._pairs)

    def open(self) -> None:
        """Accept connections."""
        if not self._acceptors:
            self._acceptors = [Acceptor(sock, self._admission, self._hold) for sock in self._sockets]

    def set_target(self, epoch: int, target: Target | None) -> None:
        """Set where the active node of this epoch accepts connections; None if no node is active.

        If the epoch has changed, the connections to the earlier active node are cut.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._cut()
        self._target = target
        if target is None:
            self._has_target.clear()
        else:
            self._has_target.set()

    def hand_over(self) -> list[socket.socket]:
        """Stop accepting, cut the relayed connections, and return the held ones, from which nothing was read."""
        held = self._held
        self._held = {}
        for task, ticket in held.values():
            task.cancel()
            ticket.release()
        self.close()
        return list(held)

    def close(self) -> None:
        """Stop accepting, and close all connections."""
        for acceptor in self._acceptors:
            acceptor.stop()
        self._acceptors.clear()
        for task, _ in list(self._held.values()):
            task.cancel()
        self._cut()

    def _cut(self) -> None:
        for pair in list(self._pairs):
            pair.abort()

    def _hold(self, connection: socket.socket, peer: str, ticket: Ticket) -> None:
        if ticket.is_reserved:  # the reserve is for administration, and the relay cannot tell what this is
            log_refused(peer, TOO_MANY)
            ticket.release()
            connection.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(connection, peer, ticket))
        self._held[connection] = task, ticket

        def ended(task: asyncio.Task[None]) -> None:
            # Also called if the task was cancelled before it began.
            if self._held.pop(connection, None) is not None:
                ticket.release()
                connection.close()
            if not task.cancelled() and (failure := task.exception()) is not None:
                log.error("a connection could not be relayed", exc_info=failure, extra={"fields": {"peer": peer}})

        task.add_done_callback(ended)

    async def _serve(self, connection: socket.socket, peer: str, ticket: Ticket) -> None:
        """Connect to the active node, and then relay the connection."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hold_seconds
        while not _is_closed(connection):
            if loop.time() >= deadline:
                event(log, logging.WARNING, "connection dropped", peer=peer, reason="no node is active")
                return
            target = self._target
            if target is None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_target.wait(), CHECK_SECONDS)
                continue
            pair = Pair(self._pairs, ticket)
            if not await _connect(pair.upstream, target):
                await asyncio.sleep(RETRY_SECONDS)
            elif target != self._target:
                pair.upstream.abort()
            else:
                del self._held[connection]
                await _begin(pair, connection)
                return


async def _connect(upstream: Side, target: Target) -> bool:
    """Connect to the active node. Return whether that succeeded."""
    loop = asyncio.get_running_loop()
    try:
        await asyncio.wait_for(loop.create_connection(lambda: upstream, *target), CONNECT_SECONDS)
    except (OSError, TimeoutError) as error:
        upstream.abort()
        log.debug("%s:%d cannot be reached: %s", *target, error)
        return False
    except BaseException:
        upstream.abort()
        raise
    return True


async def _begin(pair: Pair, connection: socket.socket) -> None:
    """Relay the connection; the other side is connected."""
    pair.begin()
    try:
        await asyncio.get_running_loop().connect_accepted_socket(lambda: pair.client, connection)
    except OSError:  # the client has closed it already
        pair.abort()
        connection.close()


class Pair:
    """The two sides of a relayed connection. It ends, and releases its ticket, when both are closed."""

    def __init__(self, pairs: set[Pair], ticket: Ticket) -> None:
        self._pairs = pairs
        self._ticket = ticket
        self.client = Side(self)
        self.upstream = Side(self)
        self.client.other, self.upstream.other = self.upstream, self.client
        self._open = 0
        self._has_begun = False

    def begin(self) -> None:
        """Both sides are going to be connected."""
        self._has_begun = True
        self._pairs.add(self)

    def abort(self) -> None:
        self.client.abort()
        self.upstream.abort()
        if not self._open:
            self._end()

    def side_opened(self) -> None:
        self._open += 1

    def side_closed(self) -> None:
        self._open -= 1
        if not self._open:
            self._end()

    def _end(self) -> None:
        if self._has_begun:
            self._pairs.discard(self)
            self._ticket.release()


class Side(asyncio.Protocol):
    """One side of a relayed connection. It reads only while the other side takes what it reads."""

    other: Side

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False
        self._is_lost = False
        self._has_ended = False
        """The peer sends nothing more."""
        self._early = bytearray()
        """Bytes that came before the other side was connected."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = stream = cast(asyncio.Transport, transport)
        self._pair.side_opened()
        stream.set_write_buffer_limits(high=BUFFER_BYTES)
        if self._is_aborted:
            stream.abort()
        elif self.other._transport is None:
            stream.pause_reading()  # until the other side is connected
        else:
            stream.write(bytes(self.other._early))
            self.other._early.clear()
            if self.other._has_ended:
                self.close()
            else:
                self.other.resume()

    def data_received(self, data: bytes) -> None:
        if self.other._transport is None:  # uvloop has read once before it paused
            self._early += data
            self.pause()
        elif not self.other._transport.is_closing():
            self.other._transport.write(data)

    def eof_received(self) -> bool:
        """Pass the end on.

        A client that has ended may still wait for answers. A broker that has ended has closed the connection.
        """
        self._has_ended = True
        transport = self.other._transport
        if transport is not None and not transport.is_closing():
            if self is self._pair.upstream or self.other._has_ended:
                self.other.close()
            else:
                transport.write_eof()
        return True

    def pause_writing(self) -> None:
        self.other.pause()

    def resume_writing(self) -> None:
        self.other.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        if exc is None:
            self.other.close()
        else:
            self.other.abort()  # a reset is passed on as one
        self._pair.side_closed()

    def pause(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close this side when all is written, or after a while."""
        if self._transport is None:
            self._is_aborted = True
        elif self._timer is None and not self._is_lost:
            self._transport.close()
            self._timer = asyncio.get_running_loop().call_later(CLOSING_SECONDS, self._transport.abort)

    def abort(self) -> None:
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the client of a held connection has closed it, as far as that shows without reading."""
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True
