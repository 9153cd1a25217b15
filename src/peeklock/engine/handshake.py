"""What comes in front of the first AMQP frame: the protocol headers (2.2) and, if one side wants it, SASL (5.3).

A server may be spoken to without SASL; nobody is identified then. Who may come in is decided in `sasl`'s roles.
"""

from __future__ import annotations

from typing import Any, Final

from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import (
    AMQP_HEADER,
    FRAME_HEADER,
    MIN_MAX_FRAME_SIZE,
    SASL_FRAME,
    SASL_HEADER,
    encode_frame,
)
from peeklock.engine.errors import CloseConnection
from peeklock.engine.sasl import SaslRole, SaslServer

_MAX_SASL_FRAME: Final = MIN_MAX_FRAME_SIZE
_HEADER_SIZE: Final = 8


class Handshake:
    """The peer's side of it until its AMQP header has come; our own AMQP header is the connection's to send."""

    def __init__(self, sasl: SaslRole | None, out: list[bytes], *, is_server: bool) -> None:
        self.done = False
        """The peer's AMQP header has come: frames follow."""
        self.may_send_header = False
        """Our own AMQP header may go out: there is no SASL, or it is done."""
        self._sasl = sasl
        self._out = out
        self._is_server = is_server
        self._in_sasl = False
        self._expects_header = True

    @property
    def identity(self) -> Any:
        return self._sasl.identity if isinstance(self._sasl, SaslServer) else None

    def connect(self) -> None:
        """Speak first, as a client."""
        if self._sasl is not None:
            self._in_sasl = True
            self._out.append(SASL_HEADER)
        else:
            self.may_send_header = True

    def receive(self, data: bytes) -> int:
        """Take headers and SASL frames off the front of `data`; returns where the rest starts."""
        at = 0
        while not self.done:
            if self._expects_header:
                if not AMQP_HEADER.startswith(data[at : at + 4]):
                    raise self._refused()
                if len(data) - at < _HEADER_SIZE:
                    break
                self._on_header(data[at : at + _HEADER_SIZE])
                at += _HEADER_SIZE
            else:
                body_at, end = find_frame(data, at, _MAX_SASL_FRAME, SASL_FRAME)
                if end > len(data):
                    break
                if body_at < end:
                    self._on_sasl(data[body_at:end])
                at = end
        return at

    def _on_header(self, header: bytes) -> None:
        if header == AMQP_HEADER and not self._in_sasl:
            self.done = self.may_send_header = True
        elif header == SASL_HEADER and self._sasl is not None and not self._sasl.done:
            if self._is_server:
                self._in_sasl = True
                self._out.append(SASL_HEADER)
                self._send(self._sasl.start())
            self._expects_header = False
        else:
            raise self._refused()

    def _on_sasl(self, body: bytes) -> None:
        assert self._sasl is not None
        frame, _ = decode_composite(body)
        self._send(self._sasl.on_frame(frame))
        if self._sasl.done:
            self._in_sasl = False
            self._expects_header = self.may_send_header = True
        elif isinstance(self._sasl, SaslServer) and self._sasl.failed:
            raise CloseConnection(Condition.UNAUTHORIZED_ACCESS, "SASL was refused")

    def _send(self, frames: list[Any]) -> None:
        self._out.extend(encode_frame(0, frame.encode(), SASL_FRAME) for frame in frames)

    def _refused(self) -> CloseConnection:
        # A server says which protocol it speaks before it hangs up (2.2).
        if self._is_server:
            self._out.append(AMQP_HEADER)
        return CloseConnection(Condition.FRAMING_ERROR, "the peer does not speak AMQP 1.0 here")


def find_frame(data: bytes, at: int, limit: int, expected_type: int) -> tuple[int, int]:
    """Where the body of the frame at `at` starts and ends; the end is beyond the data if the frame is not whole."""
    if len(data) - at < FRAME_HEADER.size:
        return at, len(data) + 1
    frame_size, doff, frame_type, _ = FRAME_HEADER.unpack_from(data, at)
    if frame_size > limit or doff < 2 or doff * 4 > frame_size:
        raise CloseConnection(
            Condition.FRAMING_ERROR, f"a frame of {frame_size} bytes (at most {limit}) with data at {doff * 4}"
        )
    if frame_type != expected_type:
        raise CloseConnection(Condition.FRAMING_ERROR, f"frame type {frame_type} is not expected here")
    return at + doff * 4, at + frame_size
