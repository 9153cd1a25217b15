"""Links of entities that are changed or deleted while they are used, and of entities that refuse them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from nodes.asking import (
    FOREVER,
    GOOD,
    SUBSCRIPTION,
    Management,
    RequestLinks,
    accept_session,
    defer,
    for_later,
    receive,
    send,
    token_of,
)
from nodes.changing import (
    change,
    delete_queue,
    delete_subscription,
    delete_topic,
    update_queue,
    update_subscription,
    update_topic,
)
from nodes.waiting import Waiting
from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.transactions import Coordinator, Declare, Discharge, TransactionalState
from peeklock.amqp.types import Array, Symbol, UByte
from peeklock.client import Connection, LinkClosed, ReceiveMode, Receiver, Sender, SendRejected, connect
from peeklock.client.link import ClientLink
from peeklock.entities.authorization import ALL_RIGHTS, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.settings import PROFILES, Status
from peeklock.nodes.operation_table import OPERATIONS
from raw_client import eventually
from serving import BrokerThread, StartBroker

VIA = Symbol("com.microsoft:transfer-destination-address")
DISABLED = "com.microsoft:entity-disabled"
NOT_ALLOWED = "amqp:not-allowed"
SESSIONS = "topic/Subscriptions/sessions"


def ended(link: ClientLink) -> LinkClosed:
    """Wait until the broker detaches the link, and return the error."""
    link.connection.wait(lambda: link._failure is not None, 10, f"the end of {link.name}")
    assert isinstance(link._failure, LinkClosed)
    return link._failure


def not_found(link: ClientLink, path: str) -> None:
    """Check that the link was detached because the entity was deleted, with the text that SDKs expect."""
    failure = ended(link)
    assert failure.condition == "amqp:not-found"
    assert failure.description.startswith(f"The messaging entity 'sb://peeklock/{path}' could not be found.")


def refusal(attach: Callable[[], object]) -> LinkClosed:
    with pytest.raises(LinkClosed) as refused:
        attach()
    return refused.value


def rejection(sender: Sender) -> SendRejected:
    with pytest.raises(SendRejected) as refused:
        sender.send(Message(data=[b"x"]))
    return refused.value


def stays(link: ClientLink) -> None:
    """Check that the link is still attached after all output of the broker was read."""
    Management(link.connection, "queue").ask("peek-message", GOOD["peek-message"])
    assert not link.closed


# --- deleting ---


@pytest.mark.parametrize(
    ("delete", "path", "session"),
    [
        (lambda broker: delete_queue(broker, "Queue"), "queue", None),
        (lambda broker: delete_queue(broker, "sessions"), "sessions", "s"),
        (lambda broker: delete_subscription(broker, "topic", "Sub"), SUBSCRIPTION, None),
        (lambda broker: delete_subscription(broker, "topic", "sessions"), SESSIONS, "s"),
        (lambda broker: delete_topic(broker, "topic"), SUBSCRIPTION, None),
        (lambda broker: delete_topic(broker, "topic"), SESSIONS, "s"),
    ],
    ids=["queue", "session queue", "subscription", "session subscription", "topic", "topic with session subscription"],
)
def test_deleting_an_entity_detaches_all_links_at_it_and_below(
    delete: Callable[[BrokerThread], None],
    path: str,
    session: str | None,
    broker: BrokerThread,
    connection: Connection,
) -> None:
    attach = connection.receiver if session is None else lambda path: accept_session(connection, session, on=path)
    links: list[tuple[ClientLink, str]] = [(attach(path), path)]
    for suffix in ("$DeadLetterQueue", "$Transfer/$DeadLetterQueue"):
        links.append((connection.receiver(f"{path}/{suffix}"), f"{path}/{suffix}"))
    for entity in (path, f"{path}/$DeadLetterQueue"):
        management = RequestLinks(connection, entity)
        links += [(management.requests, entity), (management.responses, entity)]
    if "/" not in path:
        links.append((connection.sender(path), path))
    delete(broker)
    for link, entity in links:
        not_found(link, entity)
    assert refusal(lambda: attach(path)).condition == "amqp:not-found"
    assert connection.is_open


def test_deleting_a_topic_detaches_its_senders_and_management_links(
    broker: BrokerThread, connection: Connection
) -> None:
    sender, links = connection.sender("topic"), RequestLinks(connection, "topic")
    delete_topic(broker, "topic")
    for link in (sender, links.requests, links.responses):
        not_found(link, "topic")
    assert refusal(lambda: connection.sender("topic")).condition == "amqp:not-found"


def test_deleting_a_subscription_does_not_affect_the_topic_and_its_other_subscriptions(
    broker: BrokerThread, connection: Connection
) -> None:
    sender, sister = connection.sender("topic"), accept_session(connection, "s", on=SESSIONS)
    delete_subscription(broker, "topic", "sub")
    stays(sender)
    stays(sister)
    send(connection, b"x", to="topic", session="s")
    assert receive(sister, 1)[0].body == b"x"


def test_deleting_an_entity_does_not_detach_links_of_other_entities(
    broker: BrokerThread, connection: Connection
) -> None:
    with connect(broker.connection_string) as another:
        receiver = connection.receiver("queue")
        gone = accept_session(another, "s")
        delete_queue(broker, "sessions")
        not_found(gone, "sessions")
        stays(receiver)


def test_links_of_all_connections_are_detached(broker: BrokerThread, connection: Connection) -> None:
    with connect(broker.connection_string) as another:
        links = [connection.receiver("queue"), another.receiver("queue"), another.sender("queue")]
        delete_queue(broker, "queue")
        for link in links:
            not_found(link, "queue")


def test_waiting_for_a_session_of_a_deleted_entity_is_refused(broker: BrokerThread, connection: Connection) -> None:
    waiting = Waiting(connection, broker)
    delete_queue(broker, "sessions")
    not_found(waiting.link, "sessions")
    remote = waiting.link.remote
    assert remote is not None
    assert (remote.source, remote.target) == (None, None)  # which is how an attach is refused (2.6.3)


def test_a_waiting_receiver_does_not_get_a_session_of_a_deleted_queue(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="sessions", session="s")
    holder = accept_session(connection, "s")
    receive(holder, 1)
    waiting = [Waiting(connection, broker) for _ in range(10)]
    delete_queue(broker, "sessions")
    not_found(holder, "sessions")
    for each in waiting:
        not_found(each.link, "sessions")
        assert each.link.remote is not None
        assert each.link.remote.source is None


@pytest.mark.parametrize("doomed", ["queue", "other"])
def test_sending_through_one_entity_to_another_requires_both(doomed: str, start_broker: StartBroker) -> None:
    broker = start_broker(QueueDefinition(name="queue"), QueueDefinition(name="other"))
    with connect(broker.connection_string) as connection:
        connection.authenticate("queue", "other")
        sender = connection.sender("queue", properties={VIA: "other"})
        sender.send(Message(data=[b"x"]))
        delete_queue(broker, doomed)
        not_found(sender, doomed)


def test_an_entity_that_is_made_again_is_a_new_one(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"old")
    receiver = connection.receiver("queue", credit=0)
    delete_queue(broker, "queue")
    not_found(receiver, "queue")
    change(broker, lambda administration, done: administration.create_queue(QueueDefinition(name="Queue"), done))
    send(connection, b"new")
    (message,) = receive(connection.receiver("queue"), 1)
    assert message.body == b"new"


def test_messages_of_a_detached_receiver_cannot_be_settled_any_more(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x")
    receiver = connection.receiver("queue")
    messages = receive(receiver, 1)
    delete_queue(broker, "queue")
    not_found(receiver, "queue")
    with pytest.raises(LinkClosed):
        receiver.accept(messages, wait=True)
    assert connection.is_open


# --- transactions ---


class Transaction:
    """One transaction of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._coordinator = connection.sender(Coordinator())
        self.state = TransactionalState(self._coordinator.send(Message(value=Declare())).txn_id)

    def rolled_back(self) -> str:
        """Ask for a commit that must be rolled back, and return the reason."""
        with pytest.raises(SendRejected) as refused:
            self._coordinator.send(Message(value=Discharge(self.state.txn_id, False)))
        assert refused.value.condition == "amqp:transaction:rollback"
        return refused.value.description


