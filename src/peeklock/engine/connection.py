"""One AMQP connection, sans-I/O, in either role: open and close, frames to their sessions.

`receive` takes bytes and returns events; `take_output` gives the bytes to write. Both roles use the same class: a
client calls `connect` first, a server waits for the peer's header. Time comes in through `tick`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, Final

from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import AmqpError, Condition
from peeklock.amqp.fast import DISPOSITION_START, FLOW_START, TRANSFER_START
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
from peeklock.engine.errors import CloseConnection, EndSession
from peeklock.engine.events import ConnectionClosed, ConnectionOpened, ConnectionRefused, SessionEnded
from peeklock.engine.handshake import Handshake, find_frame
from peeklock.engine.idleness import MIN_IDLE_TIME_OUT_MS, Idleness
from peeklock.engine.sasl import SaslRole
from peeklock.engine.session import Session
from peeklock.engine.states import CONNECTION, ConnectionInput, ConnectionState, step

_FRAME_START: Final = struct.Struct(">IHHI")
"""A frame header and the first four octets of the body: enough to know a transfer or a disposition."""
_HOT_SIZE: Final = _FRAME_START.size
_PLAIN: Final = 0x0200
"""Data offset and type of an AMQP frame without an extended header."""
ESTABLISHMENT_FAILED: Final = "amqp:connection-establishment-failed"
"""A property of an open: a close with the reason follows."""
_AFTER_OPEN: Final = {Begin, Attach, Flow, Transfer, Disposition, Detach, End}
_ENDED: Final = ConnectionState.ENDED
_USUAL_FRAME_SIZE: Final = 65536
_MAX_DESCRIPTION: Final = 100
"""Characters of an error description that fit the smallest frame a peer may insist on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one side offers in its open."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = 262144
    channel_max: int = 4999
    idle_time_out_ms: int | None = 120_000
    offered_capabilities: tuple[str, ...] = ()
    properties: dict[Any, Any] | None = None


