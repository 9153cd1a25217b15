"""An AMQP connection without I/O, as client or server: open, close, and the dispatch of frames to sessions.

`receive` takes bytes and returns events; `take_output` returns the bytes to write. Both roles use the same class: a
client calls `connect` first, a server waits for the peer's header. The time is an argument of `tick`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, Protocol

from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import AmqpError, Condition
from peeklock.amqp.fast_decoders import DISPOSITION_START, FLOW_START, TRANSFER_START
from peeklock.amqp.frames import (
    AMQP_FRAME,
    AMQP_HEADER,
    FRAME_HEADER,
    HEARTBEAT,
    MIN_MAX_FRAME_SIZE,
    encode_frame,
)
from peeklock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Transfer,
)
from peeklock.engine.channels import Channels
from peeklock.engine.errors import CloseConnection, EndSession
from peeklock.engine.events import ConnectionClosed, ConnectionOpened, ConnectionRefused, SessionEnded
from peeklock.engine.handshake import Handshake, find_frame
from peeklock.engine.idleness import Idleness
from peeklock.engine.opening import Settings, check_open, make_open
from peeklock.engine.sasl import SaslRole
from peeklock.engine.session import Session
from peeklock.engine.states import CONNECTION, ConnectionInput, ConnectionState, step

_FRAME_START: Final = struct.Struct(">IHHI")
"""A frame header and the first four octets of the body, which identify a transfer, disposition or flow."""
_HOT_SIZE: Final = _FRAME_START.size
_PLAIN: Final = 0x0200
"""Data offset and type of an AMQP frame without an extended header."""
_AFTER_OPEN: Final = {Begin, Attach, Flow, Transfer, Disposition, Detach, End}
_ENDED: Final = ConnectionState.ENDED
_MAX_DESCRIPTION: Final = 100
"""The length of an error description that fits into the smallest max-frame-size that a peer may set."""


class Memory(Protocol):
    """The memory that a connection may use, as its owner counts it for all connections together."""

    def has_room(self) -> bool:
        """Return whether the connection may take more."""
        ...

    def take(self, size: int) -> None: ...

    def release(self, size: int) -> None: ...


class Connection:
    """The state of one connection."""

    def __init__(self, settings: Settings, sasl: SaslRole | None = None, *, is_server: bool) -> None:
        self.settings = settings
        self.is_server = is_server
        self.state = ConnectionState.START
        self.out: list[bytes] = []
        """Frames and parts of frames to write, in order. The list is never replaced, because sessions append to it."""
        self.events: list[Any] = []
        """Events since `receive` or `tick` last returned."""
        self.touched: set[Session] = set()
        """Sessions with dispositions that have not been written yet."""
        self.congested = False
        """Whether the owner's transport is full. The owner sets it; while it is set, no new transfer is sent."""
        self.partial_bytes = 0
        """The memory that incomplete messages use, on all links."""
        self.partial_memory: Memory | None = None
        """Counts the same memory for all connections together, if the owner sets it."""
        self.check_open: Callable[[Open], Error | None] | None = None
        """Called once, before a server answers the peer's open. Returns an error to refuse the connection, or None."""
        self.offered_capabilities: list[str] = list(settings.offered_capabilities)
        """The capabilities in our open. `check_open` may add to it."""
        self.remote_open: Open | None = None
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self._handshake = Handshake(sasl, self.out, is_server=is_server)
        self._buffer = b""
        self._channels = Channels()
        self._idleness = Idleness(settings.idle_time_out_ms)

    # --- for the owner ---

    @property
    def opened(self) -> bool:
        return self.state is ConnectionState.OPENED

    @property
    def ended(self) -> bool:
        """Whether the connection has ended: write the pending output, and close the transport without reading more."""
        return self.state is ConnectionState.ENDED

    @property
    def identity(self) -> Any:
        """The client that SASL authenticated, on a server; None without SASL."""
        return self._handshake.identity

    def connect(self) -> None:
        """Start the exchange, as a client: SASL if it is used, then header and open, without waiting for the server."""
        self._handshake.connect()
        self._send_header()

    def receive(self, data: bytes) -> list[Any]:
        """Process bytes that were read from the transport, and return the events."""
        self._idleness.has_read = True
        if not self._buffer:
            self._process(data, 0)
        elif 0 < (missing := self._missing()) < len(data):
            # Only the incomplete frame is joined with its rest, so that the bytes after it need not be copied.
            self._process(self._buffer + data[:missing], 0)
            self._process(data, missing)
        else:
            self._process(self._buffer + data, 0)
        return self._take_events()

    def begin(self) -> Session:
        """Begin a session, as a client. Raise CloseConnection if the peer allows no more sessions."""
        session = self._new_session()
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Close the connection, or answer the peer's close. No effect if it is closed already."""
        if self.state is ConnectionState.CLOSE_SENT:
            return
        if self.state in (ConnectionState.HEADERS_EXCHANGED, ConnectionState.OPEN_RECEIVED):
            self._send_open()  # a close requires an open before it
        if (self.state, ConnectionInput.SEND_CLOSE) not in CONNECTION:
            self._step(ConnectionInput.DROP_TRANSPORT)
            return
        for session in self._channels.sessions.values():
            session.flush_dispositions()
        self.send(0, Close(error=error))
        self._step(ConnectionInput.SEND_CLOSE)
        self._forget_sessions()  # later frames for these sessions are ignored

    def lost(self) -> None:
        """End the connection because its transport is lost: drop all state and output."""
        self._step(ConnectionInput.DROP_TRANSPORT)
        self.check_open = None
        self._buffer = b""
        self.out.clear()
        self._forget_sessions()

    def take_output(self) -> list[bytes]:
        """Return the bytes to write now, as a list of parts. The caller owns the list."""
        self.flush_dispositions()
        out = self.out
        if not out:
            return []
        self._idleness.has_written = True
        taken = out[:]
        out.clear()
        return taken

    def tick(self, now: float) -> list[Any]:
        """Check the idle time-outs: send a heartbeat if one is due, or close the connection if the peer was silent.

        `now` is in seconds, from any origin. The caller repeats this every `tick_interval` seconds.
        """
        idleness = self._idleness
        idleness.update(now)
        if not self.ended and idleness.is_silent(now):
            self._fail(
                CloseConnection(
                    Condition.RESOURCE_LIMIT_EXCEEDED, f"the peer was silent for {idleness.limit:g} seconds"
                )
            )
        elif self.opened and not self.out and idleness.is_heartbeat_due(now):
            self.out.append(HEARTBEAT)
        return self._take_events()

    @property
    def tick_interval(self) -> float:
        """The most seconds between calls of `tick`, so that the time-outs of both sides are kept."""
        return self._idleness.interval

    def flush_dispositions(self) -> None:
        """Write the dispositions of all sessions now, before any other output."""
        if self.touched:
            for session in self.touched:
                session.flush_dispositions()
            self.touched.clear()

    # --- for sessions and links ---

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def send(self, channel: int, performative: Any, body: bytes | None = None) -> None:
        """Write a performative. Close the connection if it is larger than the peer's max-frame-size.

        `body` is the encoded performative, if the caller has it.
        """
        if self.state in (ConnectionState.CLOSE_SENT, ConnectionState.ENDED):
            return
        if body is None:
            body = performative.encode()
        if len(body) + 8 > self.remote_max_frame_size and self.remote_open is not None:
            if getattr(performative, "error", None) is None:
                name = type(performative).__name__.lower()
                self._fail(
                    CloseConnection(
                        Condition.FRAME_SIZE_TOO_SMALL,
                        f"a frame of {len(body) + 8} bytes for {name} is larger than the peer accepts"
                        f" ({self.remote_max_frame_size})",
                    )
                )
                return
            body = _with_short_error(performative).encode()
        self.out.append(encode_frame(channel, body))

    def unmap(self, session: Session) -> None:
        self._channels.unmap(session)
        self.touched.discard(session)

    # --- frames ---

    def _process(self, data: bytes, at: int) -> None:
        try:
            at = self._receive_frames(data, at)
        except AmqpError as failure:
            at = len(data)
            self._fail(failure)
        self._buffer = data[at:] if at < len(data) else b""

    @property
    def holds_transfers(self) -> bool:
        """Whether transfers wait because the window of their session has no room."""
        return any(session.holds_transfers for session in self._channels.sessions.values())

    @property
    def unfinished_bytes(self) -> int:
        """The memory that incomplete frames and messages use, in bytes."""
        return len(self._buffer) + self.partial_bytes

    def _missing(self) -> int:
        """Return how many bytes of the frame in the buffer have not arrived; 0 if that is unknown."""
        buffer = self._buffer
        if len(buffer) < FRAME_HEADER.size or not self._handshake.done:
            return 0
        return int.from_bytes(buffer[:4]) - len(buffer)

    def _receive_frames(self, data: bytes, at: int) -> int:
        """Handle all complete frames in `data` from `at` on. Return the position after them."""
        if self.state is _ENDED:
            return len(data)
        if self._handshake.done:
            return self._receive_amqp_frames(data, at)
        at = self._handshake.receive(data)
        if self._handshake.done:
            self._step(ConnectionInput.RECEIVE_HEADER)
        self._send_header()
        return self._receive_amqp_frames(data, at) if self._handshake.done else at

    def _receive_amqp_frames(self, data: bytes, at: int) -> int:
        size = len(data)
        limit = self.settings.max_frame_size
        sessions = self._channels.by_remote
        unpack = _FRAME_START.unpack_from
        while self.state is not _ENDED:
            if size - at > _HOT_SIZE:
                # Frequent performatives are recognised by their first octets and passed directly to their session.
                frame_size, doff_and_type, channel, start = unpack(data, at)
                end = at + frame_size
                session = sessions.get(channel)
                if session is not None and end <= size and _HOT_SIZE < frame_size <= limit and doff_and_type == _PLAIN:
                    try:
                        if start == TRANSFER_START:
                            session.on_transfer(data, at + 8, end)
                            at = end
                            continue
                        if start == DISPOSITION_START:
                            session.on_disposition(data, at + 8, end)
                            at = end
                            continue
                        if start == FLOW_START:
                            session.on_flow(data, at + 8, end)
                            at = end
                            continue
                    except EndSession as failure:
                        self._end_session(session, failure)
                        at = end
                        continue
            body_at, end = find_frame(data, at, limit, AMQP_FRAME)
            if end > size:
                return at
            if body_at < end:
                channel = FRAME_HEADER.unpack_from(data, at)[3]
                try:
                    self._on_performative(channel, data[body_at:end])
                except EndSession as failure:
                    self._end_session(self._channels.find(channel), failure)
            at = end
        return size

    def _on_performative(self, channel: int, body: bytes) -> None:
        performative, _ = decode_composite(body)
        kind = type(performative)
        if kind is Open:
            self._on_open(performative)
        elif kind is Close:
            self._on_close(performative)
        elif kind not in _AFTER_OPEN:
            raise CloseConnection(Condition.NOT_ALLOWED, f"a frame has {kind.__name__} instead of a performative")
        elif self.state is ConnectionState.OPENED:
            if kind is Begin:
                self._on_begin(channel, performative)
            elif not self._channels.has_ended(channel):
                self._channels.find(channel).on_performative(performative, body)
        elif self.state is not ConnectionState.CLOSE_SENT:
            raise CloseConnection(Condition.ILLEGAL_STATE, f"{kind.__name__.lower()} arrived before open")

    def _send_header(self) -> None:
        if not self._handshake.may_send_header or (self.state, ConnectionInput.SEND_HEADER) not in CONNECTION:
            return
        self._step(ConnectionInput.SEND_HEADER)
        self.out.append(AMQP_HEADER)
        if not self.is_server:
            self._send_open()

    def _send_open(self, *, refused: bool = False) -> None:
        self._step(ConnectionInput.SEND_OPEN)
        self.send(0, make_open(self.settings, self.offered_capabilities, self.remote_open, refused=refused))

    # --- performatives ---

    def _on_open(self, performative: Open) -> None:
        self._step(ConnectionInput.RECEIVE_OPEN)
        check_open(performative)
        self.remote_open = performative
        self.remote_max_frame_size = performative.max_frame_size
        self._idleness.set_remote(performative.idle_time_out)
        check, self.check_open = self.check_open, None
        refusal = None if check is None else check(performative)
        if self.state is ConnectionState.OPEN_RECEIVED:
            self._send_open(refused=refusal is not None)
        if self.state is ConnectionState.OPENED:
            self.emit(ConnectionOpened(performative) if refusal is None else ConnectionRefused(refusal))

    def _on_begin(self, channel: int, performative: Begin) -> None:
        channels = self._channels
        channels.check_begin(channel, self.settings.channel_max)
        answered = performative.remote_channel
        session = self._new_session() if answered is None else channels.awaiting(answered)
        channels.map(session, channel)
        session.on_begin(performative)

    def _on_close(self, performative: Close) -> None:
        was_open = self.state is not ConnectionState.CLOSE_SENT
        self._step(ConnectionInput.RECEIVE_CLOSE)
        self._forget_sessions()
        if was_open:
            self.emit(ConnectionClosed(performative.error))
            self.close()

    # --- inside ---

    def _take_events(self) -> list[Any]:
        events = self.events
        self.events = []
        return events

    def _step(self, cause: ConnectionInput) -> None:
        self.state = step(CONNECTION, self.state, cause)

    def _new_session(self) -> Session:
        session = Session(self, self._channels.take((self.remote_open or self.settings).channel_max))
        self._channels.add(session)
        return session

    def _end_session(self, session: Session, failure: EndSession) -> None:
        error = Error(condition=failure.condition, description=failure.description)
        self.emit(SessionEnded(session, error))
        session.end(error)

    def _fail(self, failure: AmqpError) -> None:
        """Close the connection and stop reading, because the peer violated the protocol or is silent."""
        error = Error(condition=failure.condition, description=failure.description)
        self.close(error)
        self._step(ConnectionInput.DROP_TRANSPORT)
        self._forget_sessions()
        self.emit(ConnectionClosed(error))

    def _forget_sessions(self) -> None:
        for session in self._channels.sessions.values():
            session.forget()
        self._channels.clear()
        self.touched.clear()


def _with_short_error(performative: Any) -> Any:
    error: Error = performative.error
    short = Error(condition=error.condition, description=error.description[:_MAX_DESCRIPTION])
    return replace(performative, error=short)
