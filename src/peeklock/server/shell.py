"""The thin shell around one engine: bytes from a transport in, bytes to it out, time-outs, back-pressure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Error
from peeklock.broker.access import Claim
from peeklock.broker.namespace import Namespace
from peeklock.engine.connection import Connection, Settings
from peeklock.engine.sasl import SaslServer
from peeklock.nodes.peer import Peer

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS: Final = 20.0
"""How long a client may take to open the connection, and to show a token or key."""
MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
UNSAVED_HIGH: Final = 32 * 1024 * 1024
UNSAVED_LOW: Final = 16 * 1024 * 1024
"""Bytes of one connection on their way to the store: above the one we stop reading, below the other we go on."""


class ByteTransport(Protocol):
    """What a shell needs of a transport; asyncio's have it."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Shell:
    """One AMQP connection of a client."""

    def __init__(self, transport: ByteTransport, namespace: Namespace, name: str, on_gone: Callable[[Shell], None]) -> None:
        self._transport = transport
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._namespace = namespace
        settings = Settings(
            container_id=namespace.definition.name,
            max_frame_size=262144,
            properties={"product": "Peeklock"},
        )
        self.connection = Connection(settings, SaslServer(MECHANISMS, self._authenticate), is_server=True)
        self.peer = Peer(self.connection, namespace, name, self.wake)
        self._flushing = False
        self._paused = False
        self._gone = False
        self._handshake = self._loop.call_later(HANDSHAKE_SECONDS, self._check_handshake)
        self._ticker = self._loop.call_later(1.0, self._tick)

    def data_received(self, data: bytes) -> None:
        if self._gone:
            return
        try:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("<- bytes", extra={"fields": {"peer": self.peer.name, "size": len(data)}})
            self.peer.handle(self.connection.receive(data))
        except Exception:
            log.exception("a connection failed", extra={"fields": {"peer": self.peer.name}})
            self.close(Error(condition=Condition.INTERNAL_ERROR, description="The broker failed; see its log."))
            return
        if self.peer.unsaved_bytes > UNSAVED_HIGH and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._flush()

    def wake(self) -> None:
        """Write what there is to write at the end of this turn."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def pause_writing(self) -> None:
        self.connection.congested = True

    def resume_writing(self) -> None:
        self.connection.congested = False
        self.peer.writable()

    def pause_reading(self) -> None:
        """For good: the broker is stopping and takes no more work."""
        self._paused = True
        if not self._gone:
            self._transport.pause_reading()

    def close(self, error: Error) -> None:
        """Tell the client why and hang up."""
        if self._gone:
            return
        self.peer.closed()
        self.connection.close(error)
        self._write()
        self.lost()
        self._transport.close()

    def lost(self) -> None:
        """The transport is gone."""
        if self._gone:
            return
        self._gone = True
        self._handshake.cancel()
        self._ticker.cancel()
        self.peer.closed()
        self._on_gone(self)

    def _flush(self) -> None:
        self._flushing = False
        if self._gone:
            return
        self._write()
        if self._paused and self.peer.unsaved_bytes < UNSAVED_LOW:
            self._paused = False
            self._transport.resume_reading()
        if self.connection.ended:
            self.lost()
            self._transport.close()

    def _write(self) -> None:
        out = self.connection.take_output()
        if out:
            self._transport.write(b"".join(out))

    def _tick(self) -> None:
        self.peer.handle(self.connection.tick(self._loop.time()))
        self._flush()
        if not self._gone:
            self._ticker = self._loop.call_later(self.connection.tick_interval, self._tick)

    def _check_handshake(self) -> None:
        if not self.connection.opened:
            reason = "the connection was not opened in time"
        elif not self.peer.claims:
            reason = "no token or key was shown in time"
        else:
            return
        log.warning("connection dropped", extra={"fields": {"peer": self.peer.name, "reason": reason}})
        self.close(Error(condition=Condition.UNAUTHORIZED_ACCESS, description=f"{reason}."))

    def _authenticate(self, mechanism: str, response: bytes) -> list[Claim] | None:
        """What the SASL exchange gives; an anonymous client has nothing until it visits `$cbs`."""
        if mechanism in ("ANONYMOUS", "MSSBCBS"):
            return []
        reason = "client certificates are not accepted; use ANONYMOUS with a token, or PLAIN"
        if mechanism == "PLAIN":
            parts: list[Any] = response.split(b"\0")
            try:
                _, name, key = (part.decode() for part in parts)
            except ValueError:
                reason = "the PLAIN response is malformed"
            else:
                claims = self._namespace.keys.claims_for(name, key)
                if claims:
                    return claims
                reason = "no key of that name matches"
        log.warning("SASL refused", extra={"fields": {"peer": self.peer.name, "mechanism": mechanism, "reason": reason}})
        return None


class AmqpProtocol(asyncio.Protocol):
    """A shell on a socket."""

    def __init__(self, namespace: Namespace, on_made: Callable[[Shell], None], on_gone: Callable[[Shell], None]) -> None:
        self._namespace = namespace
        self._on_made = on_made
        self._on_gone = on_gone
        self._shell: Shell | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._shell = Shell(cast(asyncio.Transport, transport), self._namespace, peer_name(transport), self._on_gone)
        self._on_made(self._shell)

    def data_received(self, data: bytes) -> None:
        assert self._shell is not None
        self._shell.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._shell is not None:
            self._shell.lost()

    def pause_writing(self) -> None:
        if self._shell is not None:
            self._shell.pause_writing()

    def resume_writing(self) -> None:
        if self._shell is not None:
            self._shell.resume_writing()


def peer_name(transport: asyncio.BaseTransport) -> str:
    address = transport.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
