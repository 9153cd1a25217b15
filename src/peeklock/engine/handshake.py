"""The exchange before the first AMQP frame: the protocol headers (2.2) and, if the client starts it, SASL (5.3).

A client may skip SASL; it is then not authenticated. `sasl` has the SASL exchange of both roles.
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
    """Reads headers and SASL frames up to the peer's AMQP header. The connection sends our own AMQP header."""

    def __init__(self, sasl: SaslRole | None, out: list[bytes], *, is_server: bool) -> None:
        self.done = False
        """Whether the peer's AMQP header has arrived, so that AMQP frames follow."""
        self.may_send_header = False
        """Whether our AMQP header may be sent, because SASL is not used or is done."""
        self._sasl = sasl
        self._out = out
        self._is_server = is_server
        self._in_sasl = False
        self._expects_header = True

    @property
    def identity(self) -> Any:
        return self._sasl.identity if isinstance(self._sasl, SaslServer) else None

    def connect(self) -> None:
        """Start the exchange, as a client."""
        if self._sasl is not None:
            self._in_sasl = True
            self._out.append(SASL_HEADER)
        else:
            self.may_send_header = True

    def receive(self, data: bytes) -> int:
        """Process the headers and SASL frames at the start of `data`. Return the position after them."""
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
            raise CloseConnection(Condition.UNAUTHORIZED_ACCESS, "SASL authentication failed")

    def _send(self, frames: list[Any]) -> None:
        self._out.extend(encode_frame(0, frame.encode(), SASL_FRAME) for frame in frames)

    def _refused(self) -> CloseConnection:
        # A server sends the protocol that it accepts before it closes the connection (2.2).
        if self._is_server:
            self._out.append(AMQP_HEADER)
        return CloseConnection(Condition.FRAMING_ERROR, "the peer did not send an AMQP 1.0 protocol header")


def find_frame(data: bytes, at: int, limit: int, expected_type: int) -> tuple[int, int]:
    """Return the start and end of the body of the frame at `at`. For an incomplete frame, the end is beyond `data`."""
    if len(data) - at < FRAME_HEADER.size:
        return at, len(data) + 1
    frame_size, doff, frame_type, _ = FRAME_HEADER.unpack_from(data, at)
    if frame_size > limit or doff < 2 or doff * 4 > frame_size:
        raise CloseConnection(
            Condition.FRAMING_ERROR,
            f"invalid frame: size {frame_size} (at most {limit}), "
            f"data offset {doff * 4} bytes (from {FRAME_HEADER.size} to the frame size)",
        )
    if frame_type != expected_type:
        raise CloseConnection(Condition.FRAMING_ERROR, f"a frame has type {frame_type} instead of {expected_type}")
    return at + doff * 4, at + frame_size
