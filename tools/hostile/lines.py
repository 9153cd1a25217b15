"""A raw connection of an attacker: sends any bytes, and reads the broker's answers frame by frame.

It does not enforce the protocol. `Line` parses AMQP frames and HTTP answers. Every wait has a deadline, after which it
raises AttackFailed.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, TypeVar

from peeklock.amqp.composites import decode_composite
from peeklock.amqp.frames import AMQP_FRAME, FRAME_HEADER, encode_frame
from peeklock.amqp.performatives import Attach, Close, Detach, End
from tools.hostile.attack import AttackFailed

TIMEOUT: Final = 60.0
"""Seconds to wait for an answer; long, because the machine may be busy."""

T = TypeVar("T")


def frame(performative: Any, channel: int = 0, payload: bytes = b"", kind: int = AMQP_FRAME) -> bytes:
    return encode_frame(channel, performative.encode() + payload, kind)


class Line:
    """A raw connection, closed at the end of its context."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._seen = b""
        self.is_closed = False
        """The broker has closed the connection."""
        self.payload = b""
        """The payload of the last frame."""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, *parts: bytes) -> bool:
        """Send bytes. Returns False if the broker has closed the connection, which is a valid answer."""
        try:
            self._stream.sendall(b"".join(parts))
        except TimeoutError:
            raise AttackFailed(f"the broker read nothing for {TIMEOUT:g} seconds") from None
        except OSError:
            return False
        return True

    def send_available(self, data: bytes) -> int:
        """Send without waiting. Returns the number of bytes sent; 0 if the buffer is full or the connection closed."""
        self._stream.setblocking(False)
        try:
            return self._stream.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0
        except OSError:
            self.is_closed = True
            return 0
        finally:
            self._stream.settimeout(TIMEOUT)

    def send_slowly(self, data: bytes, pause: float, seconds: float) -> None:
        """Send byte by byte, with pauses, for so long or until the broker closes the connection."""
        deadline = time.monotonic() + seconds
        for at in range(len(data)):
            if self.is_closed or time.monotonic() > deadline or not self.send(data[at : at + 1]):
                return
            self.wait(pause)

    def wait(self, seconds: float) -> None:
        """Wait for so long, or until the broker closes the connection."""
        deadline = time.monotonic() + seconds
        while not self.is_closed and (left := deadline - time.monotonic()) > 0:
            self._stream.settimeout(left)
            try:
                self._receive()
            except TimeoutError:
                break
            finally:
                self._stream.settimeout(TIMEOUT)

    def close(self) -> None:
        self._stream.close()

    def reset(self) -> None:
        """Close the connection with RST; bytes in flight are lost."""
        with suppress(OSError):
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._stream.close()

    # --- receiving ---

    def answer(self) -> bytes:
        """Return everything that the broker sends until it closes the connection."""
        while not self.is_closed:
            self._receive_or_fail()
        return self._seen

    def frames(self) -> Iterator[Any]:
        """Yield received performatives until the broker closes the connection. Headers and heartbeats are skipped."""
        while True:
            while self._seen[:4] == b"AMQP" and len(self._seen) >= 8:
                self._seen = self._seen[8:]
            if len(self._seen) >= 8 and self._seen[:4] != b"AMQP":
                size, doff, _, _ = FRAME_HEADER.unpack_from(self._seen)
                if len(self._seen) >= size:
                    body, self._seen = self._seen[doff * 4 : size], self._seen[size:]
                    if body:
                        performative, end = decode_composite(body)
                        self.payload = body[end:]
                        yield performative
                    continue
            if self.is_closed:
                return
            self._receive_or_fail()

    @property
    def has_frame(self) -> bool:
        """Whether a complete frame was received and not read yet."""
        return len(self._seen) >= 8 and len(self._seen) >= FRAME_HEADER.unpack_from(self._seen)[0]

    def wait_for_frame(self, seconds: float) -> None:
        """Wait for the next frame, for at most so long."""
        deadline = time.monotonic() + seconds
        while not self.has_frame and not self.is_closed and (left := deadline - time.monotonic()) > 0:
            self._stream.settimeout(left)
            try:
                self._receive()
            except TimeoutError:
                break
            finally:
                self._stream.settimeout(TIMEOUT)

    def expect(self, kind: type[T]) -> T:
        """Return the next performative of this kind; AttackFailed if the broker ends the link or more instead."""
        for performative in self.frames():
            if isinstance(performative, kind):
                return performative
            if isinstance(performative, Detach | End | Close):
                why = "" if performative.error is None else f" ({performative.error.description})"
                what = type(performative).__name__.lower()
                raise AttackFailed(f"the broker sent {what}{why} instead of {kind.__name__.lower()}")
        raise AttackFailed(f"the broker closed the connection instead of sending {kind.__name__.lower()}")

    def is_link_refused(self) -> bool:
        """Return whether the next attach refuses its link: without a terminus, and followed by a detach."""
        answer = self.expect(Attach)
        if (answer.source if answer.role is False else answer.target) is not None:
            return False
        self.expect(Detach)
        return True

    def expect_refusal(self, condition: str) -> None:
        """Check that the link is detached with this condition."""
        error = self.expect(Detach).error
        found = None if error is None else str(error.condition)
        if found != condition:
            raise AttackFailed(f"the link was detached with {found}, not with {condition}")

    def close_condition(self) -> str | None:
        """Read until the broker closes the connection. Returns the condition of its close, or None."""
        condition = None
        for performative in self.frames():
            if isinstance(performative, Close) and performative.error is not None:
                condition = str(performative.error.condition)
        return condition

    def response(self) -> tuple[int, bytes]:
        """Return status and body of an HTTP answer: status 0 without an answer, no body if it is incomplete."""
        response = HTTPResponse(self._stream)
        status, body = 0, b""
        try:
            response.begin()
            status = response.status
            body = response.read()
        except TimeoutError:
            raise AttackFailed(f"no HTTP answer within {TIMEOUT:g} seconds") from None
        except (HTTPException, OSError):
            pass  # the broker may close an attacker's connection at any moment
        finally:
            response.close()
        return status, body

    def _receive_or_fail(self) -> None:
        try:
            self._receive()
        except TimeoutError:
            raise AttackFailed(
                f"the broker neither answered nor closed the connection within {TIMEOUT:g} seconds"
            ) from None

    def _receive(self) -> None:
        try:
            data = self._stream.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        self._seen += data
        self.is_closed = not data