def test_a_transaction_that_sends_to_a_deleted_entity_is_rolled_back(
    broker: BrokerThread, connection: Connection
) -> None:
    transaction = Transaction(connection)
    connection.sender("queue").send(Message(data=[b"stays out"]), state=transaction.state)
    connection.sender("topic").send(Message(data=[b"lost"]), state=transaction.state)
    delete_topic(broker, "topic")
    assert "'sb://peeklock/topic' could not be found" in transaction.rolled_back()
    assert broker.counters().active == 0


def test_a_transaction_that_schedules_at_a_deleted_entity_is_rolled_back(
    broker: BrokerThread, connection: Connection
) -> None:
    transaction = Transaction(connection)
    management = Management(connection, "topic")
    asked = Message(
        application_properties={"operation": "com.microsoft:schedule-message"},
        value={"messages": [for_later(FOREVER)]},
    )
    assert management.requester.request(asked, state=transaction.state).value == {"sequence-numbers": [1]}
    connection.sender("queue").send(Message(data=[b"stays out"]), state=transaction.state)
    delete_topic(broker, "topic")
    assert "'sb://peeklock/topic' could not be found" in transaction.rolled_back()
    assert broker.counters().active == 0


def test_a_transaction_that_settles_at_a_deleted_entity_is_rolled_back(
    broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="topic")
    receiver = connection.receiver(SUBSCRIPTION)
    messages = receive(receiver, 1)
    transaction = Transaction(connection)
    state = TransactionalState(transaction.state.txn_id, Accepted()).encode()
    receiver.settle(messages, state, wait=True)
    connection.sender("queue").send(Message(data=[b"stays out"]), state=transaction.state)
    delete_subscription(broker, "topic", "sub")
    transaction.rolled_back()
    assert broker.counters().active == 0


