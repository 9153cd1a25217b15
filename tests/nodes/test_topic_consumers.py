"""Links to a topic itself, as in JMS: a subscription is found or created for each."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import FlakyStore, World, incoming
from nodes.wire import Wire, flow, frame
from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message
from peeklock.amqp.performatives import Attach, Detach, Open, Source, Target
from peeklock.amqp.types import Described, Symbol, ULong
from peeklock.broker.access import Grant
from peeklock.broker.audit import AuditEvent
from peeklock.broker.retries import RETRY_MS
from peeklock.entities.authorization import Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.store.base import StoreError

RED = "color = 'red'"
BLUE = "color = 'blue'"


@pytest.fixture
def world() -> World:
    return World(
        TopicDefinition(name="t", subscriptions=(SubscriptionDefinition(name="all"),)),
        TopicDefinition(name="u"),
        QueueDefinition(name="q"),
    )


class Client(Wire):
    """A connection of a JMS client."""

    def __init__(self, world: World, client_id: str = "me", **more: Any) -> None:
        self.handles: dict[str, int] = {}
        """The broker's handles by the names of links."""
        super().__init__(world, **more)
        self.peer.container_id = client_id
        self._names: dict[int, str] = {}
        """The names of links by our handles."""

    def consumer(self, name: str = "", topic: str = "t", *, selector: str | None = None, **more: Any) -> int:
        """Attach a link to the topic, as Qpid JMS does."""
        handle = self.next_handle()
        shared, durable = more.get("shared", False), more.get("durable", False)
        capabilities = ["topic", *(["shared"] if shared else []), *(["global"] if more.get("everybody") else [])]
        filters: dict[Any, Any] = {}
        if selector is not None:
            filters[Symbol("jms-selector")] = Described(ULong(0x0000468C00000004), selector)
        if more.get("no_local"):
            filters[Symbol("no-local")] = Described(ULong(0x0000468C00000003), "NoLocalFilter{}")
        source = Source(
            address=topic,
            durable=2 if durable else 0,
            expiry_policy="never" if durable else "link-detach",
            distribution_mode="copy" if durable else None,
            capabilities=capabilities,
            filter=filters or None,
        )
        self._names[handle] = name or f"link-{handle}"
        attach = Attach(name=self._names[handle], handle=handle, role=True, source=source, target=Target())
        self.send_bytes(frame(attach) + frame(flow(handle, 100)))
        return handle

    def durable(self, name: str = "mine", **more: Any) -> int:
        return self.consumer(name, durable=True, **more)

    def shared(self, name: str = "ours", **more: Any) -> int:
        return self.consumer(name, shared=True, **more)

    def unsubscribe(self, name: str, *, everybody: bool = False) -> Attach:
        """Attach a link without a source, close it, and return the answer to the attach."""
        handle = self.next_handle()
        desired = ["shared", "global"] if everybody else None
        self.send_bytes(
            frame(Attach(name=name, handle=handle, role=True, target=Target(), desired_capabilities=desired))
        )
        (answer,) = self.take(Attach)
        assert isinstance(answer, Attach)
        if answer.source is not None:
            self.close(handle)
        return answer

    def read_output(self) -> None:
        super().read_output()
        self.handles |= {each.name: each.handle for each, _ in self.heard if isinstance(each, Attach)}

    def detach(self, handle: int) -> None:
        self.send_bytes(frame(Detach(handle=handle, closed=False)))

    def close(self, handle: int) -> None:
        self.send_bytes(frame(Detach(handle=handle, closed=True)))

    def got(self, handle: int) -> list[str]:
        self.read_output()
        theirs = self.handles[self._names[handle]]
        return [Message.decode(encoded).body.decode() for _, encoded in self.received(theirs)]

    def refusal(self) -> str:
        self.take(Attach)
        (detach,) = self.take(Detach)
        assert detach.error is not None
        return str(detach.error.condition)


@pytest.fixture
def client(world: World) -> Client:
    return Client(world)


def subscriptions(world: World, topic: str = "t") -> list[str]:
    return sorted(each.definition.name for each in world.topic(topic).subscriptions.values())


def publish(world: World, *colors: str, to: str = "t") -> None:
    for color in colors:
        assert world.send_together(incoming(color, application_properties={"color": color}), to=to) == [None]


def may(client: Client, *rights: Right, path: str = "") -> None:
    client.peer.grants.add(Grant(path, "", frozenset(rights), None))


# --- as long as there is a link ---


