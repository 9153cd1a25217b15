"""Ids of entities are used again, and an entity has no data of the entity that had its id before."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest

from broker.world import (
    MINUTE,
    SECOND,
    AwaitedStore,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    body,
    delivered,
    session_queue,
    subscription,
    topic,
)
from peeklock.amqp.message import Properties
from peeklock.broker.entity_ids import EntityIds
from peeklock.broker.errors import (
    BrokerError,
    EntityExists,
    EntityNotFound,
    MessageLockLost,
    QuotaExceeded,
    StorageFailed,
)
from peeklock.broker.journal import Journal
from peeklock.broker.locks import Lock
from peeklock.broker.queue import Queue
from peeklock.broker.topic import Topic
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition
from peeklock.store.base import MAX_ENTITY_ID, StoredMessage, StoreError
from peeklock.store.disk.index.writer import Writer

FEW = 16
"""A number of ids so small that all of them are used repeatedly."""


def queue(name: str = "q", **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, **settings)


def create(world: World, definition: QueueDefinition) -> None:
    assert world.administer(world.administration.create_queue, definition) is None


def delete(world: World, name: str) -> None:
    assert world.administer(world.administration.delete_queue, name) is None


def ids_of(world: World, path: str) -> list[int]:
    container = world.namespace.entity(path)
    parts = [container, container.dead_letters, container.transfer_dead_letters]
    return [part.id for part in parts if part is not None]


# --- which id is next ---


class Ids:
    """Ids without a namespace, with a store that answers on request."""

    def __init__(self, highest: int) -> None:
        self.store = FlakyStore()
        self.store.open()
        self.turn: list[Any] = []
        self.journal = Journal(self.store, self.turn.append)
        self.ids = EntityIds(highest, self.journal, self.store)


def test_an_id_is_reused_only_after_all_other_ids() -> None:
    ids = Ids(7).ids
    assert ids.take(3) == [1, 2, 3]
    ids.retire([1, 2, 3])
    assert ids.take(3) == [4, 5, 6]
    assert ids.take(3) == [7, 1, 2]
    ids.retire([5])
    assert ids.take(2) == [3, 5]
    assert ids.last == 5


def test_without_free_ids_no_id_is_assigned() -> None:
    ids = Ids(7).ids
    ids.take(3)
    ids.take(3)
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match=r"has 6 entities.*at most 7 can exist at once"):
            ids.take(3)
    assert ids.take(1) == [7]
    ids.release([2])
    assert ids.take(1) == [2]


def test_the_search_for_free_ids_continues_after_a_restart() -> None:
    ids = Ids(10).ids
    ids.resume([1, 2, 6, 7], 5)
    assert ids.take(3) == [8, 9, 10]
    assert ids.take(3) == [3, 4, 5]
    ids.resume([1, 4], 0)  # from before that was written down
    assert ids.take(1) == [5]


def test_an_id_is_free_after_pending_commits() -> None:
    world = Ids(2)
    world.store.held = []
    world.ids.take(2)
    world.journal.rest.then(lambda _, error: None, None)
    world.turn.pop()()
    world.journal.rest.then(lambda _, error: None, None)
    world.ids.retire([1])
    for _ in range(2):
        with pytest.raises(QuotaExceeded):
            world.ids.take(1)
        world.store.release_commits()
        world.store.held = []
        world.journal.flush()
    assert not world.store.held
    assert world.ids.take(1) == [1]


def test_an_id_is_free_after_pending_reads() -> None:
    world = Ids(3)
    world.ids.take(3)
    world.store.held_answers = []
    world.ids.retire([1])
    world.ids.retire([2])
    with pytest.raises(QuotaExceeded):
        world.ids.take(1)
    world.store.held_answers.pop(0)()
    assert world.ids.take(1) == [1]
    with pytest.raises(QuotaExceeded):
        world.ids.take(1)
    world.store.held_answers.pop(0)()
    assert world.ids.take(1) == [2]


# --- in a namespace ---


def test_any_number_of_entities_can_be_created_and_deleted_over_time(store: FlakyStore | AwaitedStore) -> None:
    """A client that may manage one topic cannot prevent others from creating entities."""
    world = World(queue("other"), topic("t"), store=store, highest_entity_id=FEW)
    given: set[int] = set()
    for turn in range(3 * FEW):
        name = f"s{turn}"
        assert world.administer(world.administration.create_subscription, "t", subscription(name)) is None
        given.update(ids_of(world, f"t/Subscriptions/{name}"))
        assert world.administer(world.administration.delete_subscription, "t", name) is None
        if turn % 10 == 9:
            world = world.restarted()
            create(world, queue("new"))
            assert world.send("hello", to="new") == [None]
            delete(world, "new")
    assert len(given) == FEW - 5, "the namespace, the queue and the topic keep theirs"
    world.check()


def test_as_many_entities_as_there_are_ids_can_exist_at_once() -> None:
    world = World(queue("first"), highest_entity_id=FEW)
    for number in range(4):
        create(world, queue(f"q{number}"))
    for _ in range(2):
        with pytest.raises(QuotaExceeded, match="Delete entities"):
            world.administration.create_queue(queue("one-too-many"), lambda error: None)
    assert world.send("hello", to="q3") == [None]
    delete(world, "q3")
    create(world, queue("one-too-many"))  # and its name is not taken by the attempts
    world.check()


def test_a_creation_that_failed_gives_its_ids_back() -> None:
    store = FlakyStore()
    world = World(queue("first"), store=store, highest_entity_id=7)
    store.fails = lambda changes: StoreError("not now")
    for _ in range(5):
        outcome = world.administer(world.administration.create_queue, queue())
        assert isinstance(outcome, StorageFailed)
    store.fails = lambda changes: None
    create(world, queue())


def test_two_creations_at_once_have_ids_of_their_own() -> None:
    world = World(queue("first"), highest_entity_id=FEW)
    outcomes: list[BrokerError | None] = []
    for number in range(4):
        world.administration.create_queue(queue(f"q{number}"), outcomes.append)
    world.run()
    assert outcomes == [None] * 4
    world.check()
    ids = [id for path in ("first", "q0", "q1", "q2", "q3") for id in ids_of(world, path)]
    assert len(set(ids)) == 15


def test_by_default_there_are_half_a_million() -> None:
    world = World()
    assert world.namespace._catalogue._ids._highest == MAX_ENTITY_ID == 524_287


def test_a_body_of_a_deleted_topic_is_not_used_for_another_message(
    store: FlakyStore | AwaitedStore,
) -> None:
    """The second topic has the id of the first, and its sequence numbers start again."""
    forwarding = SubscriptionDefinition(name="forwarding", forward_to="kept")
    world = World(queue("kept"), topic("t", "a", forwarding), store=store, highest_entity_id=FEW)
    first = world.topic().id
    for turn in range(3):
        old, new = f"{turn} old" * 100, f"{turn} new" * 100
        assert world.send(old, to="t") == [None]
        assert world.administer(world.administration.delete_topic, "t") is None
        while True:
            assert world.administer(world.administration.create_topic, topic()) is None
            if world.topic().id == first:
                break
            assert world.administer(world.administration.delete_topic, "t") is None
        for each in (SubscriptionDefinition(name="a"), forwarding):
            assert world.administer(world.administration.create_subscription, "t", each) is None
        assert world.send(new, to="t") == [None]
        assert world.bodies("t/Subscriptions/a") == [new]
        assert world.bodies("kept")[-2:] == [old, new]
        world.check()
        if turn:
            world = world.restarted()
        assert world.bodies("t/Subscriptions/a") == [new]
        assert world.bodies("kept")[-2:] == [old, new]
        assert len({each.body.key for each in world.stored("kept") if each.body is not None}) == 2 * (turn + 1)


# --- what is still on its way for an entity that was deleted ---


class LateStore(FlakyStore):
    """A store whose late reads include later commits, as is possible on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.late: list[Any] | None = None

    def _read(self, id: int, question: Any, done: Any) -> None:
        if self.late is None:
            super()._read(id, question, done)
        else:
            self.late.append(lambda: FlakyStore._read(self, id, question, done))

    def ask_now(self) -> None:
        late, self.late = self.late or [], None
        for question in late:
            question()


