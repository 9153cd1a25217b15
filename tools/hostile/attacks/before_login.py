"""Before login: attacks that need no key and no token."""

from __future__ import annotations

import os
from typing import Final

from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
from peeklock.amqp.performatives import Begin, Close, Open, SaslInit, SaslOutcome
from tools.hostile import values
from tools.hostile.attack import attack, require
from tools.hostile.lines import frame
from tools.hostile.victim import BEGIN, QUEUE, ROOT, Requests, Victim, receiver, sender, transfer

OPEN: Final = 0x10
AUTH: Final = 1
"""The outcome of a login that is refused (5.3.3.6)."""
DECODE_ERROR: Final = "amqp:decode-error"
FRAMING_ERROR: Final = "amqp:connection:framing-error"


def _open_with(properties: bytes) -> bytes:
    """Return the frame of an open with these encoded properties."""
    fields = [values.string(b"hostile"), *[values.NULL] * 8, properties]
    return encode_frame(0, values.described(OPEN, *fields))


def _refused_opens(victim: Victim, *properties: bytes) -> None:
    for each in properties:
        with victim.dial() as line:
            line.send(AMQP_HEADER, _open_with(each))
            condition = line.close_condition()
            require(condition == DECODE_ERROR, f"the open was answered with {condition}, not with {DECODE_ERROR}")


@attack(answer="refuses the open with `amqp:decode-error`; nothing is allocated", log=DECODE_ERROR)
def zero_width_arrays(victim: Victim) -> None:
    """Opens whose properties have an array of 2^32 - 1 elements that are encoded in zero bytes."""
    _refused_opens(victim, *[values.array(0xFFFFFFFF, constructor) for constructor in values.ZERO_WIDTH])


@attack(answer="counts the elements of all levels and refuses with `amqp:decode-error`", log=DECODE_ERROR)
def aggregate_expansion(victim: Victim) -> None:
    """Opens with nested arrays, each below the limit, that have millions of elements together."""
    many = [values.array(65536, b"\x40") for _ in range(60)]
    _refused_opens(victim, values.mapped(values.symbol(b"x"), values.expanding(9, 65536)), values.listed(*many))


@attack(answer="refuses below the 64th level with `amqp:decode-error`", log=DECODE_ERROR)
def deep_nesting(victim: Victim) -> None:
    """Opens with lists, maps, arrays and descriptors nested as deep as a frame has room for."""
    _refused_opens(
        victim,
        *[values.mapped(values.symbol(b"x"), values.nested(1000, kind)) for kind in ("list", "map", "array")],
        values.mapped(values.symbol(b"x"), values.nested(200_000, "described")),
    )


@attack(answer="refuses with `amqp:decode-error`", log=DECODE_ERROR)
def false_sizes(victim: Victim) -> None:
    """Opens with values that state more bytes or elements than follow, or fewer."""
    _refused_opens(
        victim,
        b"\xd1\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xd1\x00\x00\x00\x00\x00\x00\x00\x00",
        values.mapped(values.symbol(b"a"), count=2),
        values.mapped(values.symbol(b"a"), b"\xb0\xff\xff\xff\xff"),
        values.mapped(values.symbol(b"a"), values.NULL, values.symbol(b"a"), values.NULL),
        values.mapped(values.listed(), values.NULL),
        b"\x57",
    )


@attack(
    answer="refuses less than 512 bytes, which AMQP requires every peer to accept, with `amqp:invalid-field`",
    log="max-frame-size [0-9]+ is below 512",
)
def frame_size_limit_zero(victim: Victim) -> None:
    """Opens that allow the broker frames of 0, 1 and 511 bytes."""
    for size in (0, 1, 511):
        with victim.dial() as line:
            line.send(AMQP_HEADER, frame(Open(container_id="hostile", max_frame_size=size)))
            condition = line.close_condition()
            require(condition == "amqp:invalid-field", f"a frame size of {size} was answered with {condition}")


@attack(
    answer="treats 0 as no time-out; refuses 1 ms and 99 ms with `amqp:not-allowed`",
    log="idle-time-out of [0-9]+ ms is below 100",
)
def idle_time_outs_of_nothing(victim: Victim) -> None:
    """Opens with an idle time-out of 0 ms, 1 ms and 99 ms, which requires as many heartbeats from the broker."""
    for milliseconds in (1, 99):
        with victim.dial() as line:
            line.send(AMQP_HEADER, frame(Open(container_id="hostile", idle_time_out=milliseconds)))
            condition = line.close_condition()
            require(condition == "amqp:not-allowed", f"{milliseconds} ms were answered with {condition}")
    with victim.unauthenticated(idle_time_out=0) as line:
        line.send(frame(BEGIN))
        line.expect(Begin)