def test_a_consumer_of_a_topic_gets_messages_sent_while_it_is_attached(world: World, client: Client) -> None:
    publish(world, "early")
    first, second = client.consumer(), client.consumer()
    publish(world, "a", "b")
    assert client.got(first) == ["a", "b"]
    assert client.got(second) == ["a", "b"]
    assert len(subscriptions(world)) == 3
    client.close(first)
    world.run()
    assert len(subscriptions(world)) == 2
    client.peer.on_closed()
    world.run()
    assert subscriptions(world) == ["all"]


def test_a_selector_is_the_rule_of_the_subscription(world: World, client: Client) -> None:
    handle = client.consumer(selector=RED)
    publish(world, "red", "blue", "red")
    assert client.got(handle) == ["red", "red"]


def test_a_filter_that_is_not_applied_is_not_confirmed(client: Client) -> None:
    client.consumer(selector=RED, no_local=True)
    (answer,) = client.take(Attach)
    assert list(answer.source.filter) == ["jms-selector"]
    assert answer.source.address == "t"


def test_an_invalid_selector_of_a_topic_consumer_is_refused(world: World, client: Client) -> None:
    client.consumer(selector="color = ")
    assert client.refusal() == Condition.INVALID_FIELD
    assert subscriptions(world) == ["all"]


def test_a_link_to_a_topic_without_the_capability_is_refused(client: Client) -> None:
    client.receiver("t")
    assert client.refusal() == Condition.NOT_ALLOWED


def test_a_link_detached_before_its_subscription_is_created_leaves_none(world: World, client: Client) -> None:
    source = Source(address="t", capabilities=["topic"])
    attach = Attach(name="gone", handle=0, role=True, source=source, target=Target())
    client.send_bytes(frame(attach) + frame(Detach(handle=0, closed=True)))
    world.run()
    assert subscriptions(world) == ["all"]
    assert len(world.namespace.temporary) == 0


def test_passing_subscriptions_do_not_survive_a_restart_and_durable_ones_do(world: World, client: Client) -> None:
    client.consumer()
    client.durable()
    publish(world, "a")
    again = world.restarted()
    assert subscriptions(again) == ["all", "mine$me$D"]
    assert again.subscription("mine$me$D").counters.active == 1


def test_administrators_see_durable_subscriptions_and_no_passing_ones(world: World, client: Client) -> None:
    client.consumer()
    client.durable()
    assert [each.path for each in world.administration.subscriptions("t")] == [
        "t/Subscriptions/all",
        "t/Subscriptions/mine$me$D",
    ]
    assert world.runtime("t").subscription_count == 2


# --- durable ---


def test_a_durable_subscription_keeps_messages_without_a_consumer(world: World, client: Client) -> None:
    handle = client.durable()
    client.detach(handle)
    publish(world, "a")
    assert subscriptions(world) == ["all", "mine$me$D"]
    again = Client(world)
    assert again.got(again.durable()) == ["a"]


def test_a_closed_link_does_not_end_a_durable_subscription(world: World, client: Client) -> None:
    client.close(client.durable())
    world.run()
    assert subscriptions(world) == ["all", "mine$me$D"]


def test_a_client_may_want_its_durable_subscriptions_deleted_when_idle(world: World, client: Client) -> None:
    opened = client.connection.remote_open
    assert opened is not None
    opened.properties = {"com.microsoft:subscriber-auto-delete-on-idle-duration-in-seconds": 600}
    client.detach(client.durable())
    assert world.subscription("mine$me$D").definition.auto_delete_on_idle_ms == 600_000
    world.advance(600_000)
    assert subscriptions(world) == ["all"]
    client.take(Detach)
    opened.properties = {"com.microsoft:subscriber-auto-delete-on-idle-duration-in-seconds": 1}
    client.durable()
    assert client.refusal() == Condition.ARGUMENT_ERROR


def test_each_client_has_durable_subscriptions_of_its_own(world: World, client: Client) -> None:
    other = Client(world, "you")
    first, second = client.durable(), other.durable()
    publish(world, "a")
    assert client.got(first) == ["a"]
    assert other.got(second) == ["a"]


def test_characters_that_names_do_not_have_are_escaped(world: World) -> None:
    client = Client(world, "ID:é/1")
    client.durable("a name$~")
    assert "a~20name~24~7e$ID~3a~c3~a9~2f1$D" in subscriptions(world)


def test_a_client_id_that_is_too_long_is_refused(world: World) -> None:
    client = Client(world, "x" * 129)
    client.durable()
    assert client.refusal() == Condition.ARGUMENT_ERROR


