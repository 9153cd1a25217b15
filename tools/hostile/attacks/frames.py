"""Frames and values: malformed input after login."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from peeklock.amqp.frames import FRAME_HEADER, encode_frame
from peeklock.amqp.performatives import Accepted, Attach, Begin, Detach, Disposition, End, Flow, Rejected
from tools.hostile import values
from tools.hostile.attack import attack, require
from tools.hostile.lines import frame
from tools.hostile.victim import BEGIN, CLOSE, KEPT, QUEUE, Victim, credit, message, receiver, sender, transfer

MUTANTS: Final = 1500
SEED: Final = 20240501
ATTACH: Final = 0x12


@attack(answer="closes with `amqp:decode-error` or `amqp:not-allowed`", log="amqp:decode-error|amqp:not-allowed")
def unknown_descriptors(victim: Victim) -> None:
    """Performatives and termini with unknown descriptors: numbers, symbols, strings, lists."""
    unknown = [
        b"\x00\x80\x00\x00\x00\x00\x00\x00\xff\xff\x45",
        b"\x00" + values.symbol(b"evil:performative:list") + b"\x45",
        b"\x00" + values.string(b"text") + b"\x45",
        b"\x00" + values.listed(values.NULL) + b"\x45",
        b"\x00\x40\x45",
        b"\x00\x53\x12\x40",
        b"\x00\x53\x12" + values.mapped(),
        values.described(ATTACH, values.string(b"x"), b"\x43", b"\x41", *[values.NULL] * 2, values.described(0x99)),
    ]
    for body in unknown:
        with victim.begun() as line:
            line.send(encode_frame(0, body))
            require(line.close_condition() is not None, f"the frame {body[:20].hex()} was accepted")


@attack(answer="closes, or rejects the message, with `amqp:decode-error`", log="amqp:decode-error")
def invalid_utf8(victim: Victim) -> None:
    """Names, addresses, symbols and properties that are not UTF-8: random bytes, surrogates and overlong forms."""
    for text in (b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"):
        with victim.begun() as line:
            line.send(encode_frame(0, values.described(ATTACH, values.string(text), b"\x43", b"\x41")))
            require(line.close_condition() == "amqp:decode-error", f"the name {text!r} was accepted")
    with victim.begun() as line:
        line.send(encode_frame(0, values.described(ATTACH, values.symbol("ü".encode()), b"\x43", b"\x41")))
        require(line.close_condition() is not None, "a symbol that is not ASCII was accepted")
    with victim.sending() as line:
        line.send(transfer(0, values.described(0x73, values.string(b"\xff")) + message()))
        answer = line.expect(Disposition)
        require(isinstance(answer.state, Rejected), "a message with an id that is not UTF-8 was accepted")


@attack(
    answer="handles all frames up to the close, in pieces of any size; discards incomplete ones",
    log="connection (closed|opened)",
)
def cut_frames(victim: Victim) -> None:
    """Frames sent byte by byte, several at once, and connections that break at every byte of a frame."""
    whole = frame(BEGIN) + frame(sender()) + transfer(0, message(), settled=True) + CLOSE
    with victim.opened() as line:
        for at in range(len(whole)):
            line.send(whole[at : at + 1])
        line.answer()
    for at in range(1, len(whole), 7):
        line = victim.opened()
        line.send(whole[:at])
        line.reset()


def _mutants() -> Iterator[bytes]:
    """Yield valid frames with changed, inserted, removed and repeated bytes, from a fixed seed."""
    chance = random.Random(SEED)
    originals = [
        frame(BEGIN, channel=1),
        frame(sender(handle=1)),
        frame(receiver(handle=2)),
        credit(10, handle=2),
        transfer(0, message()),
        transfer(1, message(b"x" * 300), more=True),
        frame(Disposition(role=True, first=0, last=5, settled=True, state=Accepted())),
        frame(Detach(handle=0, closed=True)),
        frame(End()),
        frame(Flow(incoming_window=5, next_outgoing_id=0, outgoing_window=5, echo=True)),
    ]
    for _ in range(MUTANTS):
        body = bytearray(chance.choice(originals)[8:])
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(body))
            match chance.randrange(4):
                case 0:
                    body[at] = chance.randrange(256)
                case 1:
                    body[at:at] = chance.randbytes(chance.randint(1, 8))
                case 2:
                    del body[at : at + chance.randint(1, 4)]
                    body = body or bytearray(b"\x40")
                case _:
                    body[at] = chance.choice([0, 0x40, 0x45, 0x7F, 0x80, 0xC0, 0xD0, 0xF0, 0xFF])
        yield FRAME_HEADER.pack(8 + len(body), 2, 0, chance.choice([0, 0, 0, 1])) + bytes(body)


@attack(answer="ends the link, the session or the connection to which a frame belongs, with the reason", log="amqp:")
def mutated_frames(victim: Victim) -> None:
    """1500 valid frames with some bytes changed, on connections with a session and a link."""
    line = None
    for number, mutant in enumerate(_mutants()):
        if line is None:
            line = victim.sending()
        # An accepted message must not prevent the check of the next one.
        if not line.send(mutant) or number % 10 == 9:
            line.send(CLOSE)
            line.answer()
            line.close()
            line = None
    if line is not None:
        line.close()


@attack(answer="ends the session or closes the connection", log="amqp:(decode-error|invalid-field|not-allowed)")
def fields_of_wrong_types(victim: Victim) -> None:
    """Attaches whose fields are missing, null, of wrong types, or out of range."""
    name, handle, role = values.string(b"x"), b"\x43", b"\x41"
    for fields in (
        (),
        (values.NULL, handle, role),
        (name, values.NULL, role),
        (name, handle, values.NULL),
        (name, values.string(b"0"), role),
        (handle, handle, role),
        (name, handle, role, b"\x50\x07"),
        (name, handle, role, values.NULL, b"\x50\xff"),
        (name, handle, role, values.NULL, values.NULL, name),
        (name, handle, role, *[values.NULL] * 20),
        (name, b"\x80" + b"\xff" * 8, role),
    ):
        with victim.begun() as line:
            line.send(encode_frame(0, values.described(ATTACH, *fields)))
            require(line.close_condition() is not None, f"an attach with the fields {fields} was accepted")


@attack(answer="refuses the link, with the reason", log="link refused|amqp:")
def strange_addresses(victim: Victim) -> None:
    """Links to addresses with `..`, control characters or 100,000 characters, and to nodes of other clients."""
    with victim.begun() as line:
        for handle, address in enumerate(
            (
                "../" + QUEUE,
                f"{QUEUE}/../{KEPT}",
                f"{QUEUE}/%2e%2e/{KEPT}",
                "%00",
                "\x00\x1b[31m\n2026-01-01T00:00:00.000Z INFO peeklock.server forged peer=127.0.0.2",
                "a" * 100_000,
                "/" * 1000,
                "$namespaceinfo",
                "$coordinator",
                f"{QUEUE}/$deadletterqueue/$deadletterqueue",
                f"{QUEUE}/Subscriptions/all",
                "sb://elsewhere/nowhere",
                "\ud7ff\U0010ffff",
            )
        ):
            line.send(frame(receiver(address, handle)))
            require(line.expect(Attach).source is None, f"the address {address[:60]!r} was accepted")
            line.expect(Detach)
        line.send(frame(BEGIN, 1))
        line.expect(Begin)
