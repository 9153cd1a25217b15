"""Flow and transfers: messages without credit, endless messages, and bombs."""

from __future__ import annotations

from uuid import UUID

from peeklock.amqp.codec import decode_value
from peeklock.amqp.frames import encode_frame
from peeklock.amqp.message import Message
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Coordinator,
    Declare,
    Declared,
    Disposition,
    Flow,
    Rejected,
    TransactionalState,
    Transfer,
)
from peeklock.amqp.types import Array, Int
from peeklock.client.batches import BATCH_FORMAT
from tools.hostile import values
from tools.hostile.attack import attack, require
from tools.hostile.lines import frame
from tools.hostile.victim import CLOSE, QUEUE, Requests, Victim, credit, message, outcomes, receiver, sender, transfer


@attack(
    answer="accepts them, because some SDKs ignore credit; each one gets its outcome, and none is lost",
    log="connection closed",
)
def transfers_without_credit(victim: Victim) -> None:
    """5000 messages on a link with credit for 2000, without waiting."""
    victim.drain()
    with victim.sending() as line:
        line.send(*[transfer(number, message()) for number in range(5000)])
        accepted = sum(isinstance(outcome, Accepted) for outcome in outcomes(line, 5000))
        line.send(CLOSE)
        line.answer()
    found = victim.drain()
    require(found == accepted, f"of {accepted} messages that were accepted {found} are there")


@attack(answer="answers each delivery by its id", log="connection closed")
def gaps_in_ids(victim: Victim) -> None:
    """Delivery ids that skip, decrease, wrap around and repeat, and a session that counts its transfers wrongly."""
    with victim.sending() as line:
        ids = [7, 3, 0xFFFFFFFF, 0, 0x80000000, 3, 3]
        line.send(*[frame(Transfer(handle=0, delivery_id=each, delivery_tag=b"t"), payload=message()) for each in ids])
        line.send(frame(Flow(next_incoming_id=5, incoming_window=9, next_outgoing_id=0xFFFFFFF0, outgoing_window=9)))
        seen: set[int] = set()
        while seen != set(ids):
            disposition = line.expect(Disposition)
            last = disposition.first if disposition.last is None else disposition.last
            seen |= {each for each in ids if disposition.first <= each <= last}
        line.send(CLOSE)
        line.answer()
    require(victim.drain() > 0, "nothing arrived")


@attack(
    answer="keeps no bytes beyond the limit, and rejects it with `message-size-exceeded` at its end",
    log="connection closed",
)
def bodies_beyond_the_limit(victim: Victim) -> None:
    """A message of 64 MiB in many frames on a link with a limit of 256 KiB."""
    part = b"x" * 65_000
    with victim.sending() as line:
        for _ in range(1000):
            line.send(transfer(0, part, more=True))
        line.send(transfer(0, part))
        (outcome,) = outcomes(line, 1)
        given = outcome.error.condition if isinstance(outcome, Rejected) and outcome.error is not None else outcome
        require(given == "amqp:link:message-size-exceeded", f"it was answered with {given}")
        line.send(CLOSE)
        line.answer()


@attack(answer="holds at most 128 MiB for a connection and detaches links that begin more", log="incomplete messages")
def incomplete_messages(victim: Victim) -> None:
    """1000 links with 250,000 bytes each of an incomplete message."""
    part = b"x" * 250_000
    with victim.begun() as line:
        for first in range(0, 1000, 50):
            line.send(*[frame(sender(handle=handle)) for handle in range(first, first + 50)])
            for _ in range(50):
                line.expect(Attach)
        for handle in range(1000):
            line.send(transfer(handle, part, handle=handle, more=True))
        line.expect_refusal("amqp:resource-limit-exceeded")


@attack(answer="uses no memory for frames without payload", log="connection closed")
def frames_without_payload(victim: Victim) -> None:
    """A message in 100,000 frames without payload, then its end."""
    nothing = frame(Transfer(handle=0, more=True))
    with victim.sending() as line:
        line.send(transfer(0, b"", more=True))
        for _ in range(100):
            line.send(nothing * 1000)
        line.send(transfer(0, message()))
        (outcome,) = outcomes(line, 1)
        require(isinstance(outcome, Accepted), f"the message was answered with {outcome}")
        line.send(CLOSE)
        line.answer()
    victim.drain()


@attack(
    answer="detaches the link with `amqp:invalid-field`; discards aborted messages",
    log="link detached.*invalid-field",
)
def interleaved_messages(victim: Victim) -> None:
    """A second message before the first is complete, transfers without id or tag, and aborted messages."""
    for said in (
        transfer(0, b"x", more=True) + transfer(1, b"x"),
        frame(Transfer(handle=0), payload=message()),
        frame(Transfer(handle=0, delivery_id=1), payload=message()),
    ):
        with victim.sending() as line:
            line.send(said)
            line.expect_refusal("amqp:invalid-field")
    with victim.sending() as line:
        for number in range(1000):
            line.send(transfer(number, b"x" * 1000, more=True), transfer(number, b"", aborted=True))
        line.send(transfer(0, message()))
        require(isinstance(outcomes(line, 1)[0], Accepted), "the message after the aborted ones was not accepted")
    victim.drain()


