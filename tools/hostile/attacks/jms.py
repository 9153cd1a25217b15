"""JMS: temporary entities, anonymous links, and client ids."""

from __future__ import annotations

import time
from typing import Final

from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Flow,
    Open,
    Rejected,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
)
from peeklock.limits.broker import MAX_TEMPORARY_OF_CONNECTION, MAX_TEMPORARY_OF_RULE
from tools.hostile.attack import attack, require
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    BEGIN,
    CLOSE,
    KEPT,
    KEY,
    LISTENER,
    OTHER,
    OTHERS,
    QUEUE,
    ROOT,
    TOPIC,
    Victim,
    message,
    outcomes,
    receiver,
    sender,
    transfer,
)

SOLE: Final = "sole-connection-for-container"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
NOT_ALLOWED: Final = "amqp:not-allowed"


def _as(victim: Victim, name: str, key: str, **fields: object) -> Line:
    """Return a connection that is logged in with this rule, with a session on channel 0."""
    line = victim.dial()
    response = f"\0{name}\0{key}".encode()
    line.send(SASL_HEADER, frame(SaslInit(mechanism="PLAIN", initial_response=response), kind=SASL_FRAME))
    require(line.expect(SaslOutcome).code == 0, f"the broker does not let '{name}' in")
    line.send(AMQP_HEADER, frame(Open(**{"container_id": "hostile", **fields})))  # type: ignore[arg-type]
    line.expect(Open)
    line.send(frame(BEGIN))
    line.expect(Begin)
    return line


def _dynamic(handle: int) -> bytes:
    target = Target(dynamic=True, capabilities=["temporary-queue"])
    return frame(Attach(name=f"t{handle}", handle=handle, role=False, initial_delivery_count=0, target=target))


def _granted(line: Line, count: int) -> int:
    """Return how many of the attaches are answered with a target or a source."""
    granted = answered = 0
    for performative in line.frames():
        if isinstance(performative, Attach):
            granted += (performative.source if performative.role is False else performative.target) is not None
            answered += 1
        if answered == count:
            break
    return granted


def _own_queue(line: Line, handle: int = 0) -> str:
    """Create a temporary queue; returns its name."""
    line.send(_dynamic(handle))
    target = line.expect(Attach).target
    require(isinstance(target, Target) and target.address, "no temporary queue was made")
    assert isinstance(target, Target)
    assert target.address is not None
    line.expect(Flow)
    return target.address


def _addressed(to: str | None) -> bytes:
    return Message(properties=Properties(to=to), data=[b"hostile"]).encode()


@attack(
    answer="creates 200 for a connection and 1000 for a rule, refuses more, and deletes all with the connections",
    log="temporary entities; no more are allowed",
)
def temporary_queues_without_end(victim: Victim) -> None:
    """300 temporary queues on each of eight connections, which are then reset."""
    lines = [victim.begun() for _ in range(8)]
    granted = []
    for line in lines:
        line.send(b"".join(_dynamic(handle) for handle in range(300)))
        granted.append(_granted(line, 300))
    require(max(granted) == MAX_TEMPORARY_OF_CONNECTION, f"one connection got {max(granted)} temporary queues")
    require(sum(granted) == MAX_TEMPORARY_OF_RULE, f"one rule got {sum(granted)} temporary queues")
    for line in lines:
        line.reset()
    _freed(victim)


