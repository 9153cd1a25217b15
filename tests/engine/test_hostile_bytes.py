"""For any bytes, in either role and in any pieces: `receive` returns, and its output is complete frames."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from amqp.values import values
from engine.pair import Peer
from peeklock.amqp.codec import encode_value
from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, SASL_HEADER, encode_frame
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
    SaslMechanisms,
    SaslOutcome,
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

small = st.integers(0, 3)
numbers = small | st.sampled_from([255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)
maybe = st.none() | numbers
flags = st.booleans()
channels = st.integers(0, 2) | st.integers(0, 65535)

performatives = st.one_of(
    st.builds(
        Open,
        container_id=st.just("p"),
        max_frame_size=numbers,
        channel_max=st.integers(0, 65535),
        idle_time_out=maybe,
    ),
    st.builds(
        Begin,
        remote_channel=st.none() | small,
        next_outgoing_id=numbers,
        incoming_window=numbers,
        outgoing_window=numbers,
        handle_max=numbers,
    ),
    st.builds(
        Attach,
        name=st.sampled_from(["a", "b", "x" * 600]),
        handle=numbers,
        role=flags,
        snd_settle_mode=st.integers(0, 2),
        rcv_settle_mode=st.integers(0, 1),
        source=st.none() | st.just(Source(address="q")),
        target=st.none() | st.just(Target(address="q")),
        unsettled=st.none() | st.just({b"t": None}),
        initial_delivery_count=maybe,
    ),
    st.builds(
        Flow,
        next_incoming_id=maybe,
        incoming_window=numbers,
        next_outgoing_id=numbers,
        outgoing_window=numbers,
        handle=maybe,
        delivery_count=maybe,
        link_credit=maybe,
        drain=flags,
        echo=flags,
    ),
    st.builds(
        Transfer,
        handle=numbers,
        delivery_id=maybe,
        delivery_tag=st.none() | st.binary(max_size=20),
        message_format=maybe,
        settled=st.none() | flags,
        more=flags,
        aborted=flags,
        state=st.none() | st.just(Accepted()),
    ),
    st.builds(Disposition, role=flags, first=numbers, last=maybe, settled=flags, state=st.just(Accepted())),
    st.builds(Detach, handle=numbers, closed=flags),
    st.builds(End),
    st.builds(Close),
    st.builds(SaslInit, mechanism=st.sampled_from(["ANONYMOUS", "PLAIN"])),
    st.builds(SaslMechanisms, sasl_server_mechanisms=st.just(["ANONYMOUS"])),
    st.builds(SaslOutcome, code=st.integers(0, 4)),
)


@st.composite
def good_frames(draw: Any) -> bytes:
    payload = draw(st.binary(max_size=40))
    kind = draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
    return encode_frame(draw(channels), draw(performatives).encode() + payload, kind)


@st.composite
def spoiled_frames(draw: Any) -> bytes:
    frame = bytearray(draw(good_frames()))
    for _ in range(draw(st.integers(1, 3))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame)


value_frames = st.builds(lambda channel, value: encode_frame(channel, encode_value(value)), channels, values)
frame_headers = st.builds(FRAME_HEADER.pack, numbers, st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535))
pieces = st.one_of(
    good_frames(),
    good_frames(),
    spoiled_frames(),
    value_frames,
    frame_headers,
    st.just(AMQP_HEADER),
    st.just(SASL_HEADER),
    st.binary(max_size=30),
)
streams = st.lists(pieces, max_size=25).map(b"".join)


def owner(engine: Connection, events: list[Any]) -> None:
    """React to events as an owner does, without checking the states of links."""
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
    """Check that the output has only headers and complete frames, and nothing after a close."""
    at = 0
    while at < len(data):
        if data[at : at + 4] == b"AMQP":
            at += 8
            continue
        size, doff, _, _ = FRAME_HEADER.unpack_from(data, at)
        assert doff == 2
        assert 8 <= size <= len(data) - at
        at += size
        if data[at - size + 8 : at - size + 11] == b"\x00\x53\x18":
            assert at == len(data)


def feed(engine: Connection, data: bytes, chunk: int) -> None:
    output = b""
    for at in range(0, len(data), chunk):
        owner(engine, engine.receive(data[at : at + chunk]))
        output += b"".join(engine.take_output())
    owner(engine, engine.tick(1e9))
    owner(engine, engine.tick(2e9))
    output += b"".join(engine.take_output())
    check_output(output)


@settings(max_examples=150, deadline=None)
@given(data=streams | st.binary(max_size=300), chunk=st.sampled_from([1, 7, 100_000]), with_sasl=flags)
def test_a_server_survives_any_bytes_from_the_start(data: bytes, chunk: int, with_sasl: bool) -> None:
    sasl = SaslServer(["ANONYMOUS"], lambda *_: "anyone") if with_sasl else None
    feed(Connection(Settings(container_id="s"), sasl, is_server=True), data, chunk)


@settings(max_examples=150, deadline=None)
@given(data=streams | st.binary(max_size=300), chunk=st.sampled_from([1, 7, 100_000]), with_sasl=flags)
def test_a_client_survives_any_bytes_from_the_start(data: bytes, chunk: int, with_sasl: bool) -> None:
    engine = Connection(Settings(container_id="c"), SaslClient() if with_sasl else None, is_server=False)
    engine.connect()
    feed(engine, data, chunk)


@settings(max_examples=400, deadline=None)
@given(data=streams, chunk=st.sampled_from([1, 7, 100_000]))
def test_a_server_survives_any_frames_on_open_links(data: bytes, chunk: int) -> None:
    peer = Peer()
    peer.begin()
    peer.attach(0, name="in")
    sender = peer.attach(1, role=True, name="out")
    peer.flow(handle=1, delivery_count=0, link_credit=10)
    assert isinstance(sender, Sender)
    for number in range(5):
        sender.send(b"%d" % number, [b"x"])
    peer.engine.take_output()
    feed(peer.engine, data, chunk)


@settings(max_examples=150, deadline=None)
@given(data=streams, chunk=st.sampled_from([1, 7, 100_000]))
def test_a_client_survives_any_frames_on_an_open_connection(data: bytes, chunk: int) -> None:
    peer = Peer(is_server=False)
    session = peer.engine.begin()
    peer.send(0, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=10, outgoing_window=10))
    for link in (session.sender("a"), session.receiver("b")):
        link.attach(Attach(name=link.name, handle=link.handle, role=not link.is_sender))
    peer.engine.take_output()
    feed(peer.engine, data, chunk)
