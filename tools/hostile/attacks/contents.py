"""Contents of messages: values of the wrong type, beyond what can be stored, or that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import Accepted, Disposition, Rejected, Transfer
from tools.hostile.attack import attack, require
from tools.hostile.extremes import VALUES, listed, mapped, string, symbol
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    CLOSE,
    FORWARDED,
    FORWARDING,
    HOST,
    OTHER,
    Transacting,
    Victim,
    credit,
    message,
    outcomes,
    receiver,
    transfer,
)

NULL: Final = b"\x40"
INNOCENT: Final = 20
"""Messages of another client that are sent for each place."""


def _header(index: int) -> Callable[[bytes], bytes]:
    return lambda value: b"\x00\x53\x70" + listed(*[NULL] * index, value) + message()


def _annotation(name: str) -> Callable[[bytes], bytes]:
    return lambda value: b"\x00\x53\x72" + mapped(symbol(name), value) + message()


def _property(index: int) -> Callable[[bytes], bytes]:
    return lambda value: b"\x00\x53\x73" + listed(*[NULL] * index, value) + b"\x00\x53\x75\xa0\x00"


PLACES: Final[tuple[Callable[[bytes], bytes], ...]] = (
    *map(_header, range(5)),
    *map(_property, range(13)),
    *map(_annotation, ("x-opt-scheduled-enqueue-time", "x-opt-partition-key", "x-opt-via-partition-key", "x-other")),
    lambda value: b"\x00\x53\x72" + mapped(value, NULL) + message(),
    lambda value: b"\x00\x53\x74" + mapped(string("p"), value) + message(),
    lambda value: b"\x00\x53\x74" + mapped(value, NULL) + message(),
)
"""The places in a message that the broker decodes."""


def _are_answered(line: Line, messages: list[bytes]) -> None:
    line.send(*[transfer(number, each) for number, each in enumerate(messages)])
    for number, outcome in enumerate(outcomes(line, len(messages))):
        error = outcome.error if isinstance(outcome, Rejected) else None
        told = isinstance(outcome, Accepted) or (error is not None and error.condition != "amqp:internal-error")
        require(told, f"message {number} was answered with {outcome}")


@attack(answer="accepts or rejects each; other clients and `/health` are not affected", log="connection closed")
def values_of_every_type(victim: Victim) -> None:
    """Every decoded field with extreme values of every type, while another client sends to another queue."""
    ask = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()
    with victim.sending(FORWARDING) as line, victim.sending(OTHER) as innocent:
        for place in PLACES:
            innocent.send(*[transfer(number, message()) for number in range(INNOCENT)])
            _are_answered(line, [place(value) for value in VALUES.values()])
            taken = outcomes(innocent, INNOCENT)
            refused = [outcome for outcome in taken if not isinstance(outcome, Accepted)]
            require(not refused, f"a message of another client was answered with {refused[:1]}")
            status, body = victim.ask(ask)
            require(status == 200, f"/health answered {status}: {body!r}")
        for each in (line, innocent):
            each.send(CLOSE)
            each.answer()
    victim.drain(OTHER)
    victim.drain(FORWARDED)


@attack(answer="forwards the valid messages, and dead-letters the others", log="connection closed")
def values_in_front_of_others(victim: Victim) -> None:
    """Undecodable annotations, in a queue that forwards to one that detects duplicates by partition."""
    victim.drain(FORWARDED)
    names = ("x-opt-via-partition-key", "x-other")
    odd = [_annotation(name)(value) for name in names for value in VALUES.values()]
    with victim.sending(FORWARDING) as line:
        _are_answered(line, odd)
        line.send(CLOSE)
        line.answer()
    victim.drain(FORWARDED)
    with victim.sending(FORWARDING) as line:
        line.send(transfer(0, message(b"behind them")))
        require(isinstance(outcomes(line, 1)[0], Accepted), "the message after them was not accepted")
        line.send(CLOSE)
        line.answer()
    with victim.begun() as line:
        attach = receiver(FORWARDED)
        attach.snd_settle_mode = 1  # receive-and-delete
        line.send(frame(attach), credit(10_000))
        while b"behind them" not in line.payload:
            line.expect(Transfer)
        line.send(CLOSE)
        line.answer()


@attack(answer="stores one of the two; the commit may fail and must then be repeated", log="connection closed")
def an_id_that_comes_twice_at_once(victim: Victim) -> None:
    """One message id in a transaction and in a plain send, sent together with the commit, 50 times."""
    victim.drain(FORWARDED)
    transacting = Transacting(victim.sending(FORWARDED))
    line = transacting.line
    for number in range(50):
        twice = Message(properties=Properties(message_id=f"twice-{number}"), data=[b"x"]).encode()
        transaction = transacting.declare()
        require(transacting.send(transaction, twice), "a message in a transaction was refused")
        first = transacting.number
        commit, plain = transacting.discharge(transaction), transacting.plain(twice)
        line.send(*((commit, plain) if number % 2 else (plain, commit)))
        states: dict[int, object] = {}
        while len(states) < 2:
            disposition = line.expect(Disposition)
            states |= dict.fromkeys(
                range(disposition.first, (disposition.last or disposition.first) + 1), disposition.state
            )
        require(isinstance(states[first + 1], Accepted), f"the plain one was answered with {states[first + 1]}")
        refused = isinstance(states[first], Rejected) and not number % 2
        require(refused or isinstance(states[first], Accepted), f"the commit was answered with {states[first]}")
    line.send(CLOSE)
    line.answer()
    found = victim.drain(FORWARDED)
    require(found == 50, f"of 50 messages that were sent twice {found} are stored")
