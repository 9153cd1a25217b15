"""One connection of an attacker: bytes out as they are, and what the broker answers, frame by frame.

Nothing here keeps the protocol. `Line` knows how AMQP frames and HTTP answers are read, and that the broker must not
leave an attacker waiting for ever: every wait has an end, and is an AttackFailed then.
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

PATIENCE: Final = 60.0
"""Seconds after which an answer that did not come will not come. The machine may be busy with other things."""

T = TypeVar("T")


def frame(performative: Any, channel: int = 0, payload: bytes = b"", kind: int = AMQP_FRAME) -> bytes:
    return encode_frame(channel, performative.encode() + payload, kind)


class Line:
    """A connection. A context manager; leaving it hangs up."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream
        self._seen = b""
        self.hung_up = False
        """The broker has."""
        self.payload = b""
        """Behind the performative that came last."""

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, *parts: bytes) -> bool:
        """Whether the broker still took it. One that has hung up takes nothing more, which is as good an answer."""
        try:
            self._stream.sendall(b"".join(parts))
        except TimeoutError:
            raise AttackFailed(f"the broker read nothing for {PATIENCE:g} seconds") from None
        except OSError:
            return False
        return True

    def send_some(self, data: bytes) -> int:
        """How much of it was taken at once; 0 when there is no room, or nobody is there any more."""
        self._stream.setblocking(False)
        try:
            return self._stream.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError):
            return 0
        except OSError:
            self.hung_up = True
            return 0
        finally:
            self._stream.settimeout(PATIENCE)

    def drip(self, data: bytes, pause: float, seconds: float) -> None:
        """Byte by byte, for so long or until the broker hangs up."""
        deadline = time.monotonic() + seconds
        for at in range(len(data)):
            if self.hung_up or time.monotonic() > deadline or not self.send(data[at : at + 1]):
                return
            self.rest(pause)

    def rest(self, seconds: float) -> None:
        """Do nothing for so long, or until the broker hangs up."""
        deadline = time.monotonic() + seconds
        while not self.hung_up and (left := deadline - time.monotonic()) > 0:
            self._stream.settimeout(left)
            try:
                self._take()
            except TimeoutError:
                break
            finally:
                self._stream.settimeout(PATIENCE)

    def close(self) -> None:
        self._stream.close()

    def reset(self) -> None:
        """Hang up without a word, whatever is on the way."""
        with suppress(OSError):
            self._stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._stream.close()

    # --- what comes back ---

    def answer(self) -> bytes:
        """Everything until the broker hangs up."""
        while not self.hung_up:
            self._insist()
        return self._seen

    def frames(self) -> Iterator[Any]:
        """The performatives that come, as long as they do. Headers and heartbeats are passed over."""
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
            if self.hung_up:
                return
            self._insist()

    @property
    def has_frame(self) -> bool:
        """Whether a whole frame is here that was not looked at."""
        return len(self._seen) >= 8 and len(self._seen) >= FRAME_HEADER.unpack_from(self._seen)[0]

    def rest_if_idle(self, seconds: float) -> None:
        """Wait for the next frame for so long at most."""
        deadline = time.monotonic() + seconds
        while not self.has_frame and not self.hung_up and (left := deadline - time.monotonic()) > 0:
            self._stream.settimeout(left)
            try:
                self._take()
            except TimeoutError:
                break
            finally:
                self._stream.settimeout(PATIENCE)

    def expect(self, kind: type[T]) -> T:
        """The next performative of that kind."""
        for performative in self.frames():
            if isinstance(performative, kind):
                return performative
            if isinstance(performative, Detach | End | Close):
                why = "" if performative.error is None else f" ({performative.error.description})"
                what = type(performative).__name__.lower()
                raise AttackFailed(f"the broker sent {what}{why} instead of {kind.__name__.lower()}")
        raise AttackFailed(f"the broker hung up instead of sending {kind.__name__.lower()}")

    def is_link_refused(self) -> bool:
        """Whether the link that is answered next is refused: attached without a terminus, and detached at once."""
        answer = self.expect(Attach)
        if (answer.source if answer.role is False else answer.target) is not None:
            return False
        self.expect(Detach)
        return True

    def expect_refusal(self, condition: str) -> None:
        """The link is detached with that condition."""
        error = self.expect(Detach).error
        found = None if error is None else str(error.condition)
        if found != condition:
            raise AttackFailed(f"the link was detached with {found}, not with {condition}")

    def closed_for(self) -> str | None:
        """The condition with which the broker closes, once it has hung up; None if it gave none."""
        condition = None
        for performative in self.frames():
            if isinstance(performative, Close) and performative.error is not None:
                condition = str(performative.error.condition)
        return condition

    def response(self) -> tuple[int, bytes]:
        """Status and body of an HTTP answer; status 0 when the broker hangs up without one, no body if it is cut."""
        response = HTTPResponse(self._stream)
        status, body = 0, b""
        try:
            response.begin()
            status = response.status
            body = response.read()
        except TimeoutError:
            raise AttackFailed(f"no HTTP answer within {PATIENCE:g} seconds") from None
        except (HTTPException, OSError):
            pass  # an attacker is hung up on at any moment
        finally:
            response.close()
        return status, body

    def _insist(self) -> None:
        try:
            self._take()
        except TimeoutError:
            raise AttackFailed(f"the broker neither answered nor hung up within {PATIENCE:g} seconds") from None

    def _take(self) -> None:
        try:
            data = self._stream.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        self._seen += data
        self.hung_up = not data
