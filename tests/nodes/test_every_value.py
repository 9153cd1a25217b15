"""Every field that the broker reads, with every AMQP type at its extremes: accepted, or refused where it stands.

A field of a message is its sender's trouble: the message is accepted or rejected, and the connection stays. A field of
a request is answered with a status. A field of a performative may cost the link, the session or the connection, with a
condition that says why. Nothing is ever an error of the broker's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.world import (
    HOUR,
    SECOND,
    AwaitedStore,
    FlakyStore,
    World,
    correlation,
    session_queue,
    sql,
    subscription,
    topic,
)
from nodes.asking import GOOD, SESSION_FILTER, full_name
from nodes.wire import Wire, frame
from peeklock.amqp.codec import encode_value
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, encode_frame
from peeklock.amqp.message import Message
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declared,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from peeklock.amqp.sections import scan
from peeklock.amqp.types import Int, Symbol
from peeklock.broker.queue import Queue
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES
from peeklock.entities.definitions import QueueDefinition
from peeklock.nodes.operation_table import OPERATIONS
from peeklock.store.base import Changes, Store, StoredMessage, StoreError
from tools.hostile.extremes import VALUES, listed, mapped, sized, string, symbol

NULL = b"\x40"
DATA = b"\x00\x53\x75\xa0\x04body"
NUMBERS = count()
Build = Callable[[bytes], bytes]


class StrictStore(FlakyStore):
    """A store that refuses values that the store on disk cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = _does_not_fit


def _does_not_fit(changes: Changes) -> StoreError | None:
    messages = [message for _, message in changes.appends]
    messages += [message for _, message, *_ in [*changes.updates, *changes.rewrites]]
    for message in messages:
        for number in _numbers(message):
            if number is not None and not -(1 << 63) <= number < 1 << 63:
                return StoreError(f"{number} does not fit")
    return None


def _numbers(message: StoredMessage) -> tuple[int | None, ...]:
    return (message.sequence_number, message.enqueued_at, message.expires_at, message.due_at, message.delivery_count)


ASKING = " OR ".join(
    (
        *(f"sys.{name} = 'x' OR sys.{name} > 1 OR sys.{name} LIKE 'x%'" for name in list(SYSTEM_PROPERTIES)[:8]),
        "p = 1 OR -p > 2",
    )
)
ASKING_MORE = " OR ".join((*(f"sys.{name} > 1" for name in list(SYSTEM_PROPERTIES)[8:]), "p + 1 > 2 OR p LIKE '%x_'"))
ACTING = "SET p = p + 1; SET q = p; SET sys.Label = sys.MessageId; SET sys.ReplyTo = sys.SessionId; REMOVE r"


def make_world(store: Store) -> World:
    detecting = {"requires_duplicate_detection": True, "enable_partitioning": True}
    return World(
        QueueDefinition(name="plain", max_delivery_count=2),
        QueueDefinition(name="detecting", **detecting),
        session_queue("s", **detecting),
        QueueDefinition(name="from", forward_to="to"),
        QueueDefinition(name="to", **detecting, forward_to="s"),
        QueueDefinition(name="timed", default_message_ttl_ms=10 * SECOND, dead_lettering_on_message_expiration=True),
        topic(
            "t",
            "all",
            subscription("asking", sql("asks", ASKING), sql("asks more", ASKING_MORE)),
            subscription("correlated", correlation("c", label="x", properties={"p": 1})),
            subscription("acting", sql("acts", "1=1", ACTING)),
            subscription("sessions", requires_session=True),
            **detecting,
        ),
        store=store,
    )


SENT_TO = ("plain", "detecting", "s", "from", "timed", "t")


@pytest.fixture
def world() -> World:
    return make_world(StrictStore())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[World]:
    store = AwaitedStore(tmp_path / "data")
    yield make_world(store)
    store.close()


@pytest.fixture(autouse=True)
def _nothing_is_an_error_of_ours(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.get_records("call") if record.exc_info or record.levelname == "ERROR"]


def gives_reason(error: Any) -> bool:
    """Return whether an error has the reason for the peer."""
    return error is not None and error.condition != Condition.INTERNAL_ERROR and bool(error.description)


# --- messages ---


def identity() -> bytes:
    """Return a new message id: a duplicate would be dropped before other fields are read."""
    return string(f"id-{next(NUMBERS)}")


def front() -> bytes:
    return section(0x73, listed(identity()))