@attack(
    answer="sends its own AMQP header and closes the connection",
    log="the peer did not send an AMQP 1.0 protocol header",
)
def wrong_headers(victim: Victim) -> None:
    """Protocol headers of other versions and other protocols, and noise."""
    for header in (
        b"AMQP\x00\x00\x09\x01",  # 0-9-1
        b"AMQP\x01\x01\x00\x0a",  # 0-10
        b"AMQP\x00\x02\x00\x00",
        b"AMQP\x02\x01\x00\x00",  # the TLS of AMQP itself
        b"AMQP\x04\x01\x00\x00",
        b"amqp\x00\x01\x00\x00",
        b"\x00" * 64,
        b"\xff" * 64,
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"TRACE / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x10\x10\x00\x04MQTT\x04\x02\x00\x3c\x00\x00",
        b"CONNECT\naccept-version:1.2\n\n\x00",
        b"*1\r\n$4\r\nPING\r\n",
        os.urandom(4096).replace(b"\x16", b"\x00", 1),
    ):
        with victim.dial() as line:
            line.send(header)
            require(
                line.answer() == AMQP_HEADER, f"the header {header[:12]!r} was answered with {line.answer()[:40]!r}"
            )


@attack(answer="closes the connection without an answer", log="connection not established")
def broken_tls(victim: Victim) -> None:
    """TLS records that are truncated, of the wrong type, oversized, of SSL 3, or followed by random bytes."""
    for record in (
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x16\x03\x01\xff\xff" + b"\xee" * 70_000,
        b"\x16\x03\x00\x00\x2f\x01\x00\x00\x2b\x03\x00" + b"\x00" * 36 + b"\x02\x00\x0a\x01\x00",
        b"\x16\x03\x03\x00\x02\x02\x28" + os.urandom(1000),
    ):
        with victim.dial() as line:
            line.send(record)
            line.answer()


