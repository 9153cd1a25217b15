"""Slowness: connections that are kept open with next to nothing, at every stage of their life."""

from __future__ import annotations

import time
from typing import Final

from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from peeklock.amqp.performatives import Attach, Open, SaslInit
from tools.hostile.attack import attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import HEARTBEAT, QUEUE, TLS_HELLO, UPGRADE, Victim, receiver

LONGEST: Final = 55.0
"""Seconds after which a connection that is still there is a failure: its time is 20 s, and TLS has it twice."""
PAUSE: Final = 1.0
LINES: Final = 5
"""Connections of each kind."""


def _are_hung_up_on(lines: list[Line], drips: bytes = b"") -> None:
    """The broker lets go of each, in its time, whether it says nothing or a byte a second."""
    deadline = time.monotonic() + LONGEST
    at = 0
    while left := [line for line in lines if not line.hung_up]:
        require(
            time.monotonic() < deadline,
            f"{len(left)} of {len(lines)} connections are still there after {LONGEST:g} seconds",
        )
        for line in left:
            line.send(drips[at : at + 1])
        at += 1
        left[0].rest(PAUSE)
        for line in left[1:]:
            line.rest(0.001)


def _dialled(victim: Victim, said: bytes = b"") -> list[Line]:
    lines = [victim.dial() for _ in range(LINES)]
    for line in lines:
        line.send(said)
    return lines


@attack(answer="closes the connection after 20 s", says="connection dropped.*sent nothing in time", is_slow=True)
def silence(victim: Victim) -> None:
    """Connections on which nothing is sent."""
    _are_hung_up_on(_dialled(victim))


@attack(
    answer="closes the connection 20 s after the first byte",
    says="connection dropped.*first 4 bytes in time",
    is_slow=True,
)
def slow_first_bytes(victim: Victim) -> None:
    """Two bytes of a header, and nothing more."""
    _are_hung_up_on(_dialled(victim, b"AM"))


@attack(answer="closes after 20 s: the connection was not opened", says="connection dropped.*not opened", is_slow=True)
def slow_header(victim: Victim) -> None:
    """A protocol header of which one byte arrives each second."""
    _are_hung_up_on(_dialled(victim, AMQP_HEADER[:5]), AMQP_HEADER[5:7])


@attack(answer="closes the connection 20 s after the first byte", says="connection not established", is_slow=True)
def slow_tls(victim: Victim) -> None:
    """A TLS hello, one byte each second."""
    _are_hung_up_on(_dialled(victim, TLS_HELLO[:20]), TLS_HELLO[20:])


@attack(answer="closes the connection after 20 s", says="connection dropped.*first 4 bytes in time", is_slow=True)
def silence_in_tls(victim: Victim) -> None:
    """A finished TLS handshake, and nothing after it."""
    _are_hung_up_on([victim.dial_tls() for _ in range(LINES)])


@attack(answer="closes after 20 s: the connection was not opened", says="connection dropped.*not opened", is_slow=True)
def slow_sasl(victim: Victim) -> None:
    """A SASL frame after its header, one byte each second."""
    init = frame(SaslInit(mechanism="PLAIN", initial_response=b"\0name\0" + b"k" * 100), kind=SASL_FRAME)
    _are_hung_up_on(_dialled(victim, SASL_HEADER), init)


@attack(answer="closes after 20 s: the connection was not opened", says="connection dropped.*not opened", is_slow=True)
def silence_after_sasl(victim: Victim) -> None:
    """Anonymous SASL, the header, and an empty frame each second, but no open."""
    init = frame(SaslInit(mechanism="ANONYMOUS"), kind=SASL_FRAME)
    _are_hung_up_on(_dialled(victim, SASL_HEADER + init + AMQP_HEADER), HEARTBEAT * 8)


@attack(answer="closes after 20 s: the connection was not opened", says="connection dropped.*not opened", is_slow=True)
def slow_open(victim: Victim) -> None:
    """An open, one byte each second."""
    _are_hung_up_on(_dialled(victim, AMQP_HEADER), frame(Open(container_id="hostile" * 20)))


@attack(answer="closes after 20 s: no token or key was sent", says="connection dropped.*no token", is_slow=True)
def a_stranger_who_stays(victim: Victim) -> None:
    """Open connections with a session and links to `$cbs`, with heartbeats and without a token."""
    lines = []
    for _ in range(LINES):
        line = victim.stranger_begun()
        line.send(frame(receiver("$cbs")))
        line.expect(Attach)
        lines.append(line)
    _are_hung_up_on(lines, HEARTBEAT * 8)


@attack(answer="closes the connection after 20 s", says="connection dropped.*no complete HTTP request", is_slow=True)
def slow_request_line(victim: Victim) -> None:
    """An HTTP request line, one byte each second."""
    _are_hung_up_on(_dialled(victim, b"GET "), b"/" + b"a" * 100)


@attack(answer="closes the connection after 20 s", says="connection dropped.*no complete HTTP request", is_slow=True)
def slow_http_headers(victim: Victim) -> None:
    """HTTP headers that never end, one byte each second."""
    _are_hung_up_on(_dialled(victim, b"GET /health HTTP/1.1\r\nHost: localhost\r\n"), b"X-A: b\r\n" * 20)


@attack(answer="answers 408 after 20 s and closes the connection", says="request refused.*408", is_slow=True)
def slow_body(victim: Victim) -> None:
    """The body of an authorized request, one byte each second."""
    head = victim.request("PUT", "/slow", Content_Length="1000")
    _are_hung_up_on(_dialled(victim, head), b"<" * 1000)


@attack(
    answer="answers 401 before the body and closes the connection 10 s later", says="request refused.*401", is_slow=True
)
def slow_body_of_a_stranger(victim: Victim) -> None:
    """The body of a request without a token, one byte each second."""
    head = b"PUT /slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    _are_hung_up_on(_dialled(victim, head), b"<" * 1000)


@attack(answer="closes the connection after 20 s", says="request refused.*401", is_slow=True)
def silence_between_requests(victim: Victim) -> None:
    """HTTP connections that stay open after one request."""
    _are_hung_up_on(_dialled(victim, f"GET /{QUEUE} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()))


@attack(answer="closes after 20 s: the connection was not opened", says="connection dropped.*not opened", is_slow=True)
def silence_in_a_websocket(victim: Victim) -> None:
    """WebSockets on which nothing is sent."""
    _are_hung_up_on(_dialled(victim, UPGRADE))


@attack(answer="closes after 20 s: the connection was not opened", says="connection dropped.*not opened", is_slow=True)
def slow_websocket_frame(victim: Victim) -> None:
    """A WebSocket message of 4 MB, one byte each second."""
    _are_hung_up_on(_dialled(victim, UPGRADE), b"\x82\xff\x00\x00\x00\x00\x00\x3f\x00\x00" + b"\x00" * 100)


@attack(
    answer="waits for no more than the idle time-out; discards the incomplete frame", says="connection", is_slow=True
)
def slow_frame_of_a_client(victim: Victim) -> None:
    """A frame of 200,000 bytes on an open connection, in pieces of 100 bytes, cut before its end."""
    with victim.begun() as line:
        line.send(b"\x00\x03\x0d\x40\x02\x00\x00\x00")
        for _ in range(1500):
            line.send(b"\x00" * 100)
            line.rest(0.002)