@attack(
    answer="rejects messages that it cannot decode; sections that it does not need are stored undecoded",
    log="connection closed",
)
def messages_that_are_bombs(victim: Victim) -> None:
    """Messages with bombs in headers, annotations, properties and bodies, with repeated sections, and truncated
    ones.
    """
    sealed = sealed_bombs()
    bombs = [
        b"",
        b"\x00",
        b"\x00\x53\x72" + values.array(0xFFFFFFFF, b"\x40"),
        values.described(0x70, values.array(0xFFFFFF, b"\x45")) + message(),
        b"\x00\x53\xff" + values.listed() + message(),
        b"\x00\x53\x75\xb0\xff\xff\xff\xff",
        message()[:-3],
    ]
    victim.drain()
    with victim.sending() as line:
        line.send(*[transfer(number, bomb) for number, bomb in enumerate([*bombs, *sealed, message()])])
        answers = outcomes(line, len(bombs) + len(sealed) + 1)
        wrong = [index for index, outcome in enumerate(answers[: len(bombs)]) if not isinstance(outcome, Rejected)]
        require(not wrong, f"the messages {wrong} were accepted")
        require(isinstance(answers[-1], Accepted), "the valid message was not accepted")
        line.send(CLOSE)
        line.answer()
    taken = sum(isinstance(outcome, Accepted) for outcome in answers)
    found = victim.drain()
    require(found == taken, f"of {taken} messages that were accepted {found} are stored")


def sealed_bombs() -> list[bytes]:
    """Yield messages with valid outer sections: a broker that does not decode their properties accepts them."""
    return [
        b"\x00\x53\x72" + values.nested(3000, "map") + message(),
        b"\x00\x53\x74" + values.nested(3000, "map") + message(),
        b"\x00\x53\x74" + values.mapped(values.string(b"x"), values.expanding(9, 65536)) + message(),
        b"\x00\x53\x74" + values.mapped(values.listed(), values.NULL) + message(),
        b"\x00\x53\x74" + values.mapped(values.string(b"\xff\xfe"), values.NULL) + message(),
        values.described(0x73, *[values.NULL] * 40) + message(),
        Message(application_properties={"a": 1}).encode() * 2 + message(),
    ]


@attack(answer="keeps no bytes of a header except its fields", log="connection closed")
def headers_that_are_remembered(victim: Victim) -> None:
    """1000 messages whose headers have 240,000 different bytes each after their fields."""
    with victim.sending() as line:
        for number in range(1000):
            junk = values.binary(number.to_bytes(4, "big") * 60_000)
            header = values.described(0x70, *[values.NULL] * 5, junk)
            line.send(transfer(number, header + message()))
        outcomes(line, 1000)
        line.send(CLOSE)
        line.answer()
    victim.drain()


@attack(answer="rejects the batch", log="connection closed")
def batches_that_are_bombs(victim: Victim) -> None:
    """Batches of 50,000 empty messages, of random bytes, truncated, empty, without data, and of unknown formats."""
    section = b"\x00\x53\x75\xa0\x00"
    inner = b"\x00\x53\x75" + values.binary(message())
    nested = b"\x00\x53\x75" + values.binary(inner * 3)
    batches = [
        (BATCH_FORMAT, section * 50_000),
        (BATCH_FORMAT, b"\x00\x53\x75" + values.binary(b"\xff" * 1000)),
        (BATCH_FORMAT, b""),
        (BATCH_FORMAT, b"\x00\x53\x77\x40"),
        (BATCH_FORMAT, nested[:-1]),
        (0xFFFFFFFF, inner),
        (1, inner),
    ]
    with victim.sending() as line:
        line.send(*[transfer(number, body, message_format=kind) for number, (kind, body) in enumerate(batches)])
        answers = outcomes(line, len(batches))
        wrong = [index for index, outcome in enumerate(answers) if not isinstance(outcome, Rejected)]
        require(not wrong, f"the batches {wrong} were accepted")
        line.send(CLOSE)
        line.answer()
    victim.drain()


@attack(answer="answers, and stops reading while 1 MiB of answers is unread", log="connection (closed|opened)")
def flow_storm(victim: Victim) -> None:
    """20,000 flows that request an echo, drain, close the window, and grant credit of 2^32 - 1."""
    with victim.receiving() as line:
        storm = b"".join(
            (
                credit(0xFFFFFFFF, drain=True, echo=True),
                credit(0, window=0, echo=True),
                credit(0xFFFFFFFF, window=0xFFFFFFFF, delivery_count=0xFFFFFFFF),
                frame(Flow(incoming_window=0, next_outgoing_id=0xFFFFFFFF, outgoing_window=0, echo=True)),
            )
        )
        for _ in range(50):
            line.send(storm * 100)
            line.wait(0.001)
        line.send(CLOSE)
        line.answer()