@attack(answer="closes with `amqp:connection:framing-error`", log=FRAMING_ERROR)
def tls_on_a_plain_connection(victim: Victim) -> None:
    """A TLS hello in place of a frame: after the header, after SASL, after the open."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(507)
    with victim.dial() as line:
        line.send(AMQP_HEADER, hello)
        require(line.close_condition() == FRAMING_ERROR, "TLS after the header was not refused")
    with victim.dial() as line:
        line.send(SASL_HEADER, hello)
        line.answer()
    with victim.opened() as line:
        line.send(hello)
        require(line.close_condition() == FRAMING_ERROR, "TLS after the open was not refused")


@attack(answer="closes with `amqp:connection:framing-error` as soon as the size is known", log=FRAMING_ERROR)
def impossible_frames(victim: Victim) -> None:
    """Frames of 4 GiB, of 0 to 7 bytes, with a wrong data offset, and of unknown types."""
    headers = [FRAME_HEADER.pack(size, 2, 0, 0) for size in (0xFFFFFFFF, 0x80000000, 262_145, *range(8))]
    headers += [FRAME_HEADER.pack(64, doff, 0, 0) for doff in (0, 1, 17, 255)]
    headers += [FRAME_HEADER.pack(64, 2, kind, 0) for kind in (1, 2, 128, 255)]
    for header in headers:
        with victim.dial() as line:
            line.send(AMQP_HEADER, header, b"\x00" * 56)
            condition = line.close_condition()
            require(condition == FRAMING_ERROR, f"the frame {header.hex()} was answered with {condition}")


def sasl(*frames: bytes) -> bytes:
    return SASL_HEADER + b"".join(encode_frame(0, each, SASL_FRAME) for each in frames)


def plain(response: bytes, mechanism: str = "PLAIN") -> bytes:
    return SaslInit(mechanism=mechanism, initial_response=response).encode()


def login_is_refused(victim: Victim, response: bytes) -> None:
    with victim.dial() as line:
        line.send(sasl(plain(response)))
        code = line.expect(SaslOutcome).code
        require(code == AUTH, f"a wrong key was answered with the outcome {code}")
        line.answer()


@attack(answer="answers with the outcome `auth` and closes the connection", log="SASL refused")
def wrong_keys(victim: Victim) -> None:
    """SASL PLAIN with wrong keys, unknown names, too few and too many parts, and bytes that are not UTF-8."""
    for response in (
        f"\0{ROOT}\0wrong".encode(),
        f"\0{ROOT}\0".encode(),
        b"\0nobody\0SAS_KEY_VALUE",
        b"",
        b"\0" * 400,
        b"\0\xff\xfe\0\xc0\x80",
        b"no parts at all",
    ):
        login_is_refused(victim, response)


@attack(answer="closes the connection", log="connection closed")
def sasl_out_of_order(victim: Victim) -> None:
    """Unknown mechanisms, frames that only a server sends, a second SASL, an open in SASL, frames too large for it."""
    for said in (
        sasl(plain(b"", "SCRAM-SHA-256")),
        sasl(plain(b"", "EXTERNAL")),
        sasl(b"\x00\x53\x44\xc0\x03\x01\x50\x00"),
        sasl(Open(container_id="hostile").encode()),
        sasl(plain(b"x" * 600)),
        sasl(values.described(0x41, values.array(0xFFFFFFFF, b"\x40"))),
        sasl(plain(b"", "ANONYMOUS")) + SASL_HEADER,
        sasl(plain(b"", "ANONYMOUS"), plain(b"", "ANONYMOUS")),
        SASL_HEADER + AMQP_HEADER,
        SASL_HEADER + SASL_HEADER,
    ):
        with victim.dial() as line:
            line.send(said)
            line.answer()


@attack(
    answer="closes with `amqp:illegal-state`, `amqp:not-allowed` or, for other values, `amqp:decode-error`",
    log="amqp:illegal-state|amqp:not-allowed",
)
def frames_before_the_open(victim: Victim) -> None:
    """Begin, attach and transfer before an open, two opens, a close before an open, and values that are no
    performative.
    """
    opened = frame(Open(container_id="hostile"))
    for said, condition in (
        (frame(BEGIN), "amqp:illegal-state"),
        (frame(sender()), "amqp:illegal-state"),
        (transfer(0, b"x"), "amqp:illegal-state"),
        (opened + opened, "amqp:illegal-state"),
        (encode_frame(0, values.described(0x70)), "amqp:not-allowed"),
        (encode_frame(0, values.listed()), DECODE_ERROR),
        (encode_frame(0, b"\x00\x80\xff\xff\xff\xff\xff\xff\xff\xff\x45"), "amqp:not-allowed"),
        (frame(Close()), "amqp:illegal-state"),
    ):
        with victim.dial() as line:
            line.send(AMQP_HEADER, said)
            given = line.close_condition()
            require(given == condition, f"the frame {said[:20].hex()} was answered with {given}, not with {condition}")


@attack(answer="refuses each with the reason; `$cbs` beyond 32 links with a quota", log="link refused")
def links_without_a_token(victim: Victim) -> None:
    """Attaches to a queue, its dead-letter queue, `$management` and 40 times `$cbs`, without a token."""
    with victim.unauthenticated_session() as line:
        addresses = [QUEUE, f"{QUEUE}/$deadletterqueue", f"{QUEUE}/$management", "nowhere", "", "$cbs/../" + QUEUE]
        for handle, address in enumerate(addresses):
            line.send(frame(receiver(address, handle)))
            require(line.is_link_refused(), f"an unauthenticated client may receive from '{address}'")
        first = len(addresses)
        taken = 0
        for handle in range(first, first + 40):
            line.send(frame(receiver("$cbs", handle)))
            taken += not line.is_link_refused()
        require(taken == 32, f"an unauthenticated client got {taken} links")


@attack(answer="rejects messages that are no request or too large, and answers 4xx to the others", log="token refused")
def requests_without_a_token(victim: Victim) -> None:
    """Requests to `$cbs` with random bytes, oversized, with bombs, without an operation, or with wrong types."""
    with victim.unauthenticated_session() as line:
        requests = Requests(line, "$cbs")
        for payload in (
            b"",
            b"\x00",
            os.urandom(500),
            b"\x00\x53\x77" + values.array(0xFFFFFFFF, b"\x40"),
            b"\x00\x53\x74" + values.nested(2000, "map"),
            b"\x00\x53\x77" + values.binary(b"x" * 100_000),
        ):
            requests.post_bytes(payload)
        for properties, value in (
            ({}, None),
            ({"operation": "delete-token"}, "x"),
            ({"operation": 7}, "x"),
            ({"operation": "put-token"}, "x"),
            ({"operation": "put-token", "name": 7}, "x"),
            ({"operation": "put-token", "name": QUEUE}, {"a": ["map"]}),
            ({"operation": "put-token", "name": "x" * 10_000}, "SharedAccessSignature x"),
        ):
            status = requests.ask(properties, value)
            require(400 <= status < 500 or status == 501, f"the request {properties} was answered with {status}")
