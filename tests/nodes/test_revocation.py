"""Rights that end while a client is connected: rules are changed or removed, or entities are deleted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nodes.changing import change, delete_queue, delete_topic, update_queue
from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Error, Rejected
from peeklock.amqp.performatives import Attach, Close, Detach, Disposition, Flow, Transfer
from peeklock.amqp.transactions import Coordinator, Declare, Declared, Discharge, TransactionalState
from peeklock.amqp.types import Symbol
from peeklock.broker.errors import BrokerError
from peeklock.engine.links import Link
from peeklock.entities.authorization import ALL_RIGHTS, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.nodes.peer import Peer
from raw_client import eventually
from sdk.raw_peer import RawPeer, sas_token
from serving import BrokerThread, StartBroker

UNAUTHORIZED = Condition.UNAUTHORIZED_ACCESS
VIA = Symbol("com.microsoft:transfer-destination-address")


def rule(name: str, key: str, *rights: Right, second: str | None = None) -> AuthorizationRule:
    return AuthorizationRule(name=name, primary_key=key, secondary_key=second, rights=frozenset(rights or ALL_RIGHTS))


ROOT = rule("root", "root-key")
OWN = rule("own", "own-key", second="own-second")
SENDER = rule("sender", "sender-key", Right.SEND)
QUEUE = QueueDefinition(name="queue", authorization_rules=(OWN, SENDER))
TOPIC = TopicDefinition(
    name="topic",
    authorization_rules=(rule("of-topic", "topic-key"),),
    subscriptions=(SubscriptionDefinition(name="sub"),),
)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    other = QueueDefinition(name="other", authorization_rules=(rule("of-other", "other-key"),))
    namespace = NamespaceDefinition(queues=(QUEUE, other), topics=(TOPIC,), authorization_rules=(ROOT,))
    return start_broker(namespace=namespace)


@pytest.fixture
def guest(broker: BrokerThread) -> Iterator[RawPeer]:
    """Return a client whose connection is open, with links to `$cbs`."""
    with RawPeer(broker) as peer:
        peer.login("ANONYMOUS")
        peer.open()
        peer.cbs_links()
        yield peer


def show(broker: BrokerThread, peer: RawPeer, audience: str, name: str, key: str) -> int:
    token = sas_token(audience, broker.clock() // 1000 + 3600, key=key, rule=name)
    return int((peer.put_token(token, audience).application_properties or {})["status-code"])


def set_rules(broker: BrokerThread, *rules: AuthorizationRule) -> None:
    update_queue(broker, "queue", authorization_rules=rules)


def create_queue(broker: BrokerThread, definition: QueueDefinition) -> None:
    change(broker, lambda administration, done: administration.create_queue(definition, done))


def detached(peer: RawPeer, *handles: int) -> Error:
    """Return the error with which that many links are detached now."""
    found = [peer.expect(Detach) for _ in handles]
    for handle, detach in zip(handles, found, strict=True):
        assert detach.closed
        assert detach.error is not None
        peer.send(Detach(handle=handle, closed=True))
    assert found[0].error is not None
    return found[0].error


def refused(peer: RawPeer, handle: int, **fields: str) -> str:
    """Return the condition with which an attach is refused."""
    peer.attach(handle, **fields)
    error = detached(peer, handle)
    return str(error.condition)


# --- rules ---


@pytest.mark.parametrize(
    "left",
    [
        (SENDER,),
        (SENDER, rule("own", "new-key", second="new-second")),
        (SENDER, rule("own", "new-key", second="own-second")),
        (SENDER, rule("another-name", "own-key", second="own-second")),
        (),
    ],
    ids=["removed", "rotated", "primary rotated", "renamed", "all removed"],
)
def test_links_are_detached_when_their_rule_is_removed_or_its_key_replaced(
    left: tuple[AuthorizationRule, ...], broker: BrokerThread, guest: RawPeer
) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")
    guest.receiver(3, "queue", credit=10)
    guest.sender(4, "queue/$management")
    guest.receiver(5, "queue/$management", credit=10)
    set_rules(broker, *left)
    error = detached(guest, 2, 3, 4, 5)
    assert error.condition == UNAUTHORIZED
    assert "rule 'own' was changed or removed" in (error.description or "")
    assert refused(guest, 6, sends_to="queue") == UNAUTHORIZED
    assert show(broker, guest, "queue", "own", "own-key") == 401
    assert show(broker, guest, "queue", "root", "root-key") == 202  # the links of $cbs stand
    guest.sender(7, "queue")
    guest.send_accepted(7, b"again")


@pytest.mark.parametrize("key", ["own-key", "own-second"])
def test_the_other_key_of_a_rule_may_be_replaced(key: str, broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", key) == 202
    guest.sender(2, "queue")
    primary, secondary = ("own-key", "new-key") if key == "own-key" else ("new-key", "own-second")
    set_rules(broker, rule("own", primary, second=secondary))
    guest.send_accepted(2, b"still here")


def test_reducing_the_rights_of_a_rule_detaches_links_that_need_them(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")
    guest.receiver(3, "queue")
    set_rules(broker, rule("own", "own-key", Right.SEND, second="own-second"))
    assert detached(guest, 3).condition == UNAUTHORIZED
    guest.send_accepted(2, b"may be sent")


def test_a_rule_that_gives_more_does_so_at_once(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "sender", "sender-key") == 202
    assert refused(guest, 2, receives_from="queue") == UNAUTHORIZED
    set_rules(broker, OWN, rule("sender", "sender-key", Right.SEND, Right.LISTEN))
    guest.receiver(3, "queue")


def test_other_changes_of_an_entity_detach_no_link(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")
    update_queue(broker, "queue", user_metadata="changed")
    set_rules(broker, OWN)
    update_queue(broker, "other", authorization_rules=())
    guest.send_accepted(2, b"still here")


def test_rules_of_the_namespace_are_revoked_everywhere(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "sb://localhost/", "root", "root-key") == 202
    guest.sender(2, "queue")
    guest.receiver(3, "topic/Subscriptions/sub")
    broker.call(lambda: broker.broker.namespace.keys.set("", (rule("root", "another-key"),)))
    assert detached(guest, 2, 3).condition == UNAUTHORIZED


def test_a_transaction_is_not_committed_after_its_rule_was_removed(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")
    guest.send(Attach(name="txn", handle=4, role=False, target=Coordinator(), initial_delivery_count=0))
    guest.expect(Attach)
    guest.expect(Flow)
    guest.transfer(4, Message(value=Declare()).encode())
    declared = guest.expect(Disposition).state
    assert isinstance(declared, Declared)
    guest.transfer(2, Message(data=[b"x"]).encode(), state=TransactionalState(declared.txn_id))
    assert isinstance(guest.expect(Disposition).state, TransactionalState)
    set_rules(broker)
    detached(guest, 2)
    guest.transfer(4, Message(value=Discharge(declared.txn_id, False)).encode())
    assert isinstance(guest.expect(Disposition).state, Rejected)
    assert broker.counters().active == 0


@pytest.mark.interpreted
def test_a_failure_of_one_connection_does_not_prevent_revocation_on_others(
    broker: BrokerThread, guest: RawPeer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    detach, failed = Peer.detach, list[str]()

    def fail_once(peer: Peer, link: Link, failure: BrokerError) -> None:
        if not failed:
            failed.append(peer.name)
            raise RuntimeError("a link in trouble")
        detach(peer, link, failure)

    monkeypatch.setattr(Peer, "detach", fail_once)
    with RawPeer(broker) as other:
        other.login("ANONYMOUS")
        other.open()
        other.cbs_links()
        for peer in (guest, other):
            assert show(broker, peer, "queue", "own", "own-key") == 202
            peer.sender(2, "queue")
        set_rules(broker)
        told = [peer.next_frame().performative for peer in (guest, other)]
    assert {type(performative) for performative in told} == {Close, Detach}
    assert {performative.error.condition for performative in told} == {UNAUTHORIZED}
    assert "a link in trouble" in caplog.text


# --- logins by key ---


@pytest.mark.parametrize("left", [(SENDER,), (rule("own", "new-key"),)], ids=["removed", "rotated"])
def test_a_login_by_key_ends_with_its_rule(left: tuple[AuthorizationRule, ...], broker: BrokerThread) -> None:
    with RawPeer(broker) as peer:
        assert peer.login("PLAIN", b"\0own\0own-key").code == 0
        peer.open()
        peer.sender(0, "queue")
        set_rules(broker, *left)
        close = peer.expect(Close)
        assert close.error is not None
        assert close.error.condition == UNAUTHORIZED
        assert "rule 'own' was changed or removed" in (close.error.description or "")
        peer.send(Close())
        assert peer.is_hung_up()
    with RawPeer(broker) as peer:
        assert peer.login("PLAIN", b"\0own\0own-key").code != 0
    eventually(lambda: not broker.call(lambda: broker.broker.namespace.keys.watchers))


def test_a_login_by_key_is_invalid_if_its_rule_was_removed_before_the_open(broker: BrokerThread) -> None:
    with RawPeer(broker) as peer:
        assert peer.login("PLAIN", b"\0own\0own-key").code == 0
        set_rules(broker)
        peer.open()
        close = peer.expect(Close)
        assert close.error is not None
        assert close.error.condition == UNAUTHORIZED


def test_a_login_by_key_continues_if_another_rule_has_the_same_name_and_key(
    broker: BrokerThread,
) -> None:
    update_queue(broker, "other", authorization_rules=(OWN,))
    with RawPeer(broker) as peer:
        assert peer.login("PLAIN", b"\0own\0own-key").code == 0
        peer.open()
        peer.sender(0, "queue")
        peer.sender(1, "other")
        set_rules(broker)
        assert detached(peer, 0).condition == UNAUTHORIZED
        peer.send_accepted(1, b"still here")


# --- sending through another entity ---


def test_a_link_is_detached_when_the_right_to_its_destination_is_removed(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    assert show(broker, guest, "other", "of-other", "other-key") == 202
    guest.sender(2, "queue", properties={VIA: "other"})
    guest.sender(3, "queue")
    update_queue(broker, "other", authorization_rules=())
    error = detached(guest, 2)
    assert error.condition == UNAUTHORIZED
    assert "'other'" in (error.description or "")
    guest.send_accepted(3, b"still here")


def test_the_token_of_a_destination_must_be_renewed(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    token = sas_token("other", broker.clock() // 1000 + 60, key="other-key", rule="of-other")
    guest.put_token(token, "other")
    guest.sender(2, "queue", properties={VIA: "other"})
    broker.advance(60)
    broker.advance(10)
    error = detached(guest, 2)
    assert error.condition == UNAUTHORIZED
    assert "expired" in (error.description or "")


# --- entities that are deleted ---


def test_rights_from_an_entitys_own_rules_end_with_the_entity(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")
    delete_queue(broker, "queue")
    assert detached(guest, 2).condition == Condition.NOT_FOUND
    create_queue(broker, QUEUE)
    assert refused(guest, 3, sends_to="queue") == UNAUTHORIZED
    assert refused(guest, 4, receives_from="queue/$DeadLetterQueue") == UNAUTHORIZED
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(5, "queue")


def test_a_login_by_the_key_of_an_entity_ends_with_it(broker: BrokerThread) -> None:
    with RawPeer(broker) as peer:
        assert peer.login("PLAIN", b"\0own\0own-key").code == 0
        peer.open()
        delete_queue(broker, "queue")
        close = peer.expect(Close)
        assert close.error is not None
        assert close.error.condition == UNAUTHORIZED


def test_rights_from_rules_of_the_namespace_and_of_other_entities_remain(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "root", "root-key") == 202
    assert show(broker, guest, "other", "of-other", "other-key") == 202
    guest.sender(2, "other")
    delete_queue(broker, "queue")
    assert refused(guest, 3, sends_to="queue") == Condition.NOT_FOUND
    create_queue(broker, QUEUE)
    guest.send_accepted(2, b"still here")
    guest.sender(4, "queue")


def test_rights_to_a_subscription_from_the_topics_rules_end_with_the_topic(
    broker: BrokerThread, guest: RawPeer
) -> None:
    path = "topic/Subscriptions/sub"
    assert show(broker, guest, path, "of-topic", "topic-key") == 202
    guest.receiver(2, path)
    delete_topic(broker, "topic")
    assert detached(guest, 2).condition == Condition.NOT_FOUND
    change(broker, lambda administration, done: administration.create_topic(TOPIC, done))
    sub = SubscriptionDefinition(name="sub")
    change(broker, lambda administration, done: administration.create_subscription("topic", sub, done))
    assert refused(guest, 3, receives_from=path) == UNAUTHORIZED


# --- the clock ---


def test_tokens_that_expired_because_the_clock_was_set_have_the_grace_period(
    broker: BrokerThread, guest: RawPeer
) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")

    def set_clock() -> None:
        broker.clock.step(10 * 24 * 3600 * 1000)
        broker.broker.run_agenda()

    broker.call(set_clock)
    guest.send_accepted(2, b"in the grace")
    assert show(broker, guest, "queue", "own", "own-key") == 202  # a token for the new time
    broker.advance(11)
    guest.send_accepted(2, b"still here")
    broker.call(set_clock)
    broker.advance(11)
    assert detached(guest, 2).condition == UNAUTHORIZED


def test_a_message_is_not_lost_when_its_receiver_loses_the_right(broker: BrokerThread, guest: RawPeer) -> None:
    assert show(broker, guest, "queue", "own", "own-key") == 202
    guest.sender(2, "queue")
    guest.send_accepted(2, b"x")
    guest.receiver(3, "queue", credit=1)
    guest.expect(Transfer)
    set_rules(broker)
    detached(guest, 2, 3)
    assert broker.counters().active == 1
    broker.advance(61)
    with RawPeer(broker) as peer:
        assert peer.login("PLAIN", b"\0root\0root-key").code == 0
        peer.open()
        peer.receiver(0, "queue", credit=1)
        peer.expect(Transfer)