def test_a_transaction_that_sends_to_a_disabled_entity_is_rolled_back(
    broker: BrokerThread, connection: Connection
) -> None:
    transaction = Transaction(connection)
    connection.sender("queue").send(Message(data=[b"x"]), state=transaction.state)
    update_queue(broker, "queue", status=Status.SEND_DISABLED)
    assert "SendDisabled" in transaction.rolled_back()
    assert broker.counters().active == 0


# --- Status ---


@pytest.mark.parametrize("status", [Status.DISABLED, Status.RECEIVE_DISABLED])
def test_receivers_are_detached_when_receiving_is_disabled(
    status: Status, broker: BrokerThread, connection: Connection
) -> None:
    receivers = [
        connection.receiver("queue"),
        connection.receiver("queue/$DeadLetterQueue"),
        connection.receiver("queue", mode="receive-and-delete"),
    ]
    update_queue(broker, "queue", status=status)
    for receiver in receivers:
        failure = ended(receiver)
        assert failure.condition == DISABLED
        assert status in failure.description
    assert refusal(lambda: connection.receiver("queue")).condition == DISABLED
    update_queue(broker, "queue", status=Status.ACTIVE)
    send(connection, b"x")
    assert receive(connection.receiver("queue"), 1)[0].body == b"x"


@pytest.mark.parametrize("status", [Status.DISABLED, Status.RECEIVE_DISABLED])
def test_session_receivers_and_waiting_links_are_detached_when_receiving_is_disabled(
    status: Status, broker: BrokerThread, connection: Connection
) -> None:
    send(connection, b"x", to="sessions", session="s")
    holder, waiting = accept_session(connection, "s"), Waiting(connection, broker)
    receive(holder, 1)
    update_queue(broker, "sessions", status=status)
    assert ended(holder).condition == DISABLED
    assert ended(waiting.link).condition == DISABLED
    assert waiting.waiters == 0
    assert refusal(lambda: accept_session(connection, "s")).condition == DISABLED
    assert refusal(lambda: accept_session(connection, None)).condition == DISABLED
    update_queue(broker, "sessions", status=Status.ACTIVE)
    (message,) = receive(accept_session(connection, None), 1)
    assert message.message.header is not None
    assert message.message.header.delivery_count == 0


