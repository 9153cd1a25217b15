"""Coverage-guided fuzzing of the frame parser and the connection's state machines; README.md has the commands.

The first byte of an input determines how the rest is used: for a server or a client, from the start or after links are
attached, and in pieces of which size. Any exception is a finding. So is output that has incomplete frames or frames
after a close, and so are bytes of messages that are kept after the connection is lost.
"""

from __future__ import annotations

from typing import Any

import atheris  # type: ignore[import-untyped]
from harness import fuzz

with atheris.instrument_imports(include=["peeklock.engine", "peeklock.amqp"]):
    from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
    from peeklock.amqp.message import Message
    from peeklock.amqp.performatives import (
        Accepted,
        Attach,
        Begin,
        Close,
        Detach,
        Disposition,
        End,
        Flow,
        Open,
        SaslInit,
        Source,
        Target,
        Transfer,
    )
    from peeklock.engine.connection import Connection
    from peeklock.engine.deliveries import IncomingDelivery
    from peeklock.engine.events import LinkAttached, OutgoingDisposed
    from peeklock.engine.links import Receiver, Sender
    from peeklock.engine.opening import Settings
    from peeklock.engine.sasl import SaslClient, SaslServer

CLOSE_START = b"\x00\x53\x18"
PIECES = (1 << 20, 1, 7, 64)
ATTACHED = b"".join(
    (
        AMQP_HEADER,
        encode_frame(0, Open(container_id="c").encode()),
        encode_frame(0, Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9).encode()),
        encode_frame(0, Attach(name="in", handle=0, role=False, target=Target(address="q")).encode()),
        encode_frame(0, Attach(name="out", handle=1, role=True, source=Source(address="q")).encode()),
        encode_frame(
            0,
            Flow(
                next_incoming_id=0,
                incoming_window=9,
                next_outgoing_id=0,
                outgoing_window=9,
                handle=1,
                delivery_count=0,
                link_credit=5,
            ).encode(),
        ),
    )
)
"""The frames that open a session with a link in each direction."""


def check(data: bytes) -> None:
    if not data:
        return
    choice, data = data[0], data[1:]
    is_server = bool(choice & 1)
    sasl = (SaslServer(["ANONYMOUS"], lambda *_: "anyone") if is_server else SaslClient()) if choice & 2 else None
    engine = Connection(Settings(container_id="fuzzed"), sasl, is_server=is_server)
    if not is_server:
        engine.connect()
    elif choice & 4 and sasl is None:
        data = ATTACHED + data
    output = feed(engine, data, PIECES[choice >> 3 & 3])
    check_output(output)


def feed(engine: Connection, data: bytes, piece: int) -> bytes:
    output = b""
    for at in range(0, len(data), piece):
        own(engine.receive(data[at : at + piece]))
        output += b"".join(engine.take_output())
    for moment in (1e9, 2e9):
        own(engine.tick(moment))
    output += b"".join(engine.take_output())
    engine.lost()
    assert engine.partial_bytes == 0
    return output


def own(events: list[Any]) -> None:
    """Call the methods of an application on the links, in any state of a link."""
    for event in events:
        if isinstance(event, LinkAttached):
            event.link.accept(max_message_size=1000)
            if isinstance(event.link, Receiver):
                event.link.max_message_size = 1000
                event.link.grant(50)
            elif isinstance(event.link, Sender) and event.link.ready():
                event.link.send(b"t", [b"x" * 700])
        elif isinstance(event, IncomingDelivery):
            event.dispose(Accepted().encode())
        elif isinstance(event, OutgoingDisposed):
            for delivery in event.deliveries:
                delivery.settle(Accepted().encode())


def check_output(data: bytes) -> None:
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size, doff, _, _ = FRAME_HEADER.unpack_from(data, at)
        assert doff == 2
        assert 8 <= size <= len(data) - at
        body = data[at + 8 : at + size]
        at += size
        assert not body.startswith(CLOSE_START) or at == len(data)


def examples() -> list[bytes]:
    payload = Message(data=[b"x" * 50]).encode()
    frames: list[tuple[Any, bytes]] = [
        (Transfer(handle=0, delivery_id=0, delivery_tag=b"t"), payload),
        (Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True), payload),
        (Disposition(role=True, first=0, last=5, settled=True, state=Accepted()), b""),
        (Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True), b""),
        (Detach(handle=0, closed=True), b""),
        (End(), b""),
        (Close(), b""),
    ]
    attached = [b"\x05" + encode_frame(0, each.encode() + behind) for each, behind in frames]
    login = SASL_HEADER + encode_frame(0, SaslInit(mechanism="ANONYMOUS").encode(), SASL_FRAME)
    return [
        *attached,
        b"\x05" + b"".join(each[1:] for each in attached),
        b"\x03" + login + ATTACHED,
        b"\x00" + ATTACHED,
    ]


if __name__ == "__main__":
    fuzz(check, examples())