def _freed(victim: Victim) -> None:
    """Wait until the temporary entities of a closed connection are deleted, so that others can be created."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with victim.begun() as line:
            line.send(b"".join(_dynamic(handle) for handle in range(MAX_TEMPORARY_OF_CONNECTION)))
            if _granted(line, MAX_TEMPORARY_OF_CONNECTION) == MAX_TEMPORARY_OF_CONNECTION:
                return
            line.send(CLOSE)
            line.answer()
        time.sleep(0.2)
    require(False, "the temporary queues of closed connections still count")


@attack(
    answer="creates 200 subscriptions, refuses more, and deletes all with the connection",
    log="temporary entities; no more are allowed",
)
def consumers_of_a_topic_without_end(victim: Victim) -> None:
    """300 consumers of a topic, each with its own subscription, and messages to all of them."""
    with victim.begun() as line:
        source = Source(address=TOPIC, capabilities=["topic"])
        attaches = [Attach(name=f"c{each}", handle=each, role=True, source=source) for each in range(300)]
        line.send(b"".join(map(frame, attaches)))
        granted = _granted(line, 300)
        require(granted == MAX_TEMPORARY_OF_CONNECTION, f"one connection got {granted} subscriptions")
    with victim.sending(TOPIC) as line:
        line.send(*[transfer(number, message(b"x" * 1000)) for number in range(50)])
        require(all(isinstance(each, Accepted) for each in outcomes(line, 50)), "the topic accepts no messages")
    _freed(victim)


@attack(answer="refuses with `amqp:not-allowed`; only its own connection receives from it", log="link refused")
def temporary_queues_of_another(victim: Victim) -> None:
    """Links with every right to the temporary queue of another connection, in several spellings."""
    with victim.begun() as owner, victim.begun() as line:
        name = _own_queue(owner)
        spellings = (name, name.upper(), f"/{name}/", f"amqps://x/{name}", name.replace("-", "%2D"))
        addresses = [*spellings, f"{name}/$DeadLetterQueue", f"{name}/$Transfer/$DeadLetterQueue"]
        for handle, address in enumerate(addresses):
            line.send(frame(receiver(address, handle)))
            line.expect_refusal(NOT_ALLOWED)
        line.send(frame(sender(f"{name}/$management", 100)))
        line.expect_refusal(NOT_ALLOWED)
        status, _ = victim.ask(victim.request("GET", f"/{name}?api-version=2021-05"))
        require(status == 404, f"administration answered {status} for a temporary queue")
        line.send(frame(sender(name, 200)))
        line.expect(Flow)


@attack(answer="rejects each message without a right to its entity, and accepts the others", log="link attached")
def relaying_without_rights(victim: Victim) -> None:
    """Messages on an anonymous link, to entities without a right, to missing entities, and to invalid addresses."""
    victim.drain(OTHER)
    destinations = [QUEUE, KEPT, TOPIC, "nowhere", "$cbs", f"{OTHER}/$management", f"{OTHER}/../{KEPT}", "", None]
    with _as(victim, OTHERS, OTHERS) as line:
        attach = sender()
        attach.target = Target()
        line.send(frame(attach))
        line.expect(Flow)
        sent = [to for each in destinations for to in (each, OTHER)]
        line.send(*[transfer(number, _addressed(to)) for number, to in enumerate(sent)])
        for to, outcome in zip(sent, outcomes(line, len(sent)), strict=True):
            require(
                isinstance(outcome, Accepted if to == OTHER else Rejected),
                f"a message to '{to}' was answered with {type(outcome).__name__}",
            )
        line.send(CLOSE)
        line.answer()
    found = victim.drain(OTHER)
    require(found == len(destinations), f"of {len(destinations)} messages {found} arrived")


@attack(answer="refuses the links", log=UNAUTHORIZED)
def a_relay_for_listeners(victim: Victim) -> None:
    """Anonymous links on connections without the right to send to any entity."""
    with _as(victim, LISTENER, LISTENER) as line, victim.unauthenticated_session() as unauthenticated:
        for each in (line, unauthenticated):
            attach = sender()
            attach.target = None
            each.send(frame(attach))
            each.expect_refusal(UNAUTHORIZED)


@attack(answer="keeps client ids of different keys apart", log="connection opened")
def client_ids_of_others(victim: Victim) -> None:
    """Connections with other keys, or none, that use another client's id and its durable subscription."""
    with _as(victim, ROOT, KEY, container_id="precious", desired_capabilities=[SOLE]) as owner:
        capabilities = ["topic"]
        source = Source(address=TOPIC, durable=2, expiry_policy="never", capabilities=capabilities)
        owner.send(frame(Attach(name="mine", handle=0, role=True, source=source)))
        require(owner.expect(Attach).source is not None, "the owner has no durable subscription")
        owner.send(frame(Detach(handle=0, closed=False)))
        owner.expect(Detach)
        for name in (OTHERS, LISTENER):
            with _as(victim, name, name, container_id="precious", desired_capabilities=[SOLE]) as line:
                line.send(frame(Attach(name="mine", handle=0, role=True)))
                line.expect_refusal("amqp:not-found" if name == OTHERS else UNAUTHORIZED)
        victim.unauthenticated(container_id="precious", desired_capabilities=[SOLE]).close()
        with victim.opened(container_id="precious", desired_capabilities=[SOLE]) as second:
            condition = second.close_condition()
            require(condition == "amqp:invalid-field", f"a second connection of the client got {condition}")
        owner.send(frame(Attach(name="mine", handle=1, role=True)))
        require(owner.expect(Attach).source is not None, "the owner's subscription was deleted")
        owner.send(frame(Detach(handle=1, closed=True)), CLOSE)
        owner.answer()