def message() -> bytes:
    return front() + DATA


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def field(code: int, index: int, value: bytes) -> bytes:
    """Return a section that is a list with this value at that index. A message always has an id."""
    fields = [NULL] * index + [value]
    if code == 0x73 and index:
        fields[0] = identity()
    return section(code, listed(*fields))


def with_annotation(name: str, value: bytes) -> bytes:
    return section(0x72, mapped(symbol(name), value)) + message()


def with_long_time_to_live(place: int, value: bytes) -> bytes:
    times = [identity(), *[NULL] * 7, b"\x83" + b"\x7f" * 8, b"\x83" + bytes(8)]
    times[place] = value
    return section(0x70, listed(NULL, NULL, b"\x70\xff\xff\xff\xff")) + section(0x73, listed(*times)) + DATA


def scheduled_with_time_to_live(value: bytes) -> bytes:
    later = mapped(symbol("x-opt-scheduled-enqueue-time"), b"\x83" + (1_800_000_900_000).to_bytes(8))
    return section(0x70, listed(NULL, NULL, value)) + section(0x72, later) + message()


HEADER = ("durable", "priority", "ttl", "first-acquirer", "delivery-count")
PROPERTIES = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
ANNOTATIONS = (
    "x-opt-scheduled-enqueue-time",
    "x-opt-delivery-time",
    "x-opt-partition-key",
    "x-opt-via-partition-key",
    "x-opt-sequence-number",
    "x-opt-enqueued-time",
    "x-opt-enqueue-sequence-number",
    "x-opt-locked-until",
    "x-opt-deadletter-source",
    "x-opt-message-state",
    "x-opt-lock-token",
    "x-unknown",
)

