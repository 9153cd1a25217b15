"""A namespace without a server, with a clock that the test moves, turns that it runs, and recording receivers."""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.service_bus import SCHEDULED_ENQUEUE_TIME
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.administration import Administration, Runtime
from peeklock.broker.agenda import ManualClock
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.entity import Entity
from peeklock.broker.errors import BrokerError
from peeklock.broker.heads import head
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.broker.lock_tags import LockTags
from peeklock.broker.locks import Lock
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import Queue
from peeklock.broker.session import Session, Waiter
from peeklock.broker.session_queue import AnyQueue, SessionQueue
from peeklock.broker.topic import Topic
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import subscription_path
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition
from peeklock.entities.settings import DEFAULT_PROFILE, Profile
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.store.base import (
    ACTIVE,
    CLAIMED,
    DEFERRED,
    MAX_ENTITY_ID,
    SCHEDULED,
    Changes,
    Committed,
    Counters,
    Range,
    Store,
    StoredMessage,
    StoreError,
)
from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore

SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

Counted = tuple[int, int, int, int, int]
"""The numbers of active, deferred, scheduled and claimed messages, and their bytes."""


class World:
    """One namespace with its clock, store and scheduled calls."""

    def __init__(
        self,
        *entities: QueueDefinition | TopicDefinition,
        store: Store | None = None,
        now: int = 1_800_000_000_000,
        profile: Profile = DEFAULT_PROFILE,
        only_if_empty: bool = False,
        max_message_ids: int = MAX_MESSAGE_IDS,
        highest_entity_id: int = MAX_ENTITY_ID,
    ) -> None:
        self.clock = ManualClock(now)
        self.store = store if store is not None else FlakyStore()
        self._turn: deque[Callable[[], None]] = deque()
        entities = entities or (QueueDefinition(name="q"),)
        definition = NamespaceDefinition(
            only_if_empty=only_if_empty,
            queues=tuple(each for each in entities if isinstance(each, QueueDefinition)),
            topics=tuple(each for each in entities if isinstance(each, TopicDefinition)),
        )
        self._highest_entity_id = highest_entity_id
        self.namespace = Namespace(
            definition,
            self.store,
            self._turn.append,
            clock=self.clock,
            profile=profile,
            max_message_ids=max_message_ids,
            highest_entity_id=highest_entity_id,
        )
        started: list[StoreError | None] = []
        self.namespace.start(started.append)
        self.run()
        assert started == [None]

    def queue(self, path: str = "q") -> Queue:
        return self.namespace.queue(path)  # type: ignore[return-value]

    def sessions(self, path: str = "s") -> SessionQueue:
        queue = self.namespace.queue(path)
        assert isinstance(queue, SessionQueue)
        return queue

    def topic(self, path: str = "t") -> Topic:
        topic = self.namespace.entity(path)
        assert isinstance(topic, Topic)
        return topic

    def subscription(self, name: str, topic: str = "t") -> Queue:
        return self.queue(subscription_path(topic, name))

    def dead_letters(self, path: str = "q") -> Queue:
        return self.queue(f"{path}/$DeadLetterQueue")

    def unforwarded(self, path: str = "q") -> Queue:
        """Return the transfer dead-letter queue of an entity."""
        return self.queue(f"{path}/$Transfer/$DeadLetterQueue")

    @property
    def administration(self) -> Administration:
        return self.namespace.administration

    def administer(self, change: Callable[..., None], *arguments: Any) -> BrokerError | None:
        """Make a change and wait for it. Errors before its commit are raised."""
        outcomes: list[BrokerError | None] = []
        change(*arguments, outcomes.append)
        self.run()
        assert len(outcomes) == 1, "told once"
        return outcomes[0]

    def runtime(self, path: str = "q") -> Runtime:
        return self.administration.runtime(self.namespace.entity(path))

    def restarted(self) -> World:
        """Return the same store and time after a restart. The old world must not be used any more.

        Entities that were created, changed and deleted stay so.
        """
        definition = self.namespace.definition
        return World(
            *definition.queues,
            *definition.topics,
            store=self.store.reopened() if isinstance(self.store, AwaitedStore) else self.store,
            now=self.clock(),
            profile=self.namespace.profile,
            only_if_empty=True,
            highest_entity_id=self._highest_entity_id,
        )

    def run(self) -> None:
        """Run all scheduled calls and due appointments, until there are none."""
        while True:
            while self._turn:
                self._turn.popleft()()
            self.namespace.agenda.run()
            if self._turn:
                continue
            if not (isinstance(self.store, AwaitedStore) and self.store.pending):
                break
            self.store.answer()

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.run()

    def send(self, *bodies: str, to: str = "q", **fields: Any) -> list[BrokerError | None]:
        """Send each body as a separate message, and return the outcomes."""
        outcomes: list[BrokerError | None] = []
        for body in bodies:
            self.namespace.entity(to).send([incoming(body, **fields)], outcomes.append)
        self.run()
        return outcomes

    def send_together(self, *messages: Incoming, to: str = "q") -> list[BrokerError | None]:
        """Send messages as a batch. Errors before its commit are raised."""
        outcomes: list[BrokerError | None] = []
        self.namespace.entity(to).send(messages, outcomes.append)
        self.run()
        return outcomes

    def settle(self, how: Callable[..., None], *arguments: Any) -> None:
        """Settle a message, and check that it succeeds."""
        outcomes: list[BrokerError | None] = []
        how(arguments[0], outcomes.append, *arguments[1:])
        self.run()
        assert outcomes == [None]

    # --- what the store has ---

    def stored(self, path: str = "q") -> list[StoredMessage]:
        """Return the messages of an entity in any state, by number."""
        return self.stored_of(self.namespace.entity(path).id)

    def stored_of(self, entity: int) -> list[StoredMessage]:
        if isinstance(self.store, MemoryStore):  # whose answers may be held, or fail
            owner = self.store._entities.get(entity)
            return [] if owner is None else [owner.messages[number] for number in sorted(owner.messages)]
        found: list[list[StoredMessage]] = []
        wanted = Range(entity=entity, through=2**44 - 1, limit=1_000_000, max_bytes=1 << 40, state=None)
        self.store.read(wanted, found.append)  # type: ignore[arg-type]
        self.run()
        return found[0]

    def bodies(self, path: str = "q") -> list[str]:
        """Return the bodies of the messages of an entity, by number."""
        return [body(message) for message in self.stored(path)]

    def check(self) -> None:
        """Check that no commit is under way, and that the memory of every entity agrees with the store."""
        assert self.namespace.journal.idle
        counted = stored_counters(self.store)
        paths: list[str] = []
        for container in self.namespace.entities:
            paths += [container.path] * (container.id in counted)
            messages = self.stored_of(container.id)
            states = Counter(message.state for message in messages)
            size = sum(message.size for message in messages)
            expected = (states[ACTIVE], states[DEFERRED], states[SCHEDULED], states[CLAIMED], size)
            told = _counted(container.counters)
            assert told == expected, container.path
            assert counted[container.id] == expected, container.path
            assert container.staged_bytes == 0, container.path
            assert not container.leaving, container.path
            if not isinstance(container, Topic):
                assert not any(lock.settling for lock in container.locks.by_number.values()), container.path
                self._check_claims(container, {each.sequence_number for each in messages if each.state == CLAIMED})
        assert len(paths) == len(counted) - 1, "the store has what there is, and the namespace"

    def _check_claims(self, container: AnyQueue, numbers: set[int]) -> None:
        """Check that each claimed message belongs to one claim, and that memory and store have the same claims."""
        claims = container.claims.of(None)
        claimed = [number for claim in claims for run in claim.runs for number in range(run.first, run.last + 1)]
        assert sorted(claimed) == sorted(numbers), container.path
        assert stored_claims(self.store, container.id) == {claim.id: claim.encode() for claim in claims}


