"""Floods: large numbers of connections."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

from peeklock.amqp.frames import AMQP_HEADER
from peeklock.amqp.performatives import Begin, Open
from tools.hostile.attack import attack, require
from tools.hostile.lines import TIMEOUT, Line, frame
from tools.hostile.victim import BEGIN, FROM_ONE_ADDRESS, QUEUE, TLS_HELLO, Victim

CONNECTIONS: Final = 5000
"""The broker's default limit of connections."""


def _is_let_in(line: Line) -> bool:
    """Return whether the broker answers on the connection."""
    line.send(AMQP_HEADER, frame(Open(container_id="hostile")))
    line.wait(5.0)
    return not line.is_closed


@attack(
    answer="keeps 5000, closes further ones, and admits administration with a key",
    log="connection refused.*too many connections are open",
)
def connection_flood(victim: Victim) -> None:
    """5,300 open connections that send nothing."""
    with ExitStack() as open_lines:
        lines = [open_lines.enter_context(victim.dial()) for _ in range(CONNECTIONS + 300)]
        for line in lines[-5:]:
            line.answer()
        with victim.dial() as line:
            require(not _is_let_in(line), "there is room for more connections than there should be")
        status, _ = victim.ask(victim.request("GET", f"/{QUEUE}?api-version=2021-05", Connection="close"))
        require(status == 200, f"administration was answered with {status} while all connections were accepted")
        status, _ = victim.ask(victim.request("GET", f"/{QUEUE}", Authorization="none", Connection="close"))
        require(status in (0, 503), f"a request without a key was answered with {status}")


@attack(answer="opens them, and frees them when they are reset", log="connection opened")
def flood_of_open_connections(victim: Victim) -> None:
    """1,000 unauthenticated connections with a session each, all reset at once."""
    lines = []
    for _ in range(1000):
        line = victim.dial()
        line.send(AMQP_HEADER, frame(Open(container_id="hostile")), frame(BEGIN))
        lines.append(line)
    for line in lines:
        line.expect(Begin)
    for line in lines:
        line.reset()


@attack(answer="frees each at once", log="connection closed|connection opened")
def connections_that_come_and_go(victim: Victim) -> None:
    """3,000 connections that are reset at once, or after a byte, a header, or half an open."""
    opened = AMQP_HEADER + frame(Open(container_id="hostile"))
    said = (b"", b"A", b"\x16", b"GET ", AMQP_HEADER, opened[:-3], opened)
    for number in range(3000):
        line = victim.dial()
        line.send(said[number % len(said)])
        line.reset()
    victim.unauthenticated().close()


@attack(
    answer="completes the handshakes of clients that continue, and closes the other connections",
    log="connection not established|dropped",
)
def tls_flood(victim: Victim) -> None:
    """300 TLS handshakes that stop after the hello, and 30 that are completed and reset."""
    with ExitStack() as open_lines:
        for _ in range(300):
            open_lines.enter_context(victim.dial()).send(TLS_HELLO[:100])
        for _ in range(30):
            victim.dial_tls().reset()
    with victim.dial() as line:
        line.send(b"\x16\x03\x03\x00\x02\x02\x28" + b"\xff" * 1000)
        line.answer()


@attack(answer="answers in order, some at a time", log="request refused")
def pipelined_requests(victim: Victim) -> None:
    """5,000 HTTP requests at once on one connection, and on one that does not read the answers."""
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    deaf = victim.dial(receive_buffer=4096)
    for _ in range(50):
        if not deaf.send_available(ask * 100):
            break
    with victim.dial() as line:
        line.send(ask * 5000, b"GET /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = line.answer().count(b"HTTP/1.1 200")
        require(answers == 5000, f"of 5000 requests {answers} were answered")
    deaf.reset()


@attack(
    answer="keeps the configured number for the address; other addresses are served",
    log="connection refused",
    broker="small",
)
def connections_from_one_address(victim: Victim) -> None:
    """120 open connections from one address, with a limit of 100, and another one after those are closed."""
    lines = [victim.dial() for _ in range(FROM_ONE_ADDRESS + 20)]
    for line in lines:
        line.send(AMQP_HEADER, frame(Open(container_id="hostile")))
    for line in lines[:FROM_ONE_ADDRESS]:
        line.expect(Open)
    for line in lines[FROM_ONE_ADDRESS:]:
        line.wait(1.0)
        require(line.is_closed, "more connections from one address were let in")
    Victim(victim.port, victim.authority, "127.0.2.1").unauthenticated().close()
    for line in lines:
        line.reset()
    deadline = time.monotonic() + TIMEOUT
    while victim.ask(victim.request("GET", "/health"))[0] != 200:
        require(time.monotonic() < deadline, "an address is still refused after its connections were closed")
