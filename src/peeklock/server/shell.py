"""The asyncio side of an AMQP connection: moves bytes between transport and engine, with time-outs and throttling."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Error
from peeklock.broker.access import Grant
from peeklock.broker.audit import DENIED, Audit
from peeklock.broker.errors import TooManyFailedLogins
from peeklock.broker.namespace import Namespace
from peeklock.engine.connection import Connection
from peeklock.engine.opening import Settings
from peeklock.engine.sasl import SaslServer
from peeklock.limits.amqp import MAX_FRAME_SIZE
from peeklock.limits.server import Limits
from peeklock.nodes.capabilities import CAPABILITIES
from peeklock.nodes.peer import Peer
from peeklock.server.admission import Ticket
from peeklock.server.peers import is_encrypted, peer_name
from peeklock.server.trace import Trace

log = logging.getLogger(__name__)

MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
WITHOUT_KEYS: Final = ("MSSBCBS", "ANONYMOUS")
"""Offered to clients without TLS that will be refused, so that they do not send a key over the network in clear."""
TLS_REQUIRED: Final = Error(
    condition=Condition.NOT_ALLOWED, description="This broker requires TLS: connect with TLS to the same port."
)
FAILED: Final = Error(condition=Condition.INTERNAL_ERROR, description="The broker failed; see its log.")
WRITE_NOW_PIECES: Final = 600
"""Pieces of output, about 200 messages, that are written before the end of the loop's turn."""