def test_an_unshared_durable_subscription_has_one_consumer(world: World, client: Client) -> None:
    first = client.durable()
    other = Client(world)
    other.durable()
    assert other.refusal() == Condition.RESOURCE_LOCKED
    other.durable(selector=RED)
    assert other.refusal() == Condition.RESOURCE_LOCKED
    client.detach(first)
    other.durable()
    assert not other.take(Detach)


def test_another_selector_makes_a_durable_subscription_anew(world: World, client: Client) -> None:
    client.detach(client.durable())
    publish(world, "red")
    client.take(Detach)
    handle = client.durable(selector=RED)
    assert world.subscription("mine$me$D").counters.active == 0
    publish(world, "blue", "red")
    assert client.got(handle) == ["red"]
    client.detach(handle)
    publish(world, "red")
    client.take(Detach)
    assert client.got(client.durable(selector=RED)) == ["red"]


def test_another_topic_makes_a_durable_subscription_anew(world: World, client: Client) -> None:
    client.detach(client.durable())
    client.take(Detach)
    handle = client.durable(topic="u")
    assert subscriptions(world) == ["all"]
    assert subscriptions(world, "u") == ["mine$me$D"]
    publish(world, "a", to="u")
    assert client.got(handle) == ["a"]


def test_a_subscription_with_a_consumer_cannot_move_to_another_topic(world: World, client: Client) -> None:
    client.durable()
    other = Client(world)
    other.durable(topic="u")
    assert other.refusal() == Condition.RESOURCE_LOCKED


def test_another_tenants_subscription_of_the_same_name_is_unchanged(world: World, client: Client) -> None:
    client.detach(client.durable())
    other = Client(world)
    may(other)
    may(other, *Right, path="u")
    handle = other.durable(topic="u")
    assert not other.take(Detach)
    assert subscriptions(world) == ["all", "mine$me$D"]
    assert subscriptions(world, "u") == ["mine$me$D"]
    other.detach(handle)
    other.take(Attach)
    assert other.unsubscribe("mine").source is not None
    world.run()
    assert subscriptions(world) == ["all", "mine$me$D"]
    assert subscriptions(world, "u") == []


def test_creating_a_subscription_requires_manage_and_receiving_requires_listen(world: World, client: Client) -> None:
    client.detach(client.durable())
    client.shared()
    client.take(Detach)
    other = Client(world)
    may(other, Right.LISTEN)
    other.shared()
    other.detach(other.durable())
    (detach,) = other.take(Detach)
    assert detach.error is None
    for attempt in (
        lambda: other.consumer(),
        lambda: other.shared("another"),
        lambda: other.durable("another"),
        lambda: other.durable(selector=RED),
        lambda: other.durable(topic="u"),
        lambda: other.unsubscribe("mine"),
    ):
        attempt()
        assert other.refusal() == Condition.UNAUTHORIZED_ACCESS
    may(other, Right.SEND)
    other.shared()
    assert other.refusal() == Condition.UNAUTHORIZED_ACCESS
    assert subscriptions(world) == ["all", "mine$me$D", "ours$me$ND"]


def test_a_temporary_topic_is_its_connections_own(world: World, client: Client) -> None:
    may(client, Right.LISTEN)
    client.attach(role=False, source=Source(), target=Target(dynamic=True, capabilities=["temporary-topic"]))
    (answer,) = client.take(Attach)
    handle = client.consumer(topic=answer.target.address)
    publish(world, "a", to=answer.target.address)
    assert client.got(handle) == ["a"]


def test_a_subscription_that_was_made_by_an_administrator_keeps_its_rules(world: World, client: Client) -> None:
    rule = RuleDefinition(name="red", filter_kind=FilterKind.SQL, sql_expression=RED)
    made = SubscriptionDefinition(name="mine$me$D", rules=(rule,))
    assert world.administer(world.administration.create_subscription, "t", made) is None
    may(client, Right.LISTEN)
    handle = client.durable()
    publish(world, "blue", "red")
    assert client.got(handle) == ["red"]
    client.detach(handle)
    client.take(Detach)
    client.durable(selector=BLUE)
    assert client.refusal() == Condition.NOT_ALLOWED


def test_an_update_by_an_administrator_leaves_a_subscription_one_of_jms(world: World, client: Client) -> None:
    client.detach(client.durable(selector=RED))
    client.take(Detach)
    wanted = SubscriptionDefinition(name="mine$me$D", lock_duration_ms=30_000)
    assert world.administer(world.administration.update_subscription, "t", wanted) is None
    client.shared("mine", durable=True)
    assert client.refusal() == Condition.NOT_ALLOWED
    client.durable(selector=BLUE)
    assert not client.take(Detach)