@attack(
    answer="rejects transfers in unknown transactions; allows 1000 open ones on a connection",
    log="connection closed",
)
def undeclared_transactions(victim: Victim) -> None:
    """Transfers in transactions that were never declared, and 1,100 transactions declared and never discharged."""
    with victim.sending() as line:
        states = [TransactionalState(b"nobody"), TransactionalState(b""), TransactionalState(b"x" * 1000), Accepted()]
        line.send(*[transfer(number, message(), state=state) for number, state in enumerate(states)])
        answers = outcomes(line, len(states))
        require(all(isinstance(outcome, Rejected) for outcome in answers), "a transfer in no transaction was accepted")
    with victim.begun() as line:
        attach = sender()
        attach.target = Coordinator()
        line.send(frame(attach))
        line.expect(Flow)
        declare = Message(value=decode_value(Declare().encode())[0]).encode()
        declared = 0
        for number in range(1100):
            line.send(transfer(number, declare))
            declared += isinstance(line.expect(Disposition).state, Declared)
        require(declared == 1000, f"{declared} transactions were declared")
        line.send(CLOSE)
        line.answer()


@attack(answer="completes the message once, and ignores the other dispositions", log="connection closed")
def settling_twice(victim: Victim) -> None:
    """A delivery accepted, then rejected and accepted again, and settled with an unknown outcome."""
    victim.drain()
    with victim.sending() as line:
        line.send(transfer(0, message()))
        outcomes(line, 1)
        line.send(frame(receiver(handle=1)))
        line.expect(Attach)
        line.send(credit(1, handle=1))
        delivery = line.expect(Transfer)
        number = delivery.delivery_id or 0
        strange = b"\x00\x53\x15" + values.listed(
            b"\x41", b"\x52" + bytes((number,)), b"\x40", b"\x42", values.described(0x99)
        )
        line.send(frame(Disposition(role=True, first=number, settled=True, state=Accepted())))
        line.send(frame(Disposition(role=True, first=number, settled=True, state=Rejected())) * 3)
        line.send(frame(Disposition(role=True, first=number, settled=False, state=Accepted())) * 3)
        line.send(encode_frame(0, strange))
        line.send(CLOSE)
        line.answer()
    require(victim.drain() == 0, "a message that was completed came back")


@attack(answer="refuses keys, types and counts that an operation does not accept, with 4xx", log="connection closed")
def requests_that_make_no_sense(victim: Victim) -> None:
    """Requests to `$management` with wrong types, negative and huge counts, 10,000 lock tokens, unknown operations."""
    lots = [UUID(int=number) for number in range(10_000)]
    with victim.begun() as line:
        requests = Requests(line, f"{QUEUE}/$management")
        for operation, body in (
            ("nonsense", {}),
            ("peek-message", {}),
            ("peek-message", {"from-sequence-number": "1", "message-count": Int(1)}),
            ("peek-message", {"from-sequence-number": -(1 << 63), "message-count": Int(-1)}),
            ("peek-message", {"from-sequence-number": 1, "message-count": "all"}),
            ("renew-lock", {"lock-tokens": Array(lots, UUID)}),
            ("update-disposition", {"disposition-status": "completed", "lock-tokens": Array(lots, UUID)}),
            ("update-disposition", {"disposition-status": "burnt", "lock-tokens": Array(lots[:1], UUID)}),
            ("schedule-message", {"messages": [{"message": b"\xff" * 100, "message-id": "x"}]}),
            ("schedule-message", {"messages": "many"}),
            ("receive-by-sequence-number", {"sequence-numbers": Array([1 << 62], int), "receiver-settle-mode": 9}),
            ("batch-delete-messages", {"message-count": Int(0x7FFFFFFF)}),
            ("set-session-state", {"session-id": "x", "session-state": b"x" * 200_000}),
            ("add-rule", {"rule-name": "x" * 10_000}),
        ):
            status = requests.ask({"operation": f"com.microsoft:{operation}"}, body)
            require(400 <= status < 500 or status == 501, f"{operation} was answered with {status}")
        for value in (None, "text", [1, 2], b"bytes"):
            status = requests.ask({"operation": "com.microsoft:peek-message"}, value)
            require(400 <= status < 500, f"a body {value!r} was answered with {status}")
        line.send(CLOSE)
        line.answer()


@attack(answer="keeps to the frame size and the window of the receiver", log="connection")
def smallest_frames(victim: Victim) -> None:
    """A receiver with frames of at most 512 bytes and a window of one, and a message of 100,000 bytes."""
    victim.drain()
    with victim.sending() as line:
        line.send(transfer(0, message(b"x" * 100_000)))
        outcomes(line, 1)
    with victim.begun(max_frame_size=512) as line:
        attach = receiver()
        attach.snd_settle_mode = 1  # receive-and-delete
        line.send(frame(attach), credit(1, window=1))
        taken = 0
        for performative in line.frames():
            if isinstance(performative, Transfer):
                require(len(line.payload) <= 512, "a frame was larger than the peer's limit")
                taken += 1
                if not performative.more:
                    break
                flow = Flow(next_incoming_id=taken, incoming_window=1, next_outgoing_id=0, outgoing_window=1)
                line.send(frame(flow))
    require(taken > 200, f"100,000 bytes came in {taken} frames")
    victim.drain()
