"""The outcome of a request is sent before its reply: some clients treat an earlier reply as a failed send."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from broker.world import FlakyStore, World, encoded, session_queue, topic
from nodes.asking import GOOD
from nodes.wire import AnyLogins, Wire, flow, frame
from peeklock.amqp.frames import encode_frame
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted, Rejected
from peeklock.amqp.performatives import Attach, Begin, Disposition, Source, Target, Transfer
from peeklock.amqp.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from peeklock.client import sas_token
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from peeklock.entities.definitions import QueueDefinition
from peeklock.nodes.operation_table import OPERATIONS

NAMES = sorted(OPERATIONS)
SUBSCRIPTION = "t/Subscriptions/all"


@pytest.fixture
def store() -> FlakyStore:
    return FlakyStore()


@pytest.fixture
def world(store: FlakyStore) -> World:
    return World(QueueDefinition(name="q"), session_queue("s"), topic("t", "all"), store=store)


def path_for(name: str) -> str:
    if "rule" in name:
        return SUBSCRIPTION
    return "s" if "session" in name else "q"


def good(name: str) -> Message:
    return request(name, GOOD[name.removeprefix("com.microsoft:")])


def request(name: Any, body: Any) -> Message:
    return Message(properties=Properties(message_id="m"), application_properties={"operation": name}, value=body)


class Requests:
    """A pair of links for requests, which records the order of the broker's outcomes and replies."""

    def __init__(self, wire: Wire, node: str, credit: int = 1000) -> None:
        self.wire = wire
        self.requests = wire.sender(node)
        self.replies = wire.receiver(node, credit)

    def ask(self, *messages: Message, **fields: Any) -> list[str]:
        """Send requests together, and return the order of the broker's output."""
        self.wire.heard.clear()
        transfers = [self.wire.transfer(self.requests, message.encode(), **fields) for message in messages]
        self.wire.send_bytes(b"".join(data for _, data in transfers))
        return self.order()

    def order(self) -> list[str]:
        return list(self._order())

    def _order(self) -> Iterator[str]:
        for performative, _ in self.wire.heard:
            if isinstance(performative, Disposition) and performative.role:
                last = performative.first if performative.last is None else performative.last
                assert performative.settled
                outcome = performative.state
                if isinstance(outcome, TransactionalState):
                    outcome = outcome.outcome
                yield from [type(outcome).__name__.lower()] * (last - performative.first + 1)
            elif isinstance(performative, Transfer) and performative.delivery_id is not None:
                yield "reply"


def management(world: World, name: str, credit: int = 1000) -> Requests:
    return Requests(Wire(world), f"{path_for(name)}/$management", credit)


# --- $management ---


@pytest.mark.parametrize("name", NAMES)
def test_a_request_is_accepted_before_its_reply_leaves(name: str, world: World) -> None:
    world.send("a")
    assert management(world, name).ask(good(name)) == ["accepted", "reply"]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_is_refused_is_accepted_before_its_reply_leaves(name: str, world: World) -> None:
    assert management(world, name).ask(request(name, {})) == ["accepted", "reply"]


@pytest.mark.parametrize("name", ["com.microsoft:unknown", "", None, 7])
def test_a_request_for_an_unknown_operation_is_accepted_before_its_reply_leaves(name: Any, world: World) -> None:
    assert management(world, "").ask(request(name, {})) == ["accepted", "reply"]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_is_accepted_before_a_reply_that_waits_for_the_store(
    name: str, world: World, store: FlakyStore
) -> None:
    world.send("a")
    requests = management(world, name)
    store.held, store.held_answers = [], []
    found = requests.ask(good(name))
    store.release_commits()
    store.release_answers()
    world.run()
    requests.wire.read_output()
    assert requests.order() == ["accepted", "reply"]
    assert found[:1] == ["accepted"]


def test_each_of_several_requests_in_one_turn_is_accepted_before_its_reply_leaves(world: World) -> None:
    names = [name for name in NAMES if path_for(name) == "q"]
    assert len(names) > 3
    found = management(world, names[0]).ask(*map(good, names))
    assert sorted(found) == ["accepted"] * len(names) + ["reply"] * len(names)
    for at in range(len(found)):
        assert found[:at].count("accepted") >= found[:at].count("reply"), found


@pytest.mark.parametrize("name", NAMES)
def test_a_request_is_accepted_before_a_reply_that_waits_for_credit(name: str, world: World) -> None:
    requests = management(world, name, credit=0)
    assert requests.ask(good(name)) == ["accepted"]
    requests.wire.send_bytes(frame(flow(requests.replies, 1)))
    assert requests.order() == ["accepted", "reply"]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_in_a_transaction_is_accepted_before_its_reply_leaves(name: str, world: World) -> None:
    requests = management(world, name)
    transaction = declare(requests.wire)
    state = TransactionalState(transaction)
    assert requests.ask(good(name), state=state) == ["accepted", "reply"]