def churn(world: World, name: str = "new") -> bool:
    """Return whether a queue can be created in a namespace that has ids for only one more."""
    try:
        create(world, queue(name))
    except QuotaExceeded:
        return False
    assert world.send("other's", to=name) == [None]
    return True


def test_a_read_that_is_late_is_not_answered_with_messages_of_the_next_entity() -> None:
    store = LateStore()
    world = World(session_queue("q"), store=store, highest_entity_id=4)
    world.send("mine", to="q", session_id="x")
    old = world.sessions("q")
    peeked: list[Any] = []
    store.late = []
    old.peek(1, 10, None, peeked.append)
    old.states.list_sessions(None, 0, 10, peeked.append)
    delete(world, "q")
    assert not churn(world)
    store.ask_now()
    assert peeked == [[], []]
    assert churn(world)
    old.peek(1, 10, None, peeked.append)
    old.states.list_sessions(None, 0, 10, peeked.append)
    world.run()
    assert peeked == [[], [], [], []]
    world.check()


def test_a_settlement_that_is_tried_again_after_the_deletion_does_not_meet_the_next_entity() -> None:
    store = FlakyStore()
    world = World(queue(), highest_entity_id=4, store=store)
    world.send("one", "two")
    old = world.queue()
    receiver = Receiver(world, old)
    store.held = []
    deleted: list[BrokerError | None] = []
    world.administration.delete_queue("q", deleted.append)
    world.run()
    outcomes: list[BrokerError | None] = []
    sends = world.namespace.journal.sends
    sends.changes.appends.append((9, StoredMessage(1, b"for nobody", 0)))
    sends.then(lambda _, error: outcomes.append(error), None)
    old.settlements.complete(receiver.locks[0], outcomes.append)
    world.run()
    assert len(store.held) == 2
    store.held.pop(0)()
    assert deleted == [None]
    assert not churn(world)
    store.held.pop(0)()
    assert not outcomes, "the store refused them together; it is asked whether it works"
    store.held.pop(0)()
    assert not outcomes, "it does: each is tried alone"
    assert len(store.held) == 2
    assert not churn(world)
    store.release_commits()
    world.run()
    assert outcomes[1] is None
    assert churn(world)
    for lock in receiver.locks:
        with pytest.raises(MessageLockLost):
            old.settlements.complete(lock, outcomes.append)
    world.check()
    assert world.bodies("new") == ["other's"]