def settlement(how: str) -> Settlement:
    """Return the settlement for the name of a method of `Settlements`."""
    return Settlement(Verdict(how.replace("_", "-")))


def stored_claims(store: Store, entity: int) -> dict[bytes, bytes]:
    """Return the stored claims of an entity by id."""
    if isinstance(store, MemoryStore):
        return store._entities[entity].claims
    assert isinstance(store, DiskStore)
    return dict(query(store, f"SELECT id, content FROM claim WHERE entity = {entity}"))


def _counted(counters: Counters) -> Counted:
    return (counters.active, counters.deferred, counters.scheduled, counters.claimed, counters.size_in_bytes)


def stored_counters(store: Store) -> dict[int, Counted]:
    """Return the stored counters by entity id, including the namespace's row."""
    if isinstance(store, MemoryStore):
        return {id: _counted(entity.stored.counters) for id, entity in store._entities.items()}
    assert isinstance(store, DiskStore)
    rows = query(store, "SELECT id, active, deferred, scheduled, claimed, size_in_bytes FROM entity")
    return {row[0]: row[1:] for row in rows}


def shared_bodies(store: Store) -> int:
    """Return how many shared bodies the store has."""
    if isinstance(store, MemoryStore):
        messages = [message for entity in store._entities.values() for message in entity.messages.values()]
        return len({id(message.body) for message in messages if message.body is not None})
    assert isinstance(store, DiskStore)
    return int(query(store, "SELECT count(*) FROM body")[0][0])