class ByteTransport(Protocol):
    """The methods of a transport that a shell uses; asyncio's transports have them."""

    def write(self, data: bytes) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Shell:
    """The server's side of one AMQP connection."""

    def __init__(
        self,
        transport: ByteTransport,
        namespace: Namespace,
        name: str,
        on_lost: Callable[[Shell], None],
        limits: Limits,
        ticket: Ticket,
        audit: Audit,
        refusal: Error | None = None,
    ) -> None:
        """With a `refusal`, the client can open the connection; it is then closed with this error."""
        self._transport = transport
        self._ticket = ticket
        self._refusal = refusal
        self._on_lost = on_lost
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._namespace = namespace
        settings = Settings(
            container_id=namespace.definition.name,
            max_frame_size=MAX_FRAME_SIZE,
            offered_capabilities=CAPABILITIES,
            properties={"product": "Peeklock"},
        )
        self.connection = Connection(
            settings, SaslServer(MECHANISMS if refusal is None else WITHOUT_KEYS, self._authenticate), is_server=True
        )
        self.peer = Peer(self.connection, namespace, name=name, wake=self.wake, logins=ticket, audit=audit)
        self.peer.close_connection = self.close
        self._trace = Trace(log, name) if log.isEnabledFor(logging.DEBUG) else None
        self._flushing = False
        self.reading = True
        """Whether the transport reads from the client."""
        self._is_stopping = False
        """The broker is stopping: nothing more is read."""
        self._closing = False
        """The broker has sent its close and waits for the client's close only."""
        self._is_lost = False
        self._opened = False
        self._unread_answers = 0
        """Bytes written since the client stopped reading."""
        self._is_authenticated = False
        """The client has shown a token or key."""
        self._handshake = self._loop.call_later(limits.handshake_seconds, self._guarded, self._check_handshake)
        self._ticker = self._loop.call_later(1.0, self._guarded, self._tick)

    def data_received(self, data: bytes) -> None:
        if self._is_lost:
            return
        if self._trace is not None:
            self._trace.received(data)
        try:
            if self._refusal is not None:
                self._refuse(data, self._refusal)
                self.note_unfinished(0)
                return
            self.peer.handle(self.connection.receive(data))
            self._flush()
        except Exception:
            self._fail()
            return
        if not self._opened and self.connection.opened:
            # The client's open has its idle time-out, which determines the interval of the heartbeats.
            self._opened = True
            self._tick_later()
        if not self._is_authenticated:
            self.note_unfinished(0)

    def note_unfinished(self, in_transport: int) -> bool:
        """Count the bytes of incomplete frames, in the engine and in the transport, until the client has logged in.

        Returns whether the client is still unauthenticated, so that counting must continue.
        """
        if self._is_lost or self.peer.grants:
            self._is_authenticated = True
            self._ticket.unauthenticated.forget(self)
        else:
            self._ticket.unauthenticated.hold(self, in_transport + self.connection.unfinished_bytes)
        return not self._is_authenticated

    def drop(self, reason: str) -> None:
        """Log the reason and abort the connection."""
        log.warning("connection dropped", extra={"fields": {"peer": self.peer.name, "reason": reason}})
        self.abort()

    def wake(self) -> None:
        """Write the output at the end of the loop's turn.

        A large output is written at once: it is still in the processor's cache, and the client gets it earlier.
        """
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._guarded, self._flush)
        elif len(self.connection.out) >= WRITE_NOW_PIECES:
            self._guarded(self._write)

    def pause_writing(self) -> None:
        self.connection.congested = True

    def resume_writing(self) -> None:
        self.connection.congested = False
        self._unread_answers = 0
        self._guarded(self.peer.on_writable)
        self.wake()

    def quiesce(self) -> None:
        """Stop reading and delivering, because the broker is stopping. Running operations are still answered."""
        self._is_stopping = True
        self.peer.on_closed()
        self._update_reading()

    def close(self, error: Error) -> None:
        """Send a close with the error. The socket is closed after the client's close, or after `closing_seconds`."""
        if self._is_lost or self._closing:
            return
        self._closing = True
        self._handshake.cancel()
        self._ticker.cancel()
        try:
            self.peer.on_closed()
            self.connection.close(error)
            self._flush()
        except Exception:
            log.exception("a connection could not be closed", extra={"fields": {"peer": self.peer.name}})
            self.abort()
        if not self._is_lost:
            self._handshake = self._loop.call_later(self._limits.closing_seconds, self.abort)

    def abort(self) -> None:
        """Close the socket at once, without a close performative and without the output that is not sent yet."""
        self.lost()
        self._transport.abort()

    def lost(self) -> None:
        """Release everything: the transport has ended."""
        if self._is_lost:
            return
        self._is_lost = True
        self._ticket.unauthenticated.forget(self)
        self._handshake.cancel()
        self._ticker.cancel()
        self.peer.on_closed()
        # Frees the buffers (a partial message, output) now; reference cycles would keep them until a collection.
        self.connection.lost()
        self._on_lost(self)

    # --- private ---

    def _refuse(self, data: bytes, refusal: Error) -> None:
        """Handle bytes up to the client's open, which is the first point where a close can carry an error.

        Events of the engine are ignored.
        """
        self.connection.receive(data)
        if self.connection.opened and not self._closing:
            log.warning("connection refused", extra={"fields": {"peer": self.peer.name, "reason": refusal.description}})
            self.peer.audit("connect", DENIED, "", reason=refusal.description or "")
            self.close(refusal)
        else:
            self._flush()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run an action of the connection. An exception closes this connection only."""
        if self._is_lost:
            return
        try:
            action()
        except Exception:
            self._fail()

    def _fail(self) -> None:
        log.exception("a connection failed", extra={"fields": {"peer": self.peer.name}})
        if self._closing:
            self.abort()
        else:
            self.close(FAILED)

    def _flush(self) -> None:
        self._flushing = False
        if self._is_lost:
            return
        self._write()
        if self.connection.ended:
            self.lost()
            self._transport.close()
            # The transport closes when all is written, which never happens if the client does not read.
            self._loop.call_later(self._limits.closing_seconds, self._transport.abort)
            return
        self._update_reading()

    def _write(self) -> None:
        out = self.connection.take_output()
        if out:
            data = b"".join(out)
            if self._trace is not None:
                self._trace.sent(data)
            if self.connection.congested:
                self._unread_answers += len(data)
            self._transport.write(data)
            if not self.connection.congested:
                self.peer.on_written()

    def _update_reading(self) -> None:
        """Pause or resume reading: clients that outpace the disk, or do not read the answers, are throttled."""
        if self._closing:
            wanted = True
        elif self._is_stopping or self._unread_answers > self._limits.unread_answers:
            wanted = False
        else:
            unsaved = self.peer.unsaved_bytes
            wanted = not unsaved or (
                unsaved <= (self._limits.unsaved_high if self.reading else self._limits.unsaved_low)
                and self._namespace.journal.unsaved_bytes <= self._limits.unsaved_total
            )
        if wanted is not self.reading:
            self.reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _tick(self) -> None:
        if not self.reading:
            self.connection.receive(b"")  # resets the idle timer: the broker does not read, so the client is not idle
        self.peer.handle(self.connection.tick(self._loop.time()))
        self._flush()
        if not self._is_lost:
            self._tick_later()

    def _tick_later(self) -> None:
        self._ticker.cancel()
        self._ticker = self._loop.call_later(self.connection.tick_interval, self._guarded, self._tick)

    def _check_handshake(self) -> None:
        if not self.connection.opened:
            reason = "the connection was not opened in time"
        elif not self.peer.grants:
            reason = "no token or key was shown in time"
        else:
            return
        log.warning("connection dropped", extra={"fields": {"peer": self.peer.name, "reason": reason}})
        self.close(Error(condition=Condition.UNAUTHORIZED_ACCESS, description=f"{reason}."))

    def _authenticate(self, mechanism: str, response: bytes) -> list[Grant] | None:
        """Return the grants of a SASL response, or None to refuse it. Anonymous clients get grants through `$cbs`."""
        if mechanism in ("ANONYMOUS", "MSSBCBS"):
            return []
        user = ""
        reason = "client certificates give no rights; use ANONYMOUS with a token, or PLAIN"
        if mechanism == "PLAIN":
            parts: list[Any] = response.split(b"\0")
            try:
                _, user, key = (part.decode() for part in parts)
            except ValueError:
                reason = "the PLAIN response is malformed"
            else:
                try:
                    self._ticket.check_login()
                    grants = self._namespace.keys.grants_for(user, key)
                    if grants:
                        return grants
                    reason = "no key of that name matches"
                    self._ticket.login_failed()
                except TooManyFailedLogins as failure:
                    reason = str(failure)
        log.warning(
            "SASL refused", extra={"fields": {"peer": self.peer.name, "mechanism": mechanism, "reason": reason}}
        )
        self.peer.audit("login", DENIED, "", client=user, reason=reason)
        return None


class AmqpProtocol(asyncio.Protocol):
    """The asyncio protocol of an AMQP connection on a socket or in TLS."""

    def __init__(
        self,
        namespace: Namespace,
        on_made: Callable[[Shell], None],
        on_lost: Callable[[Shell], None],
        limits: Limits,
        ticket: Ticket,
        audit: Audit,
        require_tls: bool,
    ) -> None:
        self._ticket = ticket
        self._audit = audit
        self._require_tls = require_tls
        self._namespace = namespace
        self._on_made = on_made
        self._on_lost = on_lost
        self._limits = limits
        self._shell: Shell | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        refusal = TLS_REQUIRED if self._require_tls and not is_encrypted(transport) else None
        self._shell = Shell(
            stream,
            self._namespace,
            peer_name(transport),
            self._on_lost,
            self._limits,
            self._ticket,
            self._audit,
            refusal,
        )
        self._on_made(self._shell)

    def data_received(self, data: bytes) -> None:
        assert self._shell is not None
        self._shell.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticket.release()
        if self._shell is not None:
            self._shell.lost()

    def pause_writing(self) -> None:
        if self._shell is not None:
            self._shell.pause_writing()

    def resume_writing(self) -> None:
        if self._shell is not None:
            self._shell.resume_writing()