class Connection:
    """The state of one connection."""

    def __init__(self, settings: Settings, sasl: SaslRole | None = None, *, is_server: bool) -> None:
        self.settings = settings
        self.is_server = is_server
        self.state = ConnectionState.START
        self.out: list[bytes] = []
        """Frames and parts of frames to write, in order. The same list for life: sessions write to it."""
        self.events: list[Any] = []
        """What has happened since `receive` or `tick` last returned."""
        self.touched: set[Session] = set()
        """Sessions with dispositions that have not been written yet."""
        self.congested = False
        """Set by the owner while its transport is full: nothing new is sent into it."""
        self.partial_bytes = 0
        """Held of messages that are not whole yet, on all links."""
        self.check_open: Callable[[Open], Error | None] | None = None
        """Asked once, before a server answers the peer's open: why the connection is refused, or None."""
        self.offered_capabilities: list[str] = list(settings.offered_capabilities)
        """What our open says; `check_open` may add to it."""
        self.remote_open: Open | None = None
        self.remote_max_frame_size = MIN_MAX_FRAME_SIZE
        self._handshake = Handshake(sasl, self.out, is_server=is_server)
        self._buffer = b""
        self._sessions: dict[int, Session] = {}
        """By our channel."""
        self._ended_channels: set[int] = set()
        """The peer's channels whose session is over: one SDK detaches its links after the end, which is no harm."""
        self._by_remote_channel: dict[int, Session] = {}
        self._next_channel = 0
        self._free_channels: list[int] = []
        self._idleness = Idleness(settings.idle_time_out_ms)

    # --- for the owner ---

    @property
    def opened(self) -> bool:
        return self.state is ConnectionState.OPENED

    @property
    def ended(self) -> bool:
        """Nothing more will be read, and nothing written beyond the output at hand: the transport can go."""
        return self.state is ConnectionState.ENDED

    @property
    def identity(self) -> Any:
        """Whom SASL let in, on a server; None without SASL."""
        return self._handshake.identity

    def connect(self) -> None:
        """Speak first, as a client: SASL if there is one, then header and open without waiting."""
        self._handshake.connect()
        self._send_header()

    def receive(self, data: bytes) -> list[Any]:
        """Take what the transport read; returns what happened."""
        self._idleness.heard = True
        if not self._buffer:
            self._take_in(data, 0)
        elif 0 < (missing := self._missing()) < len(data):
            # The frame that has begun is completed alone: what follows it need not be copied.
            self._take_in(self._buffer + data[:missing], 0)
            self._take_in(data, missing)
        else:
            self._take_in(self._buffer + data, 0)
        return self._take_events()

    def begin(self) -> Session:
        """Begin a session, as a client. CloseConnection when the peer allows no more of them."""
        session = self._new_session()
        session.begin()
        return session

    def close(self, error: Error | None = None) -> None:
        """Close the connection, or answer the peer's close. Without effect on one that is over."""
        if self.state is ConnectionState.CLOSE_SENT:
            return
        if self.state in (ConnectionState.HEADERS_EXCHANGED, ConnectionState.OPEN_RECEIVED):
            self._send_open()  # a close needs an open before it
        if (self.state, ConnectionInput.SEND_CLOSE) not in CONNECTION:
            self.state = ConnectionState.ENDED
            return
        for session in self._sessions.values():
            session.flush_dispositions()
        self.send(0, Close(error=error))
        self.state = step(CONNECTION, self.state, ConnectionInput.SEND_CLOSE)
        self._forget_sessions()  # what is still on its way is of no use any more

    def lost(self) -> None:
        """The transport is gone: nothing is said any more, and nothing is kept."""
        self.state = ConnectionState.ENDED
        self.check_open = None
        self._buffer = b""
        self.out.clear()
        self._forget_sessions()

    def take_output(self) -> list[bytes]:
        """What must be written now. The caller owns the list."""
        self.flush_dispositions()
        out = self.out
        if not out:
            return []
        self._idleness.spoke = True
        taken = out[:]
        out.clear()
        return taken

    def tick(self, now: float) -> list[Any]:
        """Look at the time (seconds, any origin): writes a heartbeat when one is due, closes when the peer is silent.

        Exact to the interval between calls; `tick_interval` says how often that should be.
        """
        idleness = self._idleness
        idleness.look(now)
        if not self.ended and idleness.is_silent(now):
            self._fail(
                CloseConnection(Condition.RESOURCE_LIMIT_EXCEEDED, f"nothing was heard for {idleness.limit:g} seconds")
            )
        elif self.opened and not self.out and idleness.owes_heartbeat(now):
            self.out.append(HEARTBEAT)
        return self._take_events()

    @property
    def tick_interval(self) -> float:
        """Seconds between calls of `tick` that keep both sides' time-outs."""
        return self._idleness.interval

    def flush_dispositions(self) -> None:
        """Write the dispositions of all sessions now: what is written next comes after them."""
        if self.touched:
            for session in self.touched:
                session.flush_dispositions()
            self.touched.clear()

    # --- for sessions and links ---

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def send(self, channel: int, performative: Any) -> None:
        """Write a performative; what does not fit the peer's frames closes the connection."""
        if self.state in (ConnectionState.CLOSE_SENT, ConnectionState.ENDED):
            return
        body = performative.encode()
        if len(body) + 8 > self.remote_max_frame_size and self.remote_open is not None:
            if getattr(performative, "error", None) is None:
                name = type(performative).__name__.lower()
                self._fail(
                    CloseConnection(
                        Condition.FRAME_SIZE_TOO_SMALL,
                        f"a frame of {len(body) + 8} bytes for {name} is larger than the peer takes"
                        f" ({self.remote_max_frame_size})",
                    )
                )
                return
            body = _with_short_error(performative).encode()
        self.out.append(encode_frame(channel, body))

    def unmap(self, session: Session) -> None:
        if self._sessions.pop(session.channel, None) is not None:
            heappush(self._free_channels, session.channel)
        if session.remote_channel is not None:
            self._by_remote_channel.pop(session.remote_channel, None)
            self._ended_channels.add(session.remote_channel)
        self.touched.discard(session)

    # --- frames ---

    def _take_in(self, data: bytes, at: int) -> None:
        try:
            at = self._receive_frames(data, at)
        except AmqpError as failure:
            at = len(data)
            self._fail(failure)
        self._buffer = data[at:] if at < len(data) else b""

    @property
    def unfinished_bytes(self) -> int:
        """What is kept of frames and messages whose end has not come."""
        return len(self._buffer) + self.partial_bytes

    def _missing(self) -> int:
        """How much of the frame in the buffer has not come; 0 where that is not known."""
        buffer = self._buffer
        if len(buffer) < FRAME_HEADER.size or not self._handshake.done:
            return 0
        return int.from_bytes(buffer[:4]) - len(buffer)

    def _receive_frames(self, data: bytes, at: int) -> int:
        """Handle what is whole in `data` from there on; returns where the rest starts."""
        if self.state is _ENDED:
            return len(data)
        if self._handshake.done:
            return self._receive_amqp_frames(data, at)
        at = self._handshake.receive(data)
        if self._handshake.done:
            self.state = step(CONNECTION, self.state, ConnectionInput.RECEIVE_HEADER)
        self._send_header()
        return self._receive_amqp_frames(data, at) if self._handshake.done else at

    def _receive_amqp_frames(self, data: bytes, at: int) -> int:
        size = len(data)
        limit = self.settings.max_frame_size
        sessions = self._by_remote_channel
        unpack = _FRAME_START.unpack_from
        while self.state is not _ENDED:
            if size - at > _HOT_SIZE:
                # What is frequent is known by its first octets and goes straight to its session.
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
                    self._end_session(self._session(channel), failure)
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
            raise CloseConnection(Condition.NOT_ALLOWED, f"a frame with {kind.__name__} instead of a performative")
        elif self.state is ConnectionState.OPENED:
            if kind is Begin:
                self._on_begin(channel, performative)
            elif channel not in self._ended_channels:
                self._session(channel).on_performative(performative, body)
        elif self.state is not ConnectionState.CLOSE_SENT:
            raise CloseConnection(Condition.ILLEGAL_STATE, f"{kind.__name__.lower()} before open")

    def _send_header(self) -> None:
        if not self._handshake.may_send_header or (self.state, ConnectionInput.SEND_HEADER) not in CONNECTION:
            return
        self.state = step(CONNECTION, self.state, ConnectionInput.SEND_HEADER)
        self.out.append(AMQP_HEADER)
        if not self.is_server:
            self._send_open()

    def _send_open(self, *, refused: bool = False) -> None:
        self.state = step(CONNECTION, self.state, ConnectionInput.SEND_OPEN)
        settings = self.settings
        properties = dict(settings.properties or {})
        if refused:
            properties[ESTABLISHMENT_FAILED] = True
        self.send(
            0,
            Open(
                container_id=settings.container_id,
                hostname=settings.hostname,
                max_frame_size=self._offered_frame_size(),
                channel_max=settings.channel_max,
                idle_time_out=settings.idle_time_out_ms,
                offered_capabilities=list(self.offered_capabilities) or None,
                properties=properties,
            ),
        )

    def _offered_frame_size(self) -> int:
        """Bytes of the largest frame that the peer is asked for.

        uamqp, which older SDKs are made of, cannot send frames larger than those it accepts itself. So the answer to an
        open names no more than the open does, or what is usual.
        """
        ours = self.settings.max_frame_size
        if self.remote_open is None:
            return ours
        return min(ours, max(self.remote_open.max_frame_size, _USUAL_FRAME_SIZE))

    # --- performatives ---

    def _on_open(self, performative: Open) -> None:
        self.state = step(CONNECTION, self.state, ConnectionInput.RECEIVE_OPEN)
        if performative.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise CloseConnection(
                Condition.INVALID_FIELD,
                f"max-frame-size {performative.max_frame_size} is below {MIN_MAX_FRAME_SIZE}",
            )
        if performative.idle_time_out and performative.idle_time_out < MIN_IDLE_TIME_OUT_MS:
            raise CloseConnection(
                Condition.NOT_ALLOWED,
                f"an idle-time-out of {performative.idle_time_out} ms is below {MIN_IDLE_TIME_OUT_MS}",
            )
        self.remote_open = performative
        self.remote_max_frame_size = performative.max_frame_size
        self._idleness.peer_wants(performative.idle_time_out)
        check, self.check_open = self.check_open, None
        refusal = None if check is None else check(performative)
        if self.state is ConnectionState.OPEN_RECEIVED:
            self._send_open(refused=refusal is not None)
        if self.state is ConnectionState.OPENED:
            self.emit(ConnectionOpened(performative) if refusal is None else ConnectionRefused(refusal))

    def _on_begin(self, channel: int, performative: Begin) -> None:
        if channel in self._by_remote_channel:
            raise CloseConnection(Condition.NOT_ALLOWED, f"channel {channel} has a session already")
        if channel > self.settings.channel_max:
            raise CloseConnection(
                Condition.NOT_ALLOWED, f"channel {channel} is above channel-max {self.settings.channel_max}"
            )
        self._ended_channels.discard(channel)
        if performative.remote_channel is None:
            session = self._new_session()
        else:
            known = self._sessions.get(performative.remote_channel)
            if known is None or known.remote_channel is not None:
                raise CloseConnection(
                    Condition.NOT_ALLOWED, f"no session waits on channel {performative.remote_channel}"
                )
            session = known
        self._by_remote_channel[channel] = session
        session.remote_channel = channel
        session.on_begin(performative)

    def _on_close(self, performative: Close) -> None:
        was_open = self.state is not ConnectionState.CLOSE_SENT
        self.state = step(CONNECTION, self.state, ConnectionInput.RECEIVE_CLOSE)
        self._forget_sessions()
        if was_open:
            self.emit(ConnectionClosed(performative.error))
            self.close()

    # --- inside ---

    def _take_events(self) -> list[Any]:
        events = self.events
        self.events = []
        return events

    def _new_session(self) -> Session:
        if self._free_channels:
            channel = heappop(self._free_channels)
        else:
            offered = self.remote_open or self.settings
            channel = self._next_channel
            if channel > offered.channel_max:
                raise CloseConnection(
                    Condition.RESOURCE_LIMIT_EXCEEDED, f"all {offered.channel_max + 1} channels are taken"
                )
            self._next_channel += 1
        session = self._sessions[channel] = Session(self, channel)
        return session

    def _session(self, channel: int) -> Session:
        session = self._by_remote_channel.get(channel)
        if session is None:
            raise CloseConnection(Condition.NOT_ALLOWED, f"no session is mapped to channel {channel}")
        return session

    def _end_session(self, session: Session, failure: EndSession) -> None:
        error = Error(condition=failure.condition, description=failure.description)
        self.emit(SessionEnded(session, error))
        session.end(error)

    def _fail(self, failure: AmqpError) -> None:
        """The peer broke the protocol, or is gone: close with the reason and listen no more."""
        error = Error(condition=failure.condition, description=failure.description)
        self.close(error)
        self.state = ConnectionState.ENDED
        self._forget_sessions()
        self.emit(ConnectionClosed(error))

    def _forget_sessions(self) -> None:
        for session in self._sessions.values():
            session.forget()
        self._sessions.clear()
        self._by_remote_channel.clear()
        self.touched.clear()


def _with_short_error(performative: Any) -> Any:
    error: Error = performative.error
    short = Error(condition=error.condition, description=error.description[:_MAX_DESCRIPTION])
    return replace(performative, error=short)
