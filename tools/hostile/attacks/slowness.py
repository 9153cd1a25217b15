"""Slowness: connections that are kept open with little or no traffic, in every state."""

from __future__ import annotations

import time
from typing import Final

from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from peeklock.amqp.performatives import Attach, Open, SaslInit
from tools.hostile.attack import attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import HEARTBEAT, QUEUE, TLS_HELLO, UPGRADE, Victim, receiver

LONGEST: Final = 55.0
"""Seconds after which an open connection is a failure. The time-out is 20 s, and TLS uses it twice."""
PAUSE: Final = 1.0
LINES: Final = 5
"""Connections of each kind."""


def _require_closed(lines: list[Line], drips: bytes = b"") -> None:
    """Check that the broker closes each connection in time, when it sends nothing or a byte per second."""
    deadline = time.monotonic() + LONGEST
    at = 0
    while left := [line for line in lines if not line.is_closed]:
        require(
            time.monotonic() < deadline,
            f"{len(left)} of {len(lines)} connections are still there after {LONGEST:g} seconds",
        )
        for line in left:
            line.send(drips[at : at + 1])
        at += 1
        left[0].wait(PAUSE)
        for line in left[1:]:
            line.wait(0.001)


def _dialled(victim: Victim, said: bytes = b"") -> list[Line]:
    lines = [victim.dial() for _ in range(LINES)]
    for line in lines:
        line.send(said)
    return lines


@attack(answer="closes the connection after 20 s", log="connection dropped.*sent nothing in time", is_slow=True)
def silence(victim: Victim) -> None:
    """Connections that send nothing."""
    _require_closed(_dialled(victim))


@attack(
    answer="closes the connection 20 s after the first byte",
    log="connection dropped.*first 4 bytes in time",
    is_slow=True,
)
def slow_first_bytes(victim: Victim) -> None:
    """The first two bytes of a header, and nothing else."""
    _require_closed(_dialled(victim, b"AM"))


@attack(answer="closes after 20 s: the connection was not opened", log="connection dropped.*not opened", is_slow=True)
def slow_header(victim: Victim) -> None:
    """A protocol header, a byte per second."""
    _require_closed(_dialled(victim, AMQP_HEADER[:5]), AMQP_HEADER[5:7])


@attack(answer="closes the connection 20 s after the first byte", log="connection not established", is_slow=True)
def slow_tls(victim: Victim) -> None:
    """A TLS hello, a byte per second."""
    _require_closed(_dialled(victim, TLS_HELLO[:20]), TLS_HELLO[20:])


@attack(answer="closes the connection after 20 s", log="connection dropped.*first 4 bytes in time", is_slow=True)
def silence_in_tls(victim: Victim) -> None:
    """A completed TLS handshake, and nothing after it."""
    _require_closed([victim.dial_tls() for _ in range(LINES)])


@attack(answer="closes after 20 s: the connection was not opened", log="connection dropped.*not opened", is_slow=True)
def slow_sasl(victim: Victim) -> None:
    """A SASL frame, a byte per second, after the SASL header."""
    init = frame(SaslInit(mechanism="PLAIN", initial_response=b"\0name\0" + b"k" * 100), kind=SASL_FRAME)
    _require_closed(_dialled(victim, SASL_HEADER), init)


@attack(answer="closes after 20 s: the connection was not opened", log="connection dropped.*not opened", is_slow=True)
def silence_after_sasl(victim: Victim) -> None:
    """SASL ANONYMOUS, the header, and an empty frame every second, but no open."""
    init = frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL_FRAME)
    _require_closed(_dialled(victim, SASL_HEADER + init + AMQP_HEADER), HEARTBEAT * 8)


@attack(answer="closes after 20 s: the connection was not opened", log="connection dropped.*not opened", is_slow=True)
def slow_open(victim: Victim) -> None:
    """An open, a byte per second."""
    _require_closed(_dialled(victim, AMQP_HEADER), frame(Open(container_id="hostile" * 20)))


@attack(answer="closes after 20 s: no token or key was shown", log="connection dropped.*no token", is_slow=True)
def connections_without_a_token(victim: Victim) -> None:
    """Open connections with a session, links to `$cbs` and heartbeats, but without a token."""
    lines = []
    for _ in range(LINES):
        line = victim.unauthenticated_session()
        line.send(frame(receiver("$cbs")))
        line.expect(Attach)
        lines.append(line)
    _require_closed(lines, HEARTBEAT * 8)


@attack(answer="closes the connection after 20 s", log="connection dropped.*HTTP request came in time", is_slow=True)
def slow_request_line(victim: Victim) -> None:
    """An HTTP request line, a byte per second."""
    _require_closed(_dialled(victim, b"GET "), b"/" + b"a" * 100)


@attack(answer="closes the connection after 20 s", log="connection dropped.*HTTP request came in time", is_slow=True)
def slow_http_headers(victim: Victim) -> None:
    """HTTP headers that never end, a byte per second."""
    _require_closed(_dialled(victim, b"GET /health HTTP/1.1\r\nHost: localhost\r\n"), b"X-A: b\r\n" * 20)


@attack(answer="answers 408 after 20 s and closes the connection", log="request refused.*408", is_slow=True)
def slow_body(victim: Victim) -> None:
    """The body of an authorized request, a byte per second."""
    head = victim.request("PUT", "/slow", Content_Length="1000")
    _require_closed(_dialled(victim, head), b"<" * 1000)


@attack(
    answer="answers 401 before the body and closes the connection 10 s later", log="request refused.*401", is_slow=True
)
def slow_body_without_a_token(victim: Victim) -> None:
    """The body of a request without a token, a byte per second."""
    head = b"PUT /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    _require_closed(_dialled(victim, head), b"<" * 1000)


@attack(answer="closes the connection after 20 s", log="request refused.*401", is_slow=True)
def silence_between_requests(victim: Victim) -> None:
    """HTTP connections that stay open after one request."""
    _require_closed(_dialled(victim, f"GET /{QUEUE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()))


@attack(answer="closes after 20 s: the connection was not opened", log="connection dropped.*not opened", is_slow=True)
def silence_in_a_websocket(victim: Victim) -> None:
    """WebSockets that send nothing."""
    _require_closed(_dialled(victim, UPGRADE))


@attack(answer="closes after 20 s: the connection was not opened", log="connection dropped.*not opened", is_slow=True)
def slow_websocket_frame(victim: Victim) -> None:
    """A WebSocket message of 4 MB, a byte per second."""
    _require_closed(_dialled(victim, UPGRADE), b"\x82\xff\x00\x00\x00\x00\x00\x3f\x00\x00" + b"\x00" * 100)


@attack(answer="handles the complete frames, and discards the incomplete one", log="connection", is_slow=True)
def slow_frame_of_a_client(victim: Victim) -> None:
    """A frame of 200,000 bytes on an open connection, in pieces of 100 bytes, reset before its end."""
    with victim.begun() as line:
        line.send(b"\x00\x03\x0d\x40\x02\x00\x00\x00")
        for _ in range(1500):
            line.send(b"\x00" * 100)
            line.wait(0.002)
