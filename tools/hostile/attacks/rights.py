"""Rights: access to other clients' messages, and rights that have ended."""

from __future__ import annotations

import time
from typing import Any, Literal
from uuid import UUID

from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import Attach, Detach, Flow, Open, SaslInit, SaslOutcome, Transfer
from peeklock.amqp.types import Array, Int, Symbol, Timestamp
from peeklock.client import sas_token
from tools.hostile.attack import attack, require
from tools.hostile.attacks.requests import queue_entry
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    CLOSE,
    HOST,
    LISTENER,
    OTHER,
    OTHERS,
    QUEUE,
    SESSIONS,
    Requests,
    Victim,
    credit,
    message,
    outcomes,
    receiver,
    sender,
    transfer,
)

SESSION_FILTER = Symbol("com.microsoft:session-filter")
TRANSFER_DESTINATION = Symbol("com.microsoft:transfer-destination-address")
GUESSES = 20_000


def _received(line: Line, count: int) -> list[bytes]:
    """Return the delivery tags of the next messages."""
    found: list[bytes] = []
    while len(found) < count:
        tag = line.expect(Transfer).delivery_tag
        found += [] if tag is None else [tag]
    return found


def _neighbours(tag: bytes, count: int) -> list[UUID]:
    """Yield tokens near this one, in case a broker counts: in either half and byte order, up and down."""
    found: list[UUID] = []
    orders: tuple[Literal["big", "little"], ...] = ("big", "little")
    for step in range(1, count // 10 + 1):
        for both in (step, -step):
            # A count in the first half, and the sequence number in the second.
            halves = [(int.from_bytes(tag[at : at + 8]) + both) % (1 << 64) for at in (0, 8)]
            found.append(UUID(bytes_le=b"".join(half.to_bytes(8) for half in halves)))
        for at, end in ((0, 8), (8, 16)):
            for order in orders:
                number = int.from_bytes(tag[at:end], order)
                for near in (number + step, number - step):
                    part = (near % (1 << 64)).to_bytes(8, order)
                    found.append(UUID(bytes_le=tag[:at] + part + tag[end:]))
    return found


def _listener(victim: Victim, path: str) -> tuple[Line, Requests]:
    """Return a connection with the right Listen for the entity, and its requests."""
    line = victim.unauthenticated_session()
    token = sas_token(f"sb://{HOST}/{path}", LISTENER, LISTENER, time.time() + 3600)
    require(Requests(line, "$cbs").put_token(token, path) == 202, "the listener's token was refused")
    return line, Requests(line, f"{path}/$management", handles=(10, 11), window=1000)


@attack(answer="410: there are no such locks; the messages stay locked for their receiver", log="connection closed")
def guessed_lock_tokens(victim: Victim) -> None:
    """20,000 lock tokens near one of its own, to complete, renew and dead-letter another receiver's messages."""
    victim.drain()
    with victim.sending() as line:
        line.send(*(transfer(number, message()) for number in range(10)))
        outcomes(line, 10)
    with victim.receiving() as holder:
        holder.send(credit(9))
        _received(holder, 9)
        line, requests = _listener(victim, QUEUE)
        with line:
            line.send(frame(receiver(QUEUE, 20)), credit(1, handle=20))
            (own,) = _received(line, 1)
            guesses = _neighbours(own, GUESSES)
            for operation, more in (
                ("update-disposition", {"disposition-status": "completed"}),
                ("update-disposition", {"disposition-status": "suspended"}),
                ("renew-lock", {}),
            ):
                for first in range(0, len(guesses), 1000):
                    for tokens in (guesses[first : first + 1000], guesses[first : first + 1]):
                        body = {"lock-tokens": Array(tokens, UUID), **more}
                        status = requests.ask({"operation": f"com.microsoft:{operation}"}, body)
                        require(status == 410, f"a guessed lock token was answered with {status}")
            line.send(CLOSE)
            line.answer()
        holder.send(CLOSE)
        holder.answer()
    left = _left(victim, 10)
    require(left == 10, f"of 10 messages {left} are left")


def _left(victim: Victim, wanted: int) -> int:
    """Return the number of messages, after locks have expired."""
    count, deadline = 0, time.monotonic() + 30
    while count < wanted and time.monotonic() < deadline:
        count += victim.drain()
        time.sleep(0.5)
    return count


@attack(answer="410: the session is held by another receiver", log="connection closed")
def sessions_of_others(victim: Victim) -> None:
    """The lock tokens of another connection's session, with and without its id and the name of its link."""
    id = "held"
    with victim.sending(SESSIONS) as line:
        sent = Message(properties=Properties(group_id=id), data=[b"x"]).encode()
        line.send(transfer(0, sent))
        outcomes(line, 1)
    with victim.begun() as holder:
        holder.send(frame(receiver(SESSIONS, 0, "holder", {SESSION_FILTER: id})))
        holder.expect(Attach)
        holder.send(credit(1))
        (tag,) = _received(holder, 1)
        line, requests = _listener(victim, SESSIONS)
        with line:
            for named in ({}, {"session-id": id}):
                for link in ({}, {"associated-link-name": "holder-0"}):
                    for status in ("completed", "abandoned", "suspended", "defered"):
                        tokens = Array([UUID(bytes_le=tag)], UUID)
                        body = {"disposition-status": status, "lock-tokens": tokens, **named}
                        answered = requests.ask({"operation": "com.microsoft:update-disposition", **link}, body)
                        require(answered == 410, f"a message of another's session was {status}: {answered}")
            forever = Timestamp(253_402_300_799_999)
            others: tuple[tuple[str, dict[str, Any]], ...] = (
                ("renew-lock", {"lock-tokens": Array([UUID(bytes_le=tag)], UUID)}),
                ("renew-session-lock", {"session-id": id}),
                ("set-session-state", {"session-id": id, "session-state": b"stolen"}),
                ("batch-delete-messages", {"session-id": id, "message-count": Int(10), "enqueued-time-utc": forever}),
            )
            for operation, asked in others:
                answered = requests.ask({"operation": f"com.microsoft:{operation}"}, asked)
                require(answered == 410, f"{operation} in another's session was answered with {answered}")
            line.send(CLOSE)
            line.answer()
        own = Requests(holder, f"{SESSIONS}/$management", handles=(2, 3))
        body = {"disposition-status": "completed", "lock-tokens": Array([UUID(bytes_le=tag)], UUID)}
        answered = own.ask({"operation": "com.microsoft:update-disposition"}, body)
        require(answered == 200, f"the holder of the session was answered with {answered}")


@attack(answer="410: settles all messages of a list or, when a lock is lost, none", log="connection closed")
def a_lost_lock_among_others(victim: Victim) -> None:
    """Lists of ten lock tokens, one of them of a settled message, at each position, with every disposition."""
    victim.drain(OTHER)
    with victim.sending(OTHER) as line:
        line.send(*(transfer(number, message()) for number in range(10)))
        outcomes(line, 10)
    with victim.receiving(OTHER) as line:
        line.send(credit(10))
        lost, *held = [UUID(bytes_le=tag) for tag in _received(line, 10)]
        requests = Requests(line, f"{OTHER}/$management", handles=(1, 2))

        def settle(status: str, tokens: list[UUID]) -> int:
            body = {"disposition-status": status, "lock-tokens": Array(tokens, UUID)}
            return requests.ask({"operation": "com.microsoft:update-disposition"}, body)

        require(settle("completed", [lost]) == 200, "a message could not be completed")
        for place in range(10):
            for status in ("completed", "abandoned", "suspended", "defered"):
                answered = settle(status, [*held[:place], lost, *held[place:]])
                require(answered == 410, f"a list with a lost lock was {status}: {answered}")
        require(settle("completed", held) == 200, "a message of a list with a lost lock was settled")
        line.send(CLOSE)
        line.answer()
    require(victim.drain(OTHER) == 0, "a completed message is stored")


# --- rights that have ended ---

SHORT = "short-lived"


def _rules(*keys: str) -> str:
    """Return a description of the queue's rules, each named `owner` and with all rights."""
    rules = [
        "<AuthorizationRule><Rights><AccessRights>Manage</AccessRights><AccessRights>Send</AccessRights>"
        f"<AccessRights>Listen</AccessRights></Rights><KeyName>owner</KeyName><PrimaryKey>{key}</PrimaryKey>"
        "</AuthorizationRule>"
        for key in keys
    ]
    return f"<AuthorizationRules>{''.join(rules)}</AuthorizationRules>"


def _change(victim: Victim, method: str, *keys: str, **headers: str) -> None:
    path = f"/{SHORT}?api-version=2021-05"
    body = b"" if method == "DELETE" else queue_entry(_rules(*keys))
    status, _ = victim.ask(victim.request(method, path, body, Connection="close", **headers))
    require(status in (200, 201), f"{method} of a queue was answered with {status}")


def _owner(victim: Victim, key: str) -> tuple[Line, Requests]:
    """Return a connection with links to the queue (handles 10 and 11), by a token of the queue's own rule."""
    line = victim.unauthenticated_session()
    requests = Requests(line, "$cbs")
    require(_shown(requests, key) == 202, "the owner's token was refused")
    line.send(frame(sender(SHORT, 10)), frame(receiver(SHORT, 11)))
    line.expect(Flow)
    line.expect(Attach)
    return line, requests


def _shown(requests: Requests, key: str) -> int:
    return requests.put_token(sas_token(f"sb://{HOST}/{SHORT}", "owner", key, time.time() + 3600), SHORT)


def _is_refused(line: Line) -> None:
    """Return whether both links are refused."""
    for attach in (sender(SHORT, 12), receiver(SHORT, 13)):
        line.send(frame(attach))
        require(line.is_link_refused(), "a client without a right may attach")


@attack(
    answer="detaches the links and closes the connection of the login at once, with `amqp:unauthorized-access`",
    log="link detached.*rule 'owner' was changed or removed",
)
def links_after_their_rule(victim: Victim) -> None:
    """Links by token and a login by key that stay open while the key is replaced and the rule is removed."""
    _change(victim, "PUT", "first-key")
    for former, keys in (("first-key", ("second-key",)), ("second-key", ())):
        line, requests = _owner(victim, former)
        with line, victim.dial() as login:
            response = f"\0owner\0{former}".encode()
            login.send(SASL_HEADER, frame(SaslInit(mechanism="PLAIN", initial_response=response), kind=SASL_FRAME))
            require(login.expect(SaslOutcome).code == 0, "the owner may not log in")
            login.send(AMQP_HEADER, frame(Open(container_id="hostile")))
            login.expect(Open)
            _change(victim, "PUT", *keys, If_Match="*")
            for _ in range(2):
                line.expect_refusal("amqp:unauthorized-access")
            line.send(frame(Detach(handle=10, closed=True)), frame(Detach(handle=11, closed=True)))
            _is_refused(line)
            require(_shown(requests, former) == 401, "a token of a key that was replaced is accepted")
            found = login.close_condition()
            require(found == "amqp:unauthorized-access", f"the login by key was closed with {found}")
    _change(victim, "DELETE")


@attack(answer="refuses the links: the rights ended with the queue", log="link refused.*claim is required")
def claims_of_a_deleted_queue(victim: Victim) -> None:
    """Access rights to a queue that is then deleted and created again with the same name and key."""
    _change(victim, "PUT", "a-key")
    line, requests = _owner(victim, "a-key")
    with line:
        _change(victim, "DELETE")
        for _ in range(2):
            line.expect_refusal("amqp:not-found")
        line.send(frame(Detach(handle=10, closed=True)), frame(Detach(handle=11, closed=True)))
        _change(victim, "PUT", "a-key")
        _is_refused(line)
        require(_shown(requests, "a-key") == 202, "a new token for the new queue is refused")
    _change(victim, "DELETE")


@attack(
    answer="detaches the link with `amqp:unauthorized-access`; no message arrives",
    log="link detached.*rule 'owner' was changed or removed",
)
def a_destination_after_its_rule(victim: Victim) -> None:
    """A link through one queue to another whose rule is removed, while the right to the first one is valid."""
    _change(victim, "PUT", "a-key")
    line = victim.unauthenticated_session()
    with line:
        requests = Requests(line, "$cbs")
        through = sas_token(f"sb://{HOST}/{OTHER}", OTHERS, OTHERS, time.time() + 3600)
        require(requests.put_token(through, OTHER) == 202, "the token of the first queue was refused")
        attach = sender(OTHER, 10)
        attach.properties = {TRANSFER_DESTINATION: SHORT}
        line.send(frame(attach))
        require(line.is_link_refused(), "a client without a claim of the destination may attach")
        require(_shown(requests, "a-key") == 202, "the owner's token was refused")
        attach.handle = 11
        line.send(frame(attach))
        line.expect(Flow)
        _change(victim, "PUT", If_Match="*")
        line.send(transfer(0, message(), handle=11))
        line.expect_refusal("amqp:unauthorized-access")
    require(victim.drain(SHORT) == 0, "a message arrived without the right")
    _change(victim, "DELETE")