def test_a_settlement_that_fails_after_the_deletion_is_not_made_on_the_next_entity() -> None:
    store = FlakyStore()
    world = World(queue(), highest_entity_id=4, store=store)
    world.send("one")
    old = world.queue()
    (lock,) = Receiver(world, old).locks
    store.held = []
    world.administration.delete_queue("q", lambda error: None)
    world.run()
    outcomes: list[BrokerError | None] = []
    old.settlements.complete(lock, outcomes.append)
    world.run()
    store.held.pop(0)()
    store.fails = lambda changes: StoreError("not now")
    store.release_commits()
    store.fails = lambda changes: None
    assert isinstance(outcomes.pop(), StorageFailed)
    world.run()
    assert churn(world)
    with suppress(BrokerError):  # the lock is still there: what was to end it has failed
        old.settlements.complete(lock, outcomes.append)
    world.advance(10 * MINUTE)
    world.check()
    assert world.bodies("new") == ["other's"]


# --- all of it at once ---


class Churn:
    """Entities are created and deleted under few names and with few ids while clients work.

    Every message has a number of its own, and every entity knows which one was the last when it was created: a lower
    number in it is a message of its predecessor.
    """

    def __init__(self, seed: int, store: FlakyStore | AwaitedStore) -> None:
        self.random = Random(seed)
        self.world = World(queue("kept"), store=store, highest_entity_id=25)
        self.number = 0
        self.born = {"kept": 0}
        self.ids: dict[int, int] = {}
        """The number of times that each id was assigned."""
        self.receivers: list[tuple[str, int, Receiver | SessionReceiver]] = []
        self.stale: list[tuple[Any, Lock]] = []

    def paths(self) -> list[str]:
        return [path for path in self.born if self.world.namespace._catalogue.has(path)]

    def step(self) -> None:
        acts = [self.create, self.delete, self.send, self.send, self.receive, self.settle, self.settle, self.pass_time]
        self.random.choice([*acts, self.set_state, self.subscribe, self.settle_stale, self.peek])()
        if self.random.random() < 0.03:
            self.restart()
        for path, born, receiver in self.receivers:
            for message in receiver.got:
                self.is_of(path, born, message)

    def is_of(self, path: str, born: int, message: StoredMessage) -> None:
        read = delivered(message)
        text = body(message)
        assert read.properties is not None
        assert read.properties.message_id in (f"id-{text[:20]}", "same"), path
        assert len(set(text[8:])) == 1, "bytes of one message"
        assert int(text[:8]) > born, path

    def text(self) -> str:
        self.number += 1
        return f"{self.number:08}" + self.random.choice("abcdefgh") * self.random.choice([10, 2000])

    def administer(self, change: Any, *arguments: Any) -> bool:
        try:
            return self.world.administer(change, *arguments) is None
        except (QuotaExceeded, EntityExists):
            return False

    def note_born(self, path: str) -> None:
        for part in (path, f"{path}/$DeadLetterQueue"):
            self.born[part] = self.number
        for id in ids_of(self.world, path):
            self.ids[id] = self.ids.get(id, 0) + 1

    def create(self) -> None:
        name = self.random.choice(["a", "b", "c", "s", "d", "f", "t"])
        administration = self.world.administration
        created = self.administer(
            *{
                "t": (administration.create_topic, topic()),
                "s": (administration.create_queue, session_queue("s", lock_duration_ms=20 * SECOND)),
                "d": (administration.create_queue, queue("d", requires_duplicate_detection=True)),
                "f": (administration.create_queue, queue("f", forward_to="kept")),
            }.get(name, (administration.create_queue, queue(name, dead_lettering_on_message_expiration=True)))
        )
        if created:
            self.note_born(name)
            if name == "d":
                self.world.send(self.text(), to="d", properties=Properties(message_id="same"))
                assert self.world.runtime("d").active == 1, "the predecessor may have seen that id"

    def subscribe(self) -> None:
        if "t" in self.paths():
            name = self.random.choice(["x", "y", "z"])
            definition = SubscriptionDefinition(name=name, forward_to="kept" if name == "z" else None)
            if self.administer(self.world.administration.create_subscription, "t", definition):
                self.note_born(f"t/Subscriptions/{name}")

    def delete(self) -> None:
        path = self.random.choice([each for each in self.paths() if "$" not in each])
        if path == "kept":
            return
        queues = [each for each in self.world.namespace.entities if each.path.startswith(path)]
        administration = self.world.administration
        if path.startswith("t/"):
            assert self.world.administer(administration.delete_subscription, "t", path.rpartition("/")[2]) is None
        elif path == "t":
            assert self.world.administer(administration.delete_topic, path) is None
        else:
            assert self.world.administer(administration.delete_queue, path) is None
        for container in queues:
            with pytest.raises(EntityNotFound):
                container.stage_sends(self.world.namespace.journal.sends, [], lambda error: None)
        for _, _, receiver in self.receivers:
            self.stale += [(receiver._queue, lock) for lock in receiver.locks if receiver._queue in queues]
        self.receivers = [each for each in self.receivers if each[2]._queue not in queues]

    def send(self) -> None:
        to = self.random.choice([each for each in self.paths() if "/" not in each])
        for _ in range(self.random.randrange(1, 5)):
            fields: dict[str, Any] = {}
            if to == "s":
                fields["session_id"] = self.random.choice(["x", "y"])
            if self.random.random() < 0.2:
                fields["ttl"] = SECOND
            if to != "t" and self.random.random() < 0.2:  # or a subscription that comes later would have it
                fields["at"] = self.world.clock() + SECOND
            assert self.world.send(self.text(), to=to, **fields) == [None]

    def receive(self) -> None:
        path = self.random.choice([each for each in self.paths() if each not in ("t", "f") and not each.endswith("/z")])
        queue = self.world.namespace.queue(path)
        receiver: Receiver | SessionReceiver
        if isinstance(queue, Queue):
            receiver = Receiver(
                self.world, queue, credit=self.random.randrange(1, 6), deletes=self.random.random() < 0.2
            )
        else:
            receiver = SessionReceiver(self.world, credit=3, time_out=SECOND)
        self.receivers.append((path, self.born[path], receiver))

    def settle(self) -> None:
        for _, _, receiver in self.receivers[-3:]:
            for lock in receiver.locks[-4:]:
                how = self.random.choice(["complete", "abandon", "defer", "dead_letter"])
                with suppress(BrokerError):
                    getattr(receiver._queue.settlements, how)(lock, lambda error: None)
        self.world.run()

    def settle_stale(self) -> None:
        """Settle messages of receivers whose entity was deleted."""
        for container, lock in self.stale[-20:]:
            how = self.random.choice(["complete", "abandon", "defer", "dead_letter"])
            with suppress(BrokerError):
                getattr(container.settlements, how)(lock, lambda error: None)
        self.world.run()

    def peek(self) -> None:
        for container in [*self.world.namespace.entities, *(container for container, _ in self.stale[-5:])]:
            if not isinstance(container, Topic):
                found: list[Any] = []
                container.peek(1, 10, None, found.append)
                self.world.run()
                for message in found[0]:
                    self.is_of(container.path, self.born.get(container.path, 0), message)
                    assert not container.is_deleting

    def set_state(self) -> None:
        for path, born, receiver in self.receivers:
            if isinstance(receiver, SessionReceiver) and receiver.id is not None:
                states: list[Any] = []
                with suppress(BrokerError):
                    receiver._queue.states.get(receiver.id, states.append)
                    self.number += 1
                    receiver._queue.states.set(receiver.id, b"%d" % self.number, lambda error: None)
                self.world.run()
                assert not states or states[0] is None or int(states[0]) > born, path

    def pass_time(self) -> None:
        self.world.advance(self.random.choice([SECOND, SECOND, 40 * SECOND, 2 * MINUTE]))

    def restart(self) -> None:
        self.world.check()
        self.world = self.world.restarted()
        self.receivers, self.stale = [], []

    def check(self) -> None:
        self.world.check()
        for path in self.paths():
            for message in self.world.stored(path):
                self.is_of(path, self.born[path], message)


def tell(story: Churn) -> None:
    for step in range(600):
        story.step()
        if step % 20 == 0:
            story.check()
    story.restart()
    story.check()
    assert min(story.ids.values()) >= 2
    assert len(story.ids) > 15


@pytest.mark.parametrize("seed", range(3))
def test_an_entity_never_gets_data_of_an_earlier_entity_with_its_id(
    seed: int, store: FlakyStore | AwaitedStore
) -> None:
    tell(Churn(seed, store))


@pytest.mark.interpreted
def test_nor_has_it_if_the_store_has_deleted_nothing_by_then(
    disk: AwaitedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "needs_purge", property(lambda self: False))
    tell(Churn(3, disk))