# --- shared ---


def test_a_shared_durable_subscription_is_read_by_several(world: World, client: Client) -> None:
    other = Client(world, "other")
    first = client.shared("ours|global", durable=True, everybody=True)
    second = other.shared("ours|global", durable=True, everybody=True)
    third = client.shared("ours|global2", durable=True, everybody=True)
    assert subscriptions(world) == ["all", "ours$$D"]
    publish(world, "a", "b", "c")
    got = [client.got(first), other.got(second), client.got(third)]
    assert sorted(got) == [["a"], ["b"], ["c"]]


def test_a_shared_passing_subscription_goes_with_its_last_link(world: World, client: Client) -> None:
    other = Client(world, "other")
    first = client.shared("ours|global-volatile1", everybody=True)
    second = other.shared("ours|global-volatile1", everybody=True)
    assert subscriptions(world) == ["all", "ours$$ND"]
    client.close(first)
    world.run()
    publish(world, "a")
    assert other.got(second) == ["a"]
    other.close(second)
    world.run()
    assert subscriptions(world) == ["all"]


def test_clients_of_one_id_share_what_is_not_for_everybody(world: World, client: Client) -> None:
    other, stranger = Client(world), Client(world, "you")
    for each in (client, other, stranger):
        each.shared("ours", durable=True)
    assert subscriptions(world) == ["all", "ours$me$D", "ours$you$D"]


def test_a_shared_subscription_that_is_going_is_made_again(world: World, client: Client) -> None:
    handle = client.shared()
    other = Client(world)
    data = frame(Detach(handle=handle, closed=True))
    client.peer.handle(client.connection.receive(data))  # and nothing is in the store yet
    again = other.shared()
    world.run()
    publish(world, "a")
    assert other.got(again) == ["a"]
    assert subscriptions(world) == ["all", "ours$me$ND"]


def test_two_that_ask_at_once_share_one_subscription(world: World, client: Client) -> None:
    other = Client(world)
    world.run, run = lambda: None, world.run  # type: ignore[method-assign]
    handles = [each.shared() for each in (client, other)]
    world.run = run  # type: ignore[method-assign]
    world.run()
    publish(world, "a", "b")
    assert sorted([client.got(handles[0]), other.got(handles[1])]) == [["a"], ["b"]]
    assert subscriptions(world) == ["all", "ours$me$ND"]


def test_another_selector_is_refused_while_others_share(world: World, client: Client) -> None:
    client.shared("ours", durable=True)
    other = Client(world)
    other.shared("ours", durable=True, selector=RED)
    assert other.refusal() == Condition.RESOURCE_LOCKED


def test_shared_and_unshared_durable_subscriptions_do_not_mix(world: World, client: Client) -> None:
    client.detach(client.durable())
    client.take(Detach)
    client.shared("mine", durable=True)
    assert client.refusal() == Condition.NOT_ALLOWED


# --- unsubscribing ---


def test_a_link_without_a_source_finds_a_durable_subscription_and_deletes_it_when_closed(
    world: World, client: Client
) -> None:
    client.detach(client.durable())
    client.shared("ours|global", durable=True, everybody=True)
    client.peer.on_closed()
    again = Client(world)
    found = again.unsubscribe("mine").source
    assert found is not None
    assert found.address == "t"
    assert again.unsubscribe("ours|global", everybody=True).source is not None
    world.run()
    assert subscriptions(world) == ["all"]


def test_a_link_without_a_source_that_finds_nothing_is_refused(client: Client) -> None:
    assert client.unsubscribe("mine").source is None
    assert client.refusal() == Condition.NOT_FOUND


def test_a_look_up_that_is_only_detached_deletes_nothing(world: World, client: Client) -> None:
    client.detach(client.durable())
    handle = client.next_handle()
    client.send_bytes(frame(Attach(name="mine", handle=handle, role=True, target=Target())))
    client.take(Attach, Detach)
    client.detach(handle)
    assert len(client.take(Detach)) == 1
    assert subscriptions(world) == ["all", "mine$me$D"]


def closing(client: Client, store: FlakyStore) -> None:
    """Close a link without a source for the subscription `mine`, while the store holds back commits."""
    handle = client.next_handle()
    client.send_bytes(frame(Attach(name="mine", handle=handle, role=True, target=Target())))
    client.take(Attach, Detach)
    store.held = []
    client.close(handle)