@pytest.mark.parametrize("status", [Status.DISABLED, Status.RECEIVE_DISABLED])
def test_receivers_of_a_subscription_are_detached_when_receiving_is_disabled(
    status: Status, broker: BrokerThread, connection: Connection
) -> None:
    receiver = connection.receiver(SUBSCRIPTION)
    update_subscription(broker, "topic", "sub", status=status)
    assert ended(receiver).condition == DISABLED
    assert refusal(lambda: connection.receiver(SUBSCRIPTION)).condition == DISABLED
    update_subscription(broker, "topic", "sub", status=Status.ACTIVE)
    assert connection.receiver(SUBSCRIPTION)


def test_messages_of_a_receiver_that_was_detached_can_still_be_settled_by_their_tokens(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    send(connection, b"x")
    receiver = connection.receiver("queue")
    (message,) = receive(receiver, 1)
    update_queue(broker, "queue", status=Status.RECEIVE_DISABLED)
    ended(receiver)
    body = {"disposition-status": "completed", "lock-tokens": Array([token_of(message)], UUID)}
    assert management.ok("update-disposition", body) == {}
    assert broker.counters().active == 0


def test_deferred_messages_are_not_fetched_while_receiving_is_disabled(
    broker: BrokerThread, connection: Connection, management: Management
) -> None:
    numbers = defer(connection, b"x")
    body = {"sequence-numbers": Array(numbers, int), "receiver-settle-mode": UByte(1)}
    update_queue(broker, "queue", status=Status.RECEIVE_DISABLED)
    assert management.refusal("receive-by-sequence-number", body)[:2] == (400, DISABLED)
    assert len(management.peek()) == 1
    update_queue(broker, "queue", status=Status.ACTIVE)
    assert management.ok("receive-by-sequence-number", body)


@pytest.mark.parametrize("status", [Status.DISABLED, Status.SEND_DISABLED])
@pytest.mark.parametrize(("entity", "update"), [("queue", update_queue), ("topic", update_topic)])
def test_messages_are_rejected_while_sending_is_disabled_and_the_link_stays_open(
    entity: str, update: Callable[..., None], status: Status, broker: BrokerThread, connection: Connection
) -> None:
    sender = connection.sender(entity)
    update(broker, entity, status=status)
    refused = rejection(sender)
    assert refused.condition == DISABLED
    assert status in refused.description
    assert refusal(lambda: connection.sender(entity)).condition == DISABLED
    body = {"messages": [for_later(FOREVER)]}
    assert Management(connection, entity).refusal("schedule-message", body)[:2] == (400, DISABLED)
    update(broker, entity, status=Status.ACTIVE)
    sender.send(Message(data=[b"x"]))
    assert broker.counters("queue" if entity == "queue" else SUBSCRIPTION).active == 1


def test_receivers_stay_attached_when_only_sending_is_disabled(broker: BrokerThread, connection: Connection) -> None:
    send(connection, b"x")
    receiver = connection.receiver("queue", credit=0)
    update_queue(broker, "queue", status=Status.SEND_DISABLED)
    assert receive(receiver, 1)[0].body == b"x"
    assert receive(connection.receiver("queue", credit=0), 0) == []


def test_senders_stay_attached_when_only_receiving_is_disabled(broker: BrokerThread, connection: Connection) -> None:
    sender = connection.sender("queue")
    update_queue(broker, "queue", status=Status.RECEIVE_DISABLED)
    sender.send(Message(data=[b"x"]))
    connection.sender("queue").send(Message(data=[b"y"]))
    assert broker.counters().active == 2


def test_other_changes_detach_no_link(broker: BrokerThread, connection: Connection) -> None:
    links: list[ClientLink] = [connection.sender("queue"), connection.receiver("queue")]
    links += [accept_session(connection, "s"), connection.receiver(SUBSCRIPTION)]
    update_queue(broker, "queue", max_delivery_count=3, user_metadata="x")
    update_queue(broker, "sessions", max_delivery_count=3)
    update_subscription(broker, "topic", "sub", max_delivery_count=3)
    Management(connection, SUBSCRIPTION).ok("remove-rule", {"rule-name": "$Default"})
    for link in links:
        stays(link)


def test_a_change_of_the_maximum_message_size_takes_effect_at_once(start_broker: StartBroker) -> None:
    broker = start_broker(QueueDefinition(name="queue"), profile=PROFILES["unlimited"])
    with connect(broker.connection_string) as connection:
        sender = connection.sender("queue")
        large = Message(data=[bytes(100_000)])
        sender.send(large)
        update_queue(broker, "queue", max_message_size_in_kilobytes=64)
        with pytest.raises(SendRejected) as refused:
            sender.send(large)
        assert refused.value.condition == "amqp:link:message-size-exceeded"
        assert "65536 bytes" in refused.value.description
        sender.send(Message(data=[bytes(60_000)]))


# --- forwarding ---


def test_receivers_are_detached_when_the_entity_forwards(broker: BrokerThread, connection: Connection) -> None:
    receiver, letters = connection.receiver(SUBSCRIPTION), connection.receiver(f"{SUBSCRIPTION}/$DeadLetterQueue")
    update_subscription(broker, "topic", "sub", forward_to="queue")
    failure = ended(receiver)
    assert failure.condition == NOT_ALLOWED
    assert "'queue'" in failure.description
    assert refusal(lambda: connection.receiver(SUBSCRIPTION)).condition == NOT_ALLOWED
    stays(letters)
    send(connection, b"x", to="topic")
    assert receive(connection.receiver("queue"), 1)[0].body == b"x"
    update_subscription(broker, "topic", "sub", forward_to=None)
    assert connection.receiver(SUBSCRIPTION)


def test_receivers_of_dead_letters_are_detached_when_dead_letters_are_forwarded(
    broker: BrokerThread, connection: Connection
) -> None:
    receiver, letters = connection.receiver(SUBSCRIPTION), connection.receiver(f"{SUBSCRIPTION}/$DeadLetterQueue")
    update_subscription(broker, "topic", "sub", forward_dead_lettered_messages_to="queue")
    assert ended(letters).condition == NOT_ALLOWED
    stays(receiver)


# --- what does not go with the entity ---


def test_sending_to_a_subscription_is_refused(broker: BrokerThread, connection: Connection) -> None:
    failure = refusal(lambda: connection.sender(SUBSCRIPTION))
    assert failure.condition == NOT_ALLOWED
    assert "send to its topic" in failure.description
    connection.authenticate(SUBSCRIPTION)
    failure = refusal(lambda: connection.sender("queue", properties={VIA: SUBSCRIPTION}))
    assert failure.condition == NOT_ALLOWED
    management = Management(connection, SUBSCRIPTION)
    status, condition, _ = management.refusal("schedule-message", {"messages": [for_later(FOREVER)]})
    assert (status, condition) == (400, NOT_ALLOWED)
    assert management.peek() == []


@pytest.mark.parametrize("suffix", ["$DeadLetterQueue", "$Transfer/$DeadLetterQueue"])
@pytest.mark.parametrize("path", ["queue", SUBSCRIPTION])
def test_sending_to_a_sub_queue_is_refused(path: str, suffix: str, connection: Connection) -> None:
    assert refusal(lambda: connection.sender(f"{path}/{suffix}")).condition == NOT_ALLOWED


@pytest.mark.parametrize("filter", [None, {Symbol("com.microsoft:session-filter"): "s"}])
def test_receiving_from_a_topic_is_refused(filter: Any, connection: Connection) -> None:
    failure = refusal(lambda: connection.receiver("topic", filter=filter))
    assert failure.condition == NOT_ALLOWED
    assert "subscriptions" in failure.description


@pytest.mark.parametrize("suffix", ["$DeadLetterQueue", "$Transfer/$DeadLetterQueue"])
def test_a_topic_has_no_sub_queues(suffix: str, connection: Connection) -> None:
    assert refusal(lambda: connection.receiver(f"topic/{suffix}")).condition == "amqp:not-found"


@pytest.mark.parametrize("name", [name.removeprefix("com.microsoft:") for name in OPERATIONS])
def test_a_topics_management_node_only_schedules_and_cancels(name: str, connection: Connection) -> None:
    management = Management(connection, "topic")
    if name == "schedule-message":
        assert management.ok(name, GOOD[name]) == {"sequence-numbers": [1]}
    elif name == "cancel-scheduled-message":
        numbers = management.ok("schedule-message", GOOD["schedule-message"])["sequence-numbers"]
        assert management.ok(name, {"sequence-numbers": numbers}) == {}
    else:
        status, condition, text = management.refusal(name, GOOD[name])
        assert (status, condition) == (400, NOT_ALLOWED)
        assert "'topic'" in text


def test_a_message_scheduled_at_a_topic_is_delivered_to_its_subscriptions(
    broker: BrokerThread, connection: Connection
) -> None:
    Management(connection, "topic").ok("schedule-message", {"messages": [for_later(broker.clock() + 5000)]})
    receiver = connection.receiver(SUBSCRIPTION)
    assert Management(connection, SUBSCRIPTION).peek() == []
    broker.advance(5)
    assert receive(receiver, 1)[0].body == b"later"


# --- addresses and claims ---


@pytest.mark.parametrize(
    "address",
    [
        "queue/$Transfer/$DeadLetterQueue",
        "QUEUE/$TRANSFER/$DEADLETTERQUEUE",
        "/queue/$transfer/$deadletterqueue",
        "topic/Subscriptions/sub/$Transfer/$DeadLetterQueue",
        "Topic/subscriptions/SUB/$Transfer/$deadletterqueue",
        "TOPIC/SUBSCRIPTIONS/SUB/$DeadLetterQueue",
        "amqps://some.host:5671/topic/subscriptions/sub/$deadLetterQueue",
    ],
)
def test_names_of_sub_queues_are_case_insensitive(address: str, broker: BrokerThread) -> None:
    with connect(broker.connection_string, sasl="plain") as connection:
        receiver = Receiver(connection, address, credit=1, mode=ReceiveMode.PEEK_LOCK, timeout=10)
        assert receiver.source is not None
        assert receiver.source.address == address
        assert Management(connection, address).peek() == []


@pytest.fixture
def guarded(start_broker: StartBroker) -> BrokerThread:
    root = AuthorizationRule(name="root", primary_key="root-key", rights=ALL_RIGHTS)
    own = AuthorizationRule(name="own", primary_key="own-key", rights=frozenset({Right.LISTEN}))
    subscriptions = (SubscriptionDefinition(name="sub"),)
    topics = (
        TopicDefinition(name="topic", subscriptions=subscriptions, authorization_rules=(own,)),
        TopicDefinition(name="topic/below", subscriptions=subscriptions),
    )
    return start_broker(namespace=NamespaceDefinition(topics=topics, authorization_rules=(root,)))


def test_a_right_to_a_topic_covers_its_subscriptions_and_no_other_topic(guarded: BrokerThread) -> None:
    own = guarded.connection_string.replace("root-key", "own-key").replace("=root;", "=own;")
    with connect(own) as connection:
        connection.authenticate("topic")
        connection._tokens.put = lambda *_: None  # type: ignore[method-assign]
        for path in (SUBSCRIPTION, f"{SUBSCRIPTION}/$DeadLetterQueue", f"{SUBSCRIPTION}/$Transfer/$DeadLetterQueue"):
            assert connection.receiver(path)
            assert Management(connection, path).peek() == []
        assert refusal(lambda: connection.receiver("topic/below/Subscriptions/sub")).condition == (
            "amqp:unauthorized-access"
        )
        assert refusal(lambda: connection.sender("topic")).condition == "amqp:unauthorized-access"


def test_a_right_to_a_subscription_gives_no_right_to_its_topic(guarded: BrokerThread) -> None:
    with connect(guarded.connection_string) as connection:
        connection.authenticate(SUBSCRIPTION)
        connection._tokens.put = lambda *_: None  # type: ignore[method-assign]
        assert connection.receiver(SUBSCRIPTION)
        assert refusal(lambda: connection.sender("topic")).condition == "amqp:unauthorized-access"


# --- idleness ---


def test_an_attached_link_prevents_deletion_on_idleness(start_broker: StartBroker) -> None:
    minutes = 5
    broker = start_broker(QueueDefinition(name="queue", auto_delete_on_idle_ms=minutes * 60_000))
    with connect(broker.connection_string) as connection:
        sender = connection.sender("queue")
        broker.advance(minutes * 60 * 3)
        assert not sender.closed
        sender.close()
        eventually(lambda: not broker.call(lambda: broker.broker.namespace.queue("queue").watchers))
        broker.advance(minutes * 60 * 2)
        eventually(lambda: not broker.call(lambda: broker.broker.namespace.queues))
        assert refusal(lambda: connection.sender("queue")).condition == "amqp:not-found"
