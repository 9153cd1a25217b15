"""Browsing and selectors: clients that browse repeatedly, or with expensive selectors."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Final

from peeklock.amqp.message import Message
from peeklock.amqp.performatives import Accepted, Attach, Detach, Disposition, Transfer
from peeklock.amqp.types import Described, Symbol
from tools.hostile.attack import attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import CLOSE, OTHER, QUEUE, Victim, credit, message, outcomes, receiver, transfer

MESSAGES: Final = 100
LINKS: Final = 500
CONNECTIONS: Final = 10
ROUNDS: Final = 5
SECONDS: Final = 1.5
"""Seconds that a round of another client may take during an attack."""
SELECTOR: Final = Symbol("apache.org:selector-filter:string")


def _filled(victim: Victim, text: str) -> None:
    """Fill the queue with messages that have this text in their properties."""
    encoded = Message(application_properties={"a": text}, data=[b"x"]).encode()
    with victim.sending() as line:
        for first in range(0, MESSAGES, 20):
            line.send(*[transfer(number, encoded) for number in range(first, first + 20)])
        require(all(isinstance(each, Accepted) for each in outcomes(line, MESSAGES)), "the queue could not be filled")
        line.send(CLOSE)
        line.answer()


def _looking(
    handle: int, *, browses: bool, selector: str | None = None, name: str = "looks", address: str = QUEUE
) -> bytes:
    attach: Any = receiver(address, handle, name)
    if browses:
        attach.source.distribution_mode = "copy"
    if selector is not None:
        attach.source.filter = {SELECTOR: Described(SELECTOR, selector)}
    return frame(attach)


def _require_others_served(victim: Victim) -> None:
    """Check that a client of another queue can send, receive and complete in acceptable time."""
    with victim.begun() as line:
        line.send(frame(receiver(OTHER, 1, "takes")))
        line.expect(Attach)
        with victim.sending(OTHER) as sender:
            best = min(_round(line, sender, number) for number in range(ROUNDS))
            sender.send(CLOSE)
            sender.answer()
        line.send(CLOSE)
        line.answer()
    require(best < SECONDS, f"a client of another queue was served in {best:.2f} s at best")


def _round(receives: Line, sends: Line, number: int) -> float:
    before = time.monotonic()
    sends.send(transfer(number, message()))
    receives.send(credit(1, handle=1, delivery_count=number))
    receives.expect(Transfer)
    receives.send(frame(Disposition(role=True, first=number, settled=True, state=Accepted())))
    require(isinstance(sends.expect(Disposition).state, Accepted), "a message was not accepted")
    return time.monotonic() - before


def _all_are_left(victim: Victim) -> None:
    count = victim.drain()
    require(count == MESSAGES, f"of {MESSAGES} browsed messages {count} are left")


@attack(answer="evaluates them in short turns with pauses; other clients are served", log="connection closed")
def expensive_selectors(victim: Victim) -> None:
    """50 receivers and browsers with selectors of the maximum length, on a queue of texts that almost match."""
    _filled(victim, "a" * 30_000)
    with victim.begun() as line:
        for handle in range(50):
            text = " OR ".join(f"a LIKE '%a_b{handle}{part}%'" for part in range(30))
            line.send(_looking(handle, browses=handle % 2 == 0, selector=text))
            line.expect(Attach)
        line.send(*[credit(1000, handle=handle) for handle in range(50)])
        _require_others_served(victim)
        line.send(CLOSE)
        line.answer()
    _all_are_left(victim)


@attack(
    answer="`amqp:invalid-field` with the position of the mistake; the connection stays open",
    log="link refused.*invalid-field",
)
def invalid_selectors(victim: Victim) -> None:
    """Selectors that are deeply nested, too long, of another language or of another type."""
    wrong: list[Any] = [
        "(" * 500 + "a = 1" + ")" * 500,
        "NOT " * 250 + "a",
        "(" * 30 + "a" + " BETWEEN 1 AND 2)" * 30 + " = 1",
        "a = 1 OR " * 5000 + "a = 1",
        "a = '",
        "'; DROP TABLE messages; --",
        "a = " + "9" * 400,
        "__import__('os').system('true')",
        7,
        [],
        {"a": 1},
    ]
    with victim.begun() as line:
        for handle, selector in enumerate(wrong):
            line.send(_looking(handle, browses=handle % 2 == 0, selector=selector))
            line.expect(Detach)
            line.send(frame(Detach(handle=handle, closed=True)))
        line.send(CLOSE)
        line.answer()


@attack(answer="reads no messages for them", log="connection closed")
def browsers_without_credit(victim: Victim) -> None:
    """500 browsing links without credit, while messages arrive."""
    _filled(victim, "a" * 1000)
    with victim.begun() as line:
        line.send(*[_looking(handle, browses=True) for handle in range(LINKS)])
        for _ in range(LINKS):
            line.expect(Attach)
        _require_others_served(victim)
        line.send(CLOSE)
        line.answer()
    _all_are_left(victim)


@attack(answer="reads for one of them at a time", log="connection closed")
def browsers_at_the_end(victim: Victim) -> None:
    """500 browsing links with credit at the end of a queue that other clients use."""
    with victim.begun() as line:
        for handle in range(LINKS):
            line.send(_looking(handle, browses=True, address=OTHER))
            line.expect(Attach)
        line.send(*[credit(1000, handle=handle) for handle in range(LINKS)])
        _require_others_served(victim)
        line.send(CLOSE)
        line.answer()


@attack(
    answer="holds one page for each link, counts its memory, and sends as fast as the client reads", log="connection"
)
def browsers_that_do_not_read(victim: Victim) -> None:
    """500 browsing links with maximum credit on 10 connections that do not read."""
    _filled(victim, "a" * 30_000)
    with ExitStack() as stack:
        for number in range(CONNECTIONS):
            line = stack.enter_context(victim.begun(receive_buffer=4096))
            for handle in range(LINKS // CONNECTIONS):
                line.send(_looking(handle, browses=True, name=f"idle-{number}"))
                line.expect(Attach)
            line.send(*[credit(1_000_000, handle=handle) for handle in range(LINKS // CONNECTIONS)])
        _require_others_served(victim)
    _all_are_left(victim)


@attack(answer="sends the queue again each time, by pages", log="connection closed")
def browsing_again_and_again(victim: Victim) -> None:
    """A link that browses the whole queue and drains, attached and detached 50 times."""
    _filled(victim, "a" * 1000)
    with victim.begun() as line:
        for number in range(50):
            line.send(_looking(0, browses=True, name=f"again-{number}"))
            line.expect(Attach)
            line.send(credit(MESSAGES + 1, drain=True, next_incoming_id=number * MESSAGES))
            for _ in range(MESSAGES):
                line.expect(Transfer)
            line.send(frame(Detach(handle=0, closed=True)))
            line.expect(Detach)
        line.send(CLOSE)
        line.answer()
    _all_are_left(victim)