def test_the_close_is_answered_when_the_deletion_is_durable(world: World, client: Client) -> None:
    store = world.store
    assert isinstance(store, FlakyStore)
    client.detach(client.durable())
    closing(client, store)
    assert client.take(Detach) == []
    store.release_commits()
    world.run()
    client.read_output()
    (answer,) = client.take(Detach)
    assert (answer.closed, answer.error) == (True, None)
    assert subscriptions(world) == ["all"]


def test_the_detach_has_the_reason_why_the_subscription_was_not_deleted(world: World, client: Client) -> None:
    store = world.store
    assert isinstance(store, FlakyStore)
    client.detach(client.durable())
    closing(client, store)
    store.fails = lambda changes: StoreError("the disk is broken") if changes.dropped_entities else None
    store.release_commits()
    world.run()
    client.read_output()
    (answer,) = client.take(Detach)
    assert answer.error is not None
    assert subscriptions(world) == ["all", "mine$me$D"]
    store.fails = lambda changes: None
    assert client.unsubscribe("mine").source is not None
    assert subscriptions(world) == ["all"]


def test_a_client_that_disconnects_before_the_answer_affects_no_other_client(world: World, client: Client) -> None:
    store = world.store
    assert isinstance(store, FlakyStore)
    client.detach(client.durable())
    closing(client, store)
    client.peer.on_closed()
    store.release_commits()
    world.run()
    assert subscriptions(world) == ["all"]


def test_a_consumer_that_comes_between_look_up_and_close_keeps_the_subscription(world: World, client: Client) -> None:
    client.detach(client.durable())
    handle = client.next_handle()
    client.send_bytes(frame(Attach(name="mine", handle=handle, role=True, target=Target())))
    Client(world).durable()
    client.take(Attach, Detach)
    client.close(handle)
    (answer,) = client.take(Detach)
    assert answer.error is not None
    assert answer.error.condition == Condition.RESOURCE_LOCKED
    assert subscriptions(world) == ["all", "mine$me$D"]


def test_a_subscription_with_a_consumer_is_not_deleted(world: World, client: Client) -> None:
    client.durable()
    other = Client(world)
    assert other.unsubscribe("mine").source is None
    assert other.refusal() == Condition.RESOURCE_LOCKED
    assert subscriptions(world) == ["all", "mine$me$D"]


def test_a_subscription_can_be_made_right_after_it_was_deleted(world: World, client: Client) -> None:
    client.detach(client.durable())
    publish(world, "old")
    handle = client.next_handle()
    client.send_bytes(frame(Attach(name="mine", handle=handle, role=True, target=Target())))
    client.take(Attach, Detach)
    data = frame(Detach(handle=handle, closed=True))
    client.peer.handle(client.connection.receive(data))  # and nothing is in the store yet
    again = client.durable()
    world.run()
    publish(world, "new")
    assert client.got(again) == ["new"]


class Audits:
    """An audit log that keeps its events."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, str, str]] = []

    def record(self, event: AuditEvent) -> None:
        self.recorded.append((event.action, event.outcome, event.entity))


def test_durable_subscriptions_that_are_made_and_deleted_are_audited(world: World) -> None:
    audits = Audits()
    client = Client(world, audit=audits)
    client.consumer()
    client.detach(client.durable())
    client.take(Attach)
    client.unsubscribe("mine")
    may(client, Right.LISTEN)
    client.durable("another")
    path = "t/Subscriptions/mine$me$D"
    assert audits.recorded == [
        ("create subscription", "ok", path),
        ("delete subscription", "ok", path),
        ("receive", "denied", "t/Subscriptions/another$me$D"),
    ]


# --- temporary topics ---


def test_a_temporary_topic_is_received_from_by_its_connection_alone(world: World, client: Client) -> None:
    client.attach(role=False, source=Source(), target=Target(dynamic=True, capabilities=["temporary-topic"]))
    (answer,) = client.take(Attach)
    topic = answer.target.address
    first, second = client.consumer(topic=topic), client.consumer(topic=topic)
    publish(world, "a", to=topic)
    assert client.got(first) == ["a"]
    assert client.got(second) == ["a"]
    other = Client(world)
    other.consumer(topic=topic)
    assert other.refusal() == Condition.NOT_ALLOWED
    client.peer.on_closed()
    world.advance(RETRY_MS)
    assert [each.path for each in world.namespace.topics] == ["t", "u"]
    assert len(world.namespace.temporary) == 0


def test_the_client_id_is_the_id_of_the_container(world: World) -> None:
    wire = Wire(world, opened=False)
    assert wire.peer.container_id == ""
    wire.send_bytes(b"AMQP\x00\x01\x00\x00" + frame(Open(container_id="my-client")))
    assert wire.peer.container_id == "my-client"
