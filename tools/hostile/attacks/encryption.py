"""TLS where it is required: clients without TLS, and invalid certificates."""

from __future__ import annotations

import ssl
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, SASL_FRAME, SASL_HEADER
from peeklock.amqp.performatives import Begin, Open, SaslInit
from tools.hostile.attack import MIB, attack, require
from tools.hostile.client_certificates import EXPIRED, GOOD, ClientAuthority
from tools.hostile.lines import frame
from tools.hostile.victim import (
    BEGIN,
    KEY,
    OTHER,
    QUEUE,
    ROOT,
    UPGRADE,
    Victim,
    message,
    outcomes,
    sender,
    transfer,
)

STRICT: Final = "strict"
"""The broker that requires TLS and client certificates."""
_LARGEST_FRAME: Final = 262_144
_VERSIONS: Final = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@attack(
    answer="refuses AMQP with `amqp:not-allowed` and HTTP with 426",
    log="This broker requires TLS",
    broker=STRICT,
)
def requests_without_tls(victim: Victim) -> None:
    """Every kind of request with the right key, over AMQP and HTTP, on connections without TLS."""
    opened = AMQP_HEADER + frame(Open(container_id="hostile"))
    sends = frame(BEGIN) + frame(sender(QUEUE)) + transfer(0, message())
    plain = SaslInit(mechanism="PLAIN", initial_response=f"\0{ROOT}\0{KEY}".encode())
    for login in (
        b"",
        *(SASL_HEADER + frame(each, kind=SASL_FRAME) for each in (SaslInit(mechanism="ANONYMOUS"), plain)),
    ):
        with victim.dial() as line:
            line.send(login, opened, sends)
            found = line.close_condition()
            require(found in (Condition.NOT_ALLOWED, None), f"AMQP without TLS was closed with {found}")
    entity = f"/{OTHER}?api-version=2021-05"
    for request in (
        victim.request("GET", "/health"),
        victim.request("GET", "/metrics"),
        victim.request("GET", "/$Resources/queues?api-version=2021-05"),
        victim.request("DELETE", entity),
        victim.request("POST", f"/{QUEUE}/messages", b"hostile"),
        UPGRADE,
    ):
        with victim.dial() as line:
            line.send(request)
            status, _ = line.response()
            require(status == 426, f"{request.partition(b' HTTP')[0].decode()} without TLS was answered with {status}")
    require(victim.ask(victim.request("GET", entity))[0] == 200, "a queue was deleted without TLS")
    require(victim.drain() == 0, "a message was sent without TLS")


@attack(
    answer="drops the connection that holds the most when unauthenticated connections hold 32 MiB",
    log="hold too much memory",
    max_peak=192 * MIB,
    broker=STRICT,
)
def unfinished_frames_without_tls(victim: Victim) -> None:
    """1,000 connections without TLS, each with 250 KB of an incomplete frame."""
    begun = AMQP_HEADER + FRAME_HEADER.pack(_LARGEST_FRAME, 2, 0, 0) + bytes(250_000)
    with ExitStack() as open_lines:
        for _ in range(1000):
            open_lines.enter_context(victim.dial()).send(begun)
        with victim.sending(OTHER) as line:
            line.send(transfer(0, message()))
            outcomes(line, 1)
        require(victim.drain(OTHER) == 1, "a message of another queue is lost")


@attack(
    answer="ends the TLS handshake; a valid certificate alone gives no rights",
    log="connection not established",
    broker=STRICT,
)
def certificates_of_others(victim: Victim) -> None:
    """No certificate, an expired one, and one of another authority with the same name; then a valid one without a
    key.
    """
    assert victim.certificate is not None
    with tempfile.TemporaryDirectory(prefix="peeklock-hostile-") as made:
        other = ClientAuthority(Path(made) / "clients").file.with_name(GOOD)
        for certificate in (None, victim.certificate.with_name(EXPIRED), other):
            for version in _VERSIONS:
                name = "no certificate" if certificate is None else certificate.name
                require(
                    not _is_let_in(victim, certificate, version), f"a client with {name} was accepted by {version.name}"
                )
    for version in _VERSIONS:
        require(_is_let_in(victim, victim.certificate, version), f"a good certificate is refused by {version.name}")
    with victim.unauthenticated_session() as line:
        line.send(frame(sender(QUEUE)))
        require(line.is_link_refused(), "a certificate gave the right to send")


def _is_let_in(victim: Victim, certificate: Path | None, version: ssl.TLSVersion) -> bool:
    """Return whether the broker answers. In TLS 1.3 a client sees the refusal of its certificate only when it reads."""
    try:
        line = victim.dial_tls(certificate, version)
    except OSError:
        return False
    with line:
        line.send(AMQP_HEADER, frame(Open(container_id="hostile")), frame(BEGIN))
        return next((True for each in line.frames() if isinstance(each, Begin)), False)