MESSAGES: dict[str, Build] = {
    **{f"header.{name}": lambda value, at=at: field(0x70, at, value) + message() for at, name in enumerate(HEADER)},
    **{f"properties.{name}": lambda value, at=at: field(0x73, at, value) + DATA for at, name in enumerate(PROPERTIES)},
    **{name: partial(with_annotation, name) for name in ANNOTATIONS},
    "ttl of a scheduled message": scheduled_with_time_to_live,
    "absolute-expiry-time beside a long ttl": partial(with_long_time_to_live, 8),
    "creation-time beside a long ttl": partial(with_long_time_to_live, 9),
    "header": lambda value: section(0x70, value) + message(),
    "delivery annotations": lambda value: section(0x71, value) + message(),
    "annotations": lambda value: section(0x72, value) + message(),
    "properties": lambda value: section(0x73, value) + DATA,
    "application properties": lambda value: front() + section(0x74, value) + DATA,
    "the key of an annotation": lambda value: section(0x72, mapped(value, NULL)) + message(),
    "the key of a delivery annotation": lambda value: section(0x71, mapped(value, NULL)) + message(),
    "a delivery annotation": lambda value: section(0x71, mapped(symbol("x-opt-lock-token"), value)) + message(),
    "an application property": lambda value: (
        section(0x73, listed(identity(), *[NULL] * 9, string("session")))
        + section(0x74, mapped(string("p"), value))
        + DATA
    ),
    "the key of an application property": lambda value: front() + section(0x74, mapped(value, b"\x54\x01")) + DATA,
    "data": lambda value: front() + section(0x75, value),
    "a sequence": lambda value: front() + section(0x76, value),
    "a value": lambda value: front() + section(0x77, value),
    "footer": lambda value: message() + section(0x78, value),
    "the descriptor of a section": lambda value: b"\x00" + value + listed(),
    "a section with a long descriptor": lambda value: b"\x00\x80" + (0x77).to_bytes(8) + value,
    "properties with a long descriptor": lambda value: b"\x00\x80" + (0x73).to_bytes(8) + listed(value) + DATA,
    "the whole message": lambda value: value,
    "a message of a batch": lambda value: section(0x75, sized(0xB0, section(0x75, value))),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_value_in_a_message_is_accepted_or_rejects_only_that_message(name: str, world: World) -> None:
    build = MESSAGES[name]
    wire = Wire(world)
    format = 0x80013700 if name == "a message of a batch" else None
    for entity in SENT_TO:
        handle = wire.sender(entity)
        sent = {which: wire.transfer(handle, build(value), message_format=format) for which, value in VALUES.items()}
        wire.send_bytes(b"".join(data for _, data in sent.values()))
        outcomes = wire.outcomes()
        assert wire.closed is None, (entity, wire.closed)
        for which, (id, _) in sent.items():
            outcome = outcomes.get(id)
            assert isinstance(outcome, Accepted) or (isinstance(outcome, Rejected) and gives_reason(outcome.error)), (
                entity,
                which,
                outcome,
            )
    assert not wire.take(Detach, End, Close)
    use_all(world)
    world.check()


@pytest.mark.parametrize("name", MESSAGES)
def test_a_value_in_a_message_of_the_relay_affects_only_that_message(name: str, world: World) -> None:
    build = MESSAGES[name]
    wire = Wire(world)
    handle = wire.attach(role=False, source=Source(address="here"), target=Target())
    format = 0x80013700 if name == "a message of a batch" else None
    sent = {which: wire.transfer(handle, build(value), message_format=format) for which, value in VALUES.items()}
    wire.send_bytes(b"".join(data for _, data in sent.values()))
    outcomes = wire.outcomes()
    for which, (id, _) in sent.items():
        outcome = outcomes[id]
        assert isinstance(outcome, Accepted) or (isinstance(outcome, Rejected) and gives_reason(outcome.error)), which
    assert not wire.take(Detach, End, Close)
    world.check()


def use_all(world: World) -> None:
    """Peek at all stored messages, let time pass, receive them, and settle them in every way."""
    world.advance(HOUR)
    wire = Wire(world)
    for container in world.namespace.entities:
        if container.path == "t":
            continue
        assert container.path not in ("from", "to") or not container.counters.active, "all was forwarded"
        for message in peek_all(wire, container.path):
            scan(message)
        if isinstance(container, Queue) and not container.forwards:
            settle_all(wire, container.path)
    assert not wire.take(Detach, End, Close)
    if world.queue("plain/$DeadLetterQueue").counters.active:
        settle_all(wire, "plain/$DeadLetterQueue")


def peek_all(wire: Wire, path: str) -> list[bytes]:
    requests = Requests(wire, path)
    body = {"from-sequence-number": 0, "message-count": Int(4096)}
    status, reply = requests.ask(named("peek-message"), encode_value(body))
    assert status in (200, 204), reply
    return [each["message"] for each in reply.value.get("messages", ())]


def settle_all(wire: Wire, path: str) -> None:
    handle = wire.receiver(path)
    ways = (
        Rejected(),
        Modified(delivery_failed=True, message_annotations={Symbol("n"): 1}),
        Modified(undeliverable_here=True, message_annotations={Symbol("n"): 1}),
        Accepted(),
    )
    if path.endswith("$DeadLetterQueue"):
        ways = (Accepted(),)  # from there nothing else leads out
    while deliveries := list(wire.received(handle)):
        said: list[bytes] = []
        for number, (id, message) in enumerate(deliveries):
            scan(message)
            state = ways[number % len(ways)]
            said.append(frame(Disposition(role=True, first=id, settled=False, state=state)))
        wire.send_bytes(b"".join(said))
        for disposition in wire.take(Disposition):
            error = getattr(disposition.state, "error", None)
            assert error is None or gives_reason(error), error
        assert wire.closed is None


# --- requests ---


class Requests:
    """A pair of links to `$management` or `$cbs`."""

    def __init__(self, wire: Wire, path: str, node: str = "$management") -> None:
        address = f"{path}/{node}" if path else node
        self._wire = wire
        self._handle = wire.sender(address)
        self._replies = wire.receiver(address)

    def ask(self, properties: bytes, body: bytes, *, front: bytes = b"", **fields: Any) -> tuple[int, Message]:
        """Send a request, and return the status; 0 for a request that was not accepted."""
        front = front or section(0x73, listed(string("request")))
        outcome = self._wire.send(self._handle, front + section(0x74, properties) + section(0x77, body), **fields)
        replies = list(self._wire.received(self._replies))
        if isinstance(outcome, Rejected):
            assert gives_reason(outcome.error), outcome
            assert not replies
            return 0, Message()
        assert isinstance(outcome, Accepted | TransactionalState), outcome
        assert len(replies) == 1, "answered once"
        reply = Message.decode(replies[0][1])
        assert reply.application_properties is not None
        status = reply.application_properties.get("statusCode") or reply.application_properties["status-code"]
        return int(status), reply


def named(operation: str, *more: bytes) -> bytes:
    return mapped(string("operation"), string(full_name(operation)), *more)


def body_with(operation: str, key: str, value: bytes) -> bytes:
    others = [part for name, each in GOOD[operation].items() if name != key for part in (name, each)]
    return mapped(*map(encode_value, others), string(key), value)


KEYS = [(name, field.name) for name in GOOD for field in OPERATIONS[full_name(name)].request]
"""All keys of the table, including optional ones."""


def path_for(operation: str) -> str:
    if "rule" in operation:
        return "t/Subscriptions/all"
    return "s" if "session" in operation else "plain"


def is_answered_well(status: int, reply: Message) -> bool:
    """Return whether the request got an answer that is not an internal error of the broker."""
    return status in (0, 200, 204) or 400 <= status < 500 or status == 501


@pytest.mark.parametrize(("operation", "key"), KEYS)
def test_a_value_in_a_request_is_answered_with_a_status(operation: str, key: str, world: World) -> None:
    wire = Wire(world)
    requests = Requests(wire, path_for(operation))
    for which, value in VALUES.items():
        if operation in ("update-disposition", "peeklock:claim-messages"):
            world.send("held", to="plain")
        status, reply = requests.ask(named(operation), body_with(operation, key, value))
        assert is_answered_well(status, reply), (which, reply.application_properties)
    assert not wire.take(Detach, End, Close)
    world.check()


READING = (
    "peek-message",
    "receive-by-sequence-number",
    "cancel-scheduled-message",
    "batch-delete-messages",
    "get-message-sessions",
    "peeklock:claim-messages",
    "peeklock:read-packed",
    "peeklock:list-claims",
)
COUNTED = [(operation, key) for operation, key in KEYS if operation in READING]


@pytest.mark.parametrize(("operation", "key"), COUNTED)
def test_a_number_in_a_request_is_answered_by_the_store_on_disk_too(operation: str, key: str, disk: World) -> None:
    wire = Wire(disk)
    disk.send("one", to="s", session_id="id")
    requests = Requests(wire, path_for(operation))
    for which, value in VALUES.items():
        if len(value) < 100:
            if operation == "peeklock:claim-messages":
                disk.send("held", to="plain")
            status, reply = requests.ask(named(operation), body_with(operation, key, value))
            assert is_answered_well(status, reply), (which, reply.application_properties)
    assert not wire.take(Detach, End, Close)
    disk.check()


SCHEDULED = ("message", "message-id", "session-id", "partition-key", "via-partition-key")


@pytest.mark.parametrize("key", SCHEDULED)
@pytest.mark.parametrize("path", ["plain", "s", "t"])
def test_a_value_of_a_message_to_schedule_is_answered_with_a_status(path: str, key: str, world: World) -> None:
    wire = Wire(world)
    requests = Requests(wire, path)
    later = section(0x72, mapped(symbol("x-opt-scheduled-enqueue-time"), b"\x83" + (1_800_000_060_000).to_bytes(8)))
    for which, value in VALUES.items():
        others = () if key == "message" else (string("message"), sized(0xB0, later + message()))
        item = mapped(*others, string(key), value)
        status, reply = requests.ask(named("schedule-message"), mapped(string("messages"), listed(item)))
        assert is_answered_well(status, reply), (which, reply.application_properties)
    assert not wire.take(Detach, End, Close)
    use_all(world)
    world.check()


@pytest.mark.parametrize("name", [name for name in MESSAGES if name != "a message of a batch"])
def test_a_value_in_a_message_to_schedule_is_answered_with_a_status(name: str, world: World) -> None:
    wire = Wire(world)
    requests = [Requests(wire, path) for path in ("plain", "t")]
    for which, value in VALUES.items():
        item = mapped(string("message"), sized(0xB0, MESSAGES[name](value)))
        for each in requests:
            status, reply = each.ask(named("schedule-message"), mapped(string("messages"), listed(item)))
            assert is_answered_well(status, reply), (which, reply.application_properties)
    assert not wire.take(Detach, End, Close)
    use_all(world)
    world.check()


ENVELOPES: dict[str, Callable[[bytes], tuple[bytes, bytes, bytes]]] = {
    **{
        name: lambda value, name=name: (
            named("peek-message", string(name), value),
            encode_value(GOOD["peek-message"]),
            b"",
        )
        for name in (
            "com.microsoft:server-timeout",
            "server-timeout",
            "com.microsoft:tracking-id",
            "associated-link-name",
            "unknown",
        )
    },
    "operation": lambda value: (mapped(string("operation"), value), encode_value(GOOD["peek-message"]), b""),
    "a key of its properties": lambda value: (
        named("peek-message", value, NULL),
        encode_value(GOOD["peek-message"]),
        b"",
    ),
    "its properties": lambda value: (value, encode_value(GOOD["peek-message"]), b""),
    "its body": lambda value: (named("peek-message"), value, b""),
    "a key of its body": lambda value: (named("peek-message"), mapped(value, NULL), b""),
    **{
        f"properties.{name}": lambda value, at=at: (
            named("peek-message"),
            encode_value(GOOD["peek-message"]),
            field(0x73, at, value),
        )
        for at, name in enumerate(PROPERTIES)
    },
    **{
        f"header.{name}": lambda value, at=at: (
            named("peek-message"),
            encode_value(GOOD["peek-message"]),
            field(0x70, at, value),
        )
        for at, name in enumerate(HEADER)
    },
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_a_value_around_a_request_is_answered_with_a_status(name: str, world: World) -> None:
    wire = Wire(world)
    requests = Requests(wire, "plain")
    for which, value in VALUES.items():
        properties, body, front = ENVELOPES[name](value)
        status, reply = requests.ask(properties, body, front=front)
        assert is_answered_well(status, reply), (which, reply.application_properties)
    assert not wire.take(Detach, End, Close)
    world.advance(HOUR)
    world.check()


RULES: dict[str, Build] = {
    **{
        f"a {kind} with {key}": lambda value, kind=kind, key=key: mapped(string(kind), mapped(string(key), value))
        for kind, keys in {
            "sql-filter": ("expression",),
            "correlation-filter": ("correlation-id", "label", "session-id", "content-type", "properties"),
        }.items()
        for key in keys
    },
    "a property of a correlation filter": lambda value: mapped(
        string("correlation-filter"), mapped(string("properties"), mapped(string("p"), value))
    ),
    "a name of a correlation filter": lambda value: mapped(
        string("correlation-filter"), mapped(string("properties"), mapped(value, string("x")))
    ),
    "an action": lambda value: mapped(
        string("sql-filter"),
        mapped(string("expression"), string("1=1")),
        string("sql-rule-action"),
        mapped(string("expression"), value),
    ),
    "a described rule": lambda value: b"\x00" + encode_value(Symbol("com.microsoft:rule-description:list")) + value,
    "a described filter": lambda value: (
        b"\x00" + encode_value(Symbol("com.microsoft:rule-description:list")) + listed(value, NULL)
    ),
    "the descriptor of a rule": lambda value: b"\x00" + value + listed(),
    "an item of a described filter": lambda value: (
        b"\x00"
        + encode_value(Symbol("com.microsoft:rule-description:list"))
        + listed(b"\x00" + encode_value(Symbol("com.microsoft:correlation-filter:list")) + listed(value), NULL)
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_a_value_in_a_rule_is_answered_with_a_status(name: str, world: World) -> None:
    wire = Wire(world)
    requests = Requests(wire, "t/Subscriptions/all")
    for number, (which, value) in enumerate(VALUES.items()):
        body = mapped(string("rule-name"), string(f"r{number}"), string("rule-description"), RULES[name](value))
        status, reply = requests.ask(named("add-rule"), body)
        assert is_answered_well(status, reply), (which, reply.application_properties)
    listing = encode_value(GOOD["enumerate-rules"] | {"top": Int(1000)})
    status, reply = requests.ask(named("enumerate-rules"), listing)
    assert status in (200, 204), reply
    world.send("judged by them", to="t", application_properties={"p": 1})
    assert not wire.take(Detach, End, Close)
    world.check()


TOKENS: dict[str, Callable[[bytes], tuple[bytes, bytes]]] = {
    "operation": lambda value: (mapped(string("operation"), value), string("SharedAccessSignature sr=x")),
    "name": lambda value: (
        mapped(string("operation"), string("put-token"), string("name"), value),
        string("SharedAccessSignature sr=x&sig=x&se=1&skn=x"),
    ),
    "type": lambda value: (
        mapped(string("operation"), string("put-token"), string("name"), string("sb://x/plain"), string("type"), value),
        string("SharedAccessSignature sr=x&sig=x&se=1&skn=x"),
    ),
    "expiration": lambda value: (
        mapped(
            string("operation"), string("put-token"), string("name"), string("sb://x/q"), string("expiration"), value
        ),
        string("SharedAccessSignature sr=x&sig=x&se=1&skn=x"),
    ),
    "token": lambda value: (
        mapped(string("operation"), string("put-token"), string("name"), string("sb://x/plain")),
        value,
    ),
}


@pytest.mark.parametrize("name", TOKENS)
def test_a_value_beside_a_token_is_answered_with_a_status(name: str, world: World) -> None:
    wire = Wire(world)
    requests = Requests(wire, "", "$cbs")
    for which, value in VALUES.items():
        properties, body = TOKENS[name](value)
        status, reply = requests.ask(properties, body)
        assert is_answered_well(status, reply), (which, reply.application_properties)
    assert not wire.take(Detach, End, Close)


# --- outcomes ---


def described(code: int, *fields: bytes) -> bytes:
    return section(code, listed(*fields))


OUTCOMES: dict[str, Build] = {
    "rejected.error": lambda value: described(0x25, value),
    "error.condition": lambda value: described(0x25, described(0x1D, value)),
    "error.description": lambda value: described(0x25, described(0x1D, symbol("x"), value)),
    "error.info": lambda value: described(0x25, described(0x1D, symbol("x"), string("x"), value)),
    "DeadLetterReason": lambda value: described(
        0x25, described(0x1D, symbol("x"), NULL, mapped(symbol("DeadLetterReason"), value))
    ),
    "DeadLetterErrorDescription": lambda value: described(
        0x25, described(0x1D, symbol("x"), NULL, mapped(symbol("DeadLetterErrorDescription"), value))
    ),
    "a property of a dead letter": lambda value: described(
        0x25, described(0x1D, symbol("x"), NULL, mapped(symbol("p"), value))
    ),
    "the name of a property of a dead letter": lambda value: described(
        0x25, described(0x1D, symbol("x"), NULL, mapped(value, NULL))
    ),
    "modified.delivery-failed": lambda value: described(0x27, value),
    "modified.undeliverable-here": lambda value: described(0x27, NULL, value),
    "modified.message-annotations": lambda value: described(0x27, b"\x41", b"\x42", value),
    "a property of an abandoned message": lambda value: described(0x27, b"\x41", b"\x42", mapped(symbol("p"), value)),
    "the name of one": lambda value: described(0x27, b"\x41", b"\x42", mapped(value, NULL)),
    "a property of a deferred message": lambda value: described(0x27, b"\x42", b"\x41", mapped(symbol("p"), value)),
    "received.section-number": lambda value: described(0x23, value, b"\x44"),
    "received.section-offset": lambda value: described(0x23, b"\x43", value),
    "accepted": lambda value: section(0x24, value),
    "released": lambda value: section(0x26, value),
    "transactional-state.txn-id": lambda value: described(0x34, value),
    "transactional-state.outcome": lambda value: described(0x34, sized(0xA0, b"none"), value),
    "declared": lambda value: described(0x33, value),
    "the state": lambda value: value,
    "its descriptor": lambda value: b"\x00" + value + listed(),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_value_in_an_outcome_settles_the_message_or_returns_an_error(name: str, world: World) -> None:
    for which, value in VALUES.items():
        world.send("one", to="plain")
        wire = Wire(world)
        handle = wire.receiver("plain", credit=1)
        ((id, _),) = wire.received(handle)
        state = OUTCOMES[name](value)
        wire.send_bytes(encode_frame(0, described(0x15, b"\x41", encode_number(id), NULL, b"\x42", state)))
        for disposition in wire.take(Disposition):
            error = getattr(disposition.state, "error", None)
            assert error is None or gives_reason(error), (which, error)
        assert_ended_well(wire, which)
        wire.peer.on_closed()
        world.advance(HOUR)
        empty(world, "plain")
    use_all(world)
    world.check()


def encode_number(number: int) -> bytes:
    return b"\x70" + number.to_bytes(4)


def empty(world: World, path: str) -> None:
    wire = Wire(world)
    handle = wire.receiver(path)
    for id, _ in list(wire.received(handle)):
        wire.send_bytes(frame(Disposition(role=True, first=id, settled=True, state=Accepted())))
    wire.peer.on_closed()


def assert_ended_well(wire: Wire, which: str) -> None:
    for ending in wire.take(Detach, End, Close):
        assert ending.error is None or gives_reason(ending.error), (which, ending)


# --- transactions ---


DISCHARGES: dict[str, Build] = {
    "the value": lambda value: section(0x77, value),
    "declare": lambda value: section(0x77, section(0x31, value)),
    "declare.global-id": lambda value: section(0x77, described(0x31, value)),
    "discharge": lambda value: section(0x77, section(0x32, value)),
    "discharge.txn-id": lambda value: section(0x77, described(0x32, value)),
    "discharge.fail": lambda value: section(0x77, described(0x32, sized(0xA0, b"none"), value)),
    "a property": lambda value: section(0x73, listed(value)) + section(0x77, described(0x31)),
    "the whole message": lambda value: value,
}


@pytest.mark.parametrize("name", DISCHARGES)
def test_a_value_for_the_coordinator_is_answered_with_an_outcome(name: str, world: World) -> None:
    wire = Wire(world)
    handle = wire.attach(role=False, source=Source(address="here"), target=Coordinator())
    for which, value in VALUES.items():
        outcome = wire.send(handle, DISCHARGES[name](value))
        assert isinstance(outcome, Declared | Accepted) or (
            isinstance(outcome, Rejected) and gives_reason(outcome.error)
        ), (which, outcome)
    assert not wire.take(Detach, End, Close)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_value_in_a_message_of_a_transaction_rolls_that_back_at_most(name: str, world: World) -> None:
    wire = Wire(world)
    coordinator = wire.attach(role=False, source=Source(address="here"), target=Coordinator())
    handle = wire.sender("plain")
    for which, value in VALUES.items():
        declared = wire.send(coordinator, section(0x77, described(0x31)))
        assert isinstance(declared, Declared)
        state = TransactionalState(declared.txn_id)
        outcome = wire.send(handle, MESSAGES[name](value), state=state)
        if isinstance(outcome, Rejected):
            assert gives_reason(outcome.error), (which, outcome)
        else:
            assert isinstance(outcome, TransactionalState), (which, outcome)
        discharged = wire.send(coordinator, section(0x77, described(0x32, sized(0xA0, declared.txn_id))))
        assert isinstance(discharged, Accepted) is isinstance(outcome, TransactionalState), (which, discharged)
    assert not wire.take(Detach, End, Close)
    use_all(world)
    world.check()


# --- performatives ---


def encoded_fields(performative: Any) -> list[bytes]:
    """Return the fields of a performative, each encoded."""
    return [
        NULL if (value := getattr(performative, each.name)) is None else each.type.write(value, 0)
        for each in performative.FIELDS
    ]


def sending(**fields: Any) -> Attach:
    return Attach(
        name="link",
        handle=0,
        role=False,
        source=Source(address="here"),
        target=Target(address="plain"),
        initial_delivery_count=0,
        **fields,
    )


def receiving(address: str = "plain", **fields: Any) -> Attach:
    return Attach(
        name="link",
        handle=0,
        role=True,
        source=Source(address=address, **fields),
        target=Target(address="here"),
    )


def consuming() -> Attach:
    return receiving("t", capabilities=["topic", "shared"], durable=2, expiry_policy="never")


def unsubscribing() -> Attach:
    return Attach(name="link", handle=0, role=True, target=Target(), desired_capabilities=["shared", "global"])


def making() -> Attach:
    target = Target(dynamic=True, dynamic_node_properties={Symbol("lifetime-policy"): None}, capabilities=["queue"])
    return Attach(name="link", handle=0, role=False, target=target, initial_delivery_count=0)


TERMINI: dict[str, tuple[Callable[[], Attach], int]] = {
    "source": (receiving, 5),
    "target": (sending, 6),
    "source of a consumer": (consuming, 5),
    "dynamic target": (making, 6),
}
"""The attach that has the field, and the index of the field."""
PERFORMATIVES: dict[str, tuple[bool, Any]] = {
    "open": (False, Open(container_id="client", max_frame_size=1 << 20)),
    "begin": (False, Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)),
    "attach to send": (True, sending()),
    "attach to receive": (True, receiving()),
    "attach to consume": (True, consuming()),
    "attach to unsubscribe": (True, unsubscribing()),
    **{name: (True, (attach().source, attach().target)[at - 5]) for name, (attach, at) in TERMINI.items()},
    "flow": (
        True,
        Flow(
            next_incoming_id=0,
            incoming_window=9,
            next_outgoing_id=0,
            outgoing_window=9,
            handle=0,
            delivery_count=0,
            link_credit=1,
        ),
    ),
    "transfer": (True, Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0)),
    "disposition": (True, Disposition(role=True, first=0, state=Accepted())),
    "detach": (True, Detach(handle=0, closed=True)),
    "end": (True, End()),
    "close": (True, Close()),
}
FIELDS = [
    (name, index, each.name)
    for name, (_, performative) in PERFORMATIVES.items()
    for index, each in enumerate(performative.FIELDS)
]


def send_performative(wire: Wire, name: str, index: int, value: bytes) -> None:
    performative = PERFORMATIVES[name][1]
    fields = encoded_fields(performative)
    fields[index] = value
    body = described(performative.CODE, *fields)
    if name in TERMINI:
        make, at = TERMINI[name]
        outer = encoded_fields(make())
        outer[at] = body
        body = described(Attach.CODE, *outer)
    elif name in ("open", "begin"):
        wire.send_bytes(AMQP_HEADER)
        if name == "begin":
            wire.send_bytes(frame(Open(container_id="client", max_frame_size=1 << 20)))
    elif name in ("flow", "disposition"):
        wire.receiver("plain", credit=1)
    elif name in ("transfer", "detach"):
        wire.sender("plain")
    wire.send_bytes(encode_frame(0, body + (message() if name == "transfer" else b"")))
    if name == "open":
        wire.send_bytes(frame(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100)))
    if name in ("open", "begin"):
        wire.send_bytes(frame(sending()))


@pytest.mark.parametrize(("name", "index", "field_name"), FIELDS, ids=[f"{name}.{of}" for name, _, of in FIELDS])
def test_a_value_in_a_performative_is_accepted_or_refused_with_a_condition(
    name: str, index: int, field_name: str, world: World
) -> None:
    for which, value in VALUES.items():
        world.send("one", to="plain")
        wire = Wire(world, opened=PERFORMATIVES[name][0])
        send_performative(wire, name, index, value)
        assert_ended_well(wire, which)
        wire.peer.on_closed()
    world.advance(HOUR)
    world.check()


ATTACHED: dict[str, Callable[[bytes], tuple[Attach, int, bytes]]] = {
    **{
        f"sending: {name}": lambda value, name=name: (sending(), 13, mapped(symbol(name), value))
        for name in ("com.microsoft:timeout", "com.microsoft:transfer-destination-address", "unknown")
    },
    **{
        f"receiving: {name}": lambda value, name=name: (receiving(), 13, mapped(symbol(name), value))
        for name in ("com.microsoft:timeout", "unknown")
    },
    "receiving a session: com.microsoft:timeout": lambda value: (
        receiving("s", filter={Symbol(SESSION_FILTER): None}),
        13,
        mapped(symbol("com.microsoft:timeout"), value),
    ),
    **{
        f"session-filter of {path}": lambda value, path=path: (
            receiving(path),
            5,
            described(0x28, string(path), *[NULL] * 6, mapped(symbol(SESSION_FILTER), value)),
        )
        for path in ("s", "plain")
    },
    "described session-filter": lambda value: (
        receiving("s"),
        5,
        described(
            0x28, string("s"), *[NULL] * 6, mapped(symbol(SESSION_FILTER), b"\x00" + symbol(SESSION_FILTER) + value)
        ),
    ),
    "session-filter described by": lambda value: (
        receiving("s"),
        5,
        described(0x28, string("s"), *[NULL] * 6, mapped(symbol(SESSION_FILTER), b"\x00" + value + string("id"))),
    ),
    "another filter beside a session-filter": lambda value: (
        receiving("s"),
        5,
        described(0x28, string("s"), *[NULL] * 6, mapped(symbol(SESSION_FILTER), string("id"), symbol("other"), value)),
    ),
    "the name of a filter": lambda value: (
        receiving(),
        5,
        described(0x28, string("plain"), *[NULL] * 6, mapped(value, NULL)),
    ),
}


@pytest.mark.parametrize("name", ATTACHED)
def test_a_value_in_an_attach_is_accepted_or_refused_with_a_condition(name: str, world: World) -> None:
    world.send("one", to="s", session_id="id")
    for which, value in VALUES.items():
        wire = Wire(world)
        attach, index, replaced = ATTACHED[name](value)
        fields = encoded_fields(attach)
        fields[index] = replaced
        wire.send_bytes(encode_frame(0, described(attach.CODE, *fields)))
        world.advance(61 * SECOND)  # as long as a receiver waits for a session
        wire.read_output()
        answered = wire.take(Attach)
        assert answered or wire.closed or "timeout" in name, which
        assert_ended_well(wire, which)
        wire.peer.on_closed()
    world.check()