def bodies_in_the_end(store: Store) -> int:
    """Return how many shared bodies the store has after it has deleted those of dropped entities. Closes the store."""
    if isinstance(store, AwaitedStore):
        store.close()
        while query(store, "SELECT 1 FROM dropped_entity"):
            store = store.reopened()
            store.open()
            store.close()
    return shared_bodies(store)


def query(store: DiskStore, statement: str) -> list[Any]:
    if store._is_open:
        store._any_exists([])  # a question makes the index apply all commits first
    with closing(sqlite3.connect(store._file)) as connection:
        return connection.execute(statement).fetchall()


class AwaitedStore(DiskStore):
    """A store on disk that is called synchronously: each call waits for its answer."""

    def __init__(self, folder: Path) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._folder = folder
        self.pending = 0
        self.successor: AwaitedStore | None = None
        super().__init__(folder, self._calls.put)

    def reopened(self) -> AwaitedStore:
        """Return the store as after a restart."""
        self.close()
        self.successor = AwaitedStore(self._folder)
        return self.successor

    def answer(self) -> None:
        self._calls.get(timeout=30)()

    def commit(self, changes: Changes, done: Committed) -> None:
        super().commit(changes, self._counted(done))

    def _read(self, question: Callable[[], Any], done: Callable[[Any], None]) -> None:
        super()._read(question, self._counted(done))

    def _counted(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        def told(answer: Any) -> None:
            self.pending -= 1
            done(answer)

        self.pending += 1
        return told


class FlakyStore(MemoryStore):
    """A memory store that fails or waits on request."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[Changes], StoreError | None] = lambda changes: None
        self.held: list[Callable[[], None]] | None = None
        """While it is a list: commits that wait to be made."""
        self.held_outcomes: list[Callable[[], None]] | None = None
        """While it is a list: outcomes of commits that were made, and that wait to be reported."""
        self.held_answers: list[Callable[[], None]] | None = None
        """While it is a list: answers to reads, which wait to be reported and may be stale then."""
        self.fails_to_read = False
        self.reads = 0
        self.commits = 0

    def release_commits(self) -> None:
        while self.held:
            self.held.pop(0)()
        self.held = None

    def release_outcomes(self) -> None:
        while self.held_outcomes:
            self.held_outcomes.pop(0)()
        self.held_outcomes = None

    def release_answers(self) -> None:
        while self.held_answers:
            self.held_answers.pop(0)()
        self.held_answers = None

    def _read(self, id: int, question: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        def tell(answer: Any) -> None:
            if self.held_answers is not None:
                self.held_answers.append(lambda: done(answer))
            else:
                done(answer)

        self.reads += 1
        if self.fails_to_read:
            tell(StoreError("the disk cannot be read"))
        else:
            super()._read(id, question, tell)

    def commit(self, changes: Changes, done: Committed) -> None:
        self.commits += 1

        def commit_now() -> None:
            error = self.fails(changes)
            if error is not None:
                tell(error)
            else:
                MemoryStore.commit(self, changes, tell)

        def tell(error: StoreError | None) -> None:
            if self.held_outcomes is not None:
                self.held_outcomes.append(lambda: done(error))
            else:
                done(error)

        if self.held is not None:
            self.held.append(commit_now)
        else:
            commit_now()


class Consumer:
    """Takes messages while it has credit, and records them."""

    def __init__(self, world: World, credit: int, deletes: bool) -> None:
        self.deletes = deletes
        self.credit = credit
        self.got: list[StoredMessage] = []
        self.locks: list[Lock] = []
        self.starvations = 0
        self._world = world

    def ready(self) -> bool:
        return self.credit > 0

    def reserve(self, message: StoredMessage) -> None:
        self.credit -= 1

    def unreserve(self, message: StoredMessage) -> None:
        self.credit += 1

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        if lock is not None:
            self.credit -= 1
            self.locks.append(lock)
        self.got.append(message)

    def on_starved(self) -> None:
        self.starvations += 1

    @property
    def bodies(self) -> list[str]:
        return [body(message) for message in self.got]

    @property
    def numbers(self) -> list[int]:
        return [message.sequence_number for message in self.got]


class Receiver(Consumer):
    """A receiver of a queue without sessions."""

    def __init__(self, world: World, queue: Queue, credit: int = 1000, deletes: bool = False) -> None:
        super().__init__(world, credit, deletes)
        self._queue = queue
        queue.want(self)
        world.run()

    def more(self, credit: int = 1000) -> None:
        self.credit += credit
        self._queue.want(self)
        self._world.run()

    def leave(self) -> None:
        self._queue.leave(self)


class BodySelector:
    """A selector of messages by their bodies, which counts how often it evaluated each."""

    def __init__(self, selects: Callable[[str], bool] = lambda text: True, cost: int = 1) -> None:
        self._selects = selects
        self.cost = cost
        self.looks: Counter[str] = Counter()

    def work(self, message: StoredMessage) -> int:
        return self.cost

    def matches(self, message: StoredMessage) -> bool:
        text = body(message)
        self.looks[text] += 1
        return self._selects(text)


class SelectingReceiver(Consumer):
    """A receiver of a queue with a selector."""

    def __init__(
        self, world: World, queue: Queue, selector: BodySelector, credit: int = 1000, deletes: bool = False
    ) -> None:
        super().__init__(world, credit, deletes)
        self.selector = selector
        self._queue = queue
        self._selection = queue.select(self, selector)
        self.more(0)

    def more(self, credit: int = 1000) -> None:
        self.credit += credit
        self._queue.want_selected(self._selection)
        self._world.run()

    def leave(self) -> None:
        self._queue.stop_selecting(self._selection)


class SessionReceiver(Consumer):
    """Holds a session: one with a given id, or the next free session."""

    def __init__(
        self,
        world: World,
        id: str | None = None,
        *,
        path: str = "s",
        credit: int = 1000,
        deletes: bool = False,
        time_out: int = MINUTE,
        selector: BodySelector | None = None,
    ) -> None:
        super().__init__(world, credit, deletes)
        self.selector = selector
        self.session: Session | None = None
        self.failure: BrokerError | None = None
        """The error with which the session was refused or lost."""
        self._queue = world.sessions(path)
        self.waiter: Waiter | None
        if id is None:
            self.waiter = self._queue.sessions.accept_next(self, time_out, self._accepted)
        else:
            self.waiter = self._queue.sessions.accept_when_settled(id, self, self._accepted)
        world.run()

    def _accepted(self, outcome: Session | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            self.failure = outcome
        else:
            self.session = outcome
            self._queue.want(outcome)

    def on_session_lost(self, failure: BrokerError) -> None:
        self.session = None
        self.failure = failure

    @property
    def id(self) -> str | None:
        return None if self.session is None else self.session.id

    def more(self, credit: int = 1000) -> None:
        assert self.session is not None
        self.credit += credit
        self._queue.want(self.session)
        self._world.run()

    def close(self) -> None:
        if self.waiter is not None:
            self._queue.sessions.stop_waiting(self.waiter)
        if self.session is not None:
            self._queue.sessions.close_session(self.session, self)
            self.session = None
        self._world.run()


class AttachedLink:
    """A watcher of an entity, like an attached link."""

    def __init__(self, entity: AnyEntity) -> None:
        self.changes = 0
        self.failures: list[BrokerError] = []
        self._entity = entity
        entity.watch(self)

    def on_entity_changed(self) -> None:
        self.changes += 1

    def on_entity_deleted(self, failure: BrokerError) -> None:
        self.failures.append(failure)

    def leave(self) -> None:
        self._entity.unwatch(self)


def topic(name: str = "t", *subscriptions: str | SubscriptionDefinition, **settings: Any) -> TopicDefinition:
    """Return the definition of a topic with subscriptions, which may be given by name."""
    whole = tuple(SubscriptionDefinition(name=each) if isinstance(each, str) else each for each in subscriptions)
    return TopicDefinition(name=name, subscriptions=whole, **settings)


def subscription(name: str, *rules: RuleDefinition, **settings: Any) -> SubscriptionDefinition:
    """Return the definition of a subscription with these rules; by default with the rule that matches all messages."""
    if rules:
        settings["rules"] = rules
    return SubscriptionDefinition(name=name, **settings)


def sql(name: str, text: str, action: str | None = None) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.SQL, sql_expression=text, action=action)


def correlation(name: str, **tested: Any) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.CORRELATION, correlation=CorrelationFilter(**tested))


def session_queue(name: str = "s", **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, requires_session=True, **settings)


def incoming(
    text: str, session_id: str | None = None, at: int | None = None, ttl: int | None = None, **fields: Any
) -> Incoming:
    """Return a message from a sender, with a session id, a scheduled time and a time to live if given."""
    if session_id is not None:
        fields.setdefault("properties", Properties(message_id=f"id-{text[:20]}", group_id=session_id))
    if at is not None:
        fields["message_annotations"] = {Symbol(SCHEDULED_ENQUEUE_TIME): Timestamp(at)}
    if ttl is not None:
        fields["header"] = replace(fields.get("header") or Header(), ttl=ttl)
    return read_incoming(encoded(text, **fields), session_id is not None)


def encoded(text: str, **fields: Any) -> bytes:
    message = Message(data=[text.encode()], **fields)
    if message.properties is None:
        message.properties = Properties(message_id=f"id-{text[:20]}")
    return message.encode()


TOKEN = LockTags().next()[1]


def delivered(message: StoredMessage, locked_until: int | None = None, of: Entity | None = None) -> Message:
    """Return the message as a receiver of the entity decodes it; by default the entity is not a subscription."""
    token = None if locked_until is None else TOKEN
    front = head(message, locked_until, token, is_copy=of is not None and of.holds_copies)
    return Message.decode(front + message.content)


def body(message: StoredMessage) -> str:
    return b"".join(delivered(message).data).decode()