@pytest.mark.parametrize("name", NAMES)
def test_a_request_that_the_broker_fails_at_is_accepted_before_its_reply_leaves(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setitem(OPERATIONS, name, replace(OPERATIONS[name], run=fail))
    assert management(world, name).ask(good(name)) == ["accepted", "reply"]


def test_a_request_that_was_sent_settled_gets_a_reply_only(world: World) -> None:
    assert management(world, "").ask(good("com.microsoft:peek-message"), settled=True) == ["reply"]


def test_a_request_without_a_reply_link_is_rejected(world: World) -> None:
    wire = Wire(world)
    handle = wire.sender("q/$management")
    assert isinstance(wire.send(handle, good("com.microsoft:peek-message").encode()), Rejected)


def test_a_request_is_accepted_before_its_reply_leaves_in_another_session(world: World) -> None:
    wire = Wire(world)
    requests = wire.sender("q/$management")
    begin = Begin(next_outgoing_id=0, incoming_window=1 << 20, outgoing_window=1 << 20, handle_max=9999)
    source, target = Source(address="q/$management"), Target(address="here")
    attach = Attach(name="replies", handle=0, role=True, source=source, target=target)
    wire.send_bytes(b"".join(encode_frame(1, each.encode()) for each in (begin, attach, flow(0, 10))))
    found = Requests.__new__(Requests)
    found.wire, found.requests = wire, requests
    assert found.ask(*[good("com.microsoft:peek-message")] * 3) == ["accepted", "reply"] * 3


# --- $cbs ---


def put_token(world: World, audience: Any = "q", token: Any = None, operation: Any = "put-token") -> Message:
    if token is None:
        token = sas_token("sb://peeklock/", DEFAULT_KEY_NAME, DEFAULT_KEY, world.clock() / 1000 + 3600)
    message = request(operation, token)
    assert message.application_properties is not None
    message.application_properties["name"] = audience
    return message


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"audience": "nowhere"},
        {"audience": 7},
        {"token": "SharedAccessSignature sr=q"},
        {"token": b"\xff"},
        {"token": 7},
        {"operation": "get-token"},
        {"operation": None},
    ],
    ids=str,
)
def test_a_put_token_is_accepted_before_its_reply_leaves(wrong: dict[str, Any], world: World) -> None:
    requests = Requests(Wire(world), "$cbs")
    assert requests.ask(put_token(world, **wrong)) == ["accepted", "reply"]


def test_each_of_several_put_tokens_in_one_turn_is_accepted_before_its_reply_leaves(world: World) -> None:
    requests = Requests(Wire(world), "$cbs")
    assert requests.ask(*(put_token(world, path) for path in ("q", "none", "s"))) == ["accepted", "reply"] * 3


def test_a_put_token_that_the_broker_fails_at_gets_a_reply(world: World) -> None:
    class Broken(AnyLogins):
        def check_login(self) -> None:
            raise RuntimeError("a mistake")

    wire = Wire(world)
    wire.peer.logins = Broken()
    requests = Requests(wire, "$cbs")
    assert requests.ask(put_token(world)) == ["accepted", "reply"]
    ((_, reply),) = wire.received(requests.replies)
    properties = Message.decode(reply).application_properties
    assert properties is not None
    assert (properties["status-code"], properties["error-condition"]) == (500, "amqp:internal-error")
    assert "a mistake" not in properties["status-description"]


# --- the coordinator ---


def declare(wire: Wire) -> bytes:
    coordinator = wire.attach(role=False, source=Source(), target=Coordinator())
    declared = wire.send(coordinator, Message(value=Declare()).encode())
    assert isinstance(declared, Declared)
    return declared.txn_id


def test_the_outcome_of_a_send_in_a_transaction_leaves_before_that_of_its_discharge(world: World) -> None:
    wire = Wire(world)
    coordinator = wire.attach(role=False, source=Source(), target=Coordinator())
    declared = wire.send(coordinator, Message(value=Declare()).encode())
    assert isinstance(declared, Declared)
    sender = wire.sender("q")
    wire.heard.clear()
    _, sent = wire.transfer(sender, encoded("a"), state=TransactionalState(declared.txn_id))
    _, discharge = wire.transfer(coordinator, Message(value=Discharge(declared.txn_id, False)).encode())
    wire.send_bytes(sent + discharge)
    states = [each.state for each in wire.take(Disposition)]
    assert states == [TransactionalState(declared.txn_id, Accepted()), Accepted()]
    assert world.bodies() == ["a"]
