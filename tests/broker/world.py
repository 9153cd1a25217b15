"""A namespace without a server: a clock that is moved, turns that are run, receivers that write down what they get."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.agenda import ManualClock
from peeklock.broker.definitions import NamespaceDefinition, QueueDefinition
from peeklock.broker.entity import Lock
from peeklock.broker.envelope import SCHEDULED_ENQUEUE_TIME, Incoming, head, read_incoming
from peeklock.broker.errors import BrokerError
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import Queue
from peeklock.broker.session import Session, Waiter
from peeklock.broker.sessions import SessionQueue
from peeklock.store.base import Changes, Committed, Store, StoredMessage, StoreError
from peeklock.store.memory import MemoryStore

SECOND = 1000
MINUTE = 60 * SECOND


class World:
    """One namespace and the time in it."""

    def __init__(self, *queues: QueueDefinition, store: Store | None = None, now: int = 1_800_000_000_000) -> None:
        self.clock = ManualClock(now)
        self.store = store if store is not None else FlakyStore()
        self._turn: deque[Callable[[], None]] = deque()
        definition = NamespaceDefinition(queues=queues or (QueueDefinition(name="q"),))
        self.namespace = Namespace(definition, self.store, self._turn.append, clock=self.clock)
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

    def restarted(self) -> World:
        """The same store and time after a restart; the old world must not be used any more."""
        return World(*self.namespace.definition.queues, store=self.store, now=self.clock())

    def run(self) -> None:
        """Let everything happen that happens by itself at this moment."""
        while self._turn:
            self._turn.popleft()()
        self.namespace.agenda.run()
        if self._turn:
            self.run()

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.run()

    def send(self, *bodies: str, to: str = "q", **fields: Any) -> list[BrokerError | None]:
        """Send each body as a message of its own; returns the outcomes."""
        outcomes: list[BrokerError | None] = []
        for body in bodies:
            self.namespace.queue(to).send([incoming(body, **fields)], outcomes.append)
        self.run()
        return outcomes


class FlakyStore(MemoryStore):
    """A memory store that can be told to fail or to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[Changes], StoreError | None] = lambda changes: None
        self.held: list[Callable[[], None]] | None = None
        """While it is a list: commits that are not made yet."""
        self.held_outcomes: list[Callable[[], None]] | None = None
        """While it is a list: outcomes of commits that were made at once and are told late."""
        self.held_answers: list[Callable[[], None]] | None = None
        """While it is a list: answers to reads that were made at once and are told late, when they may be untrue."""
        self.fails_to_read = False
        self.reads = 0

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

    def _ask(self, id: int, question: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        def tell(answer: Any) -> None:
            if self.held_answers is not None:
                self.held_answers.append(lambda: done(answer))
            else:
                done(answer)

        self.reads += 1
        if self.fails_to_read:
            tell(StoreError("the disk cannot be read"))
        else:
            super()._ask(id, question, tell)

    def commit(self, changes: Changes, done: Committed) -> None:
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
    """Takes messages as long as it has credit, and writes down what it got."""

    def __init__(self, world: World, credit: int, deletes: bool) -> None:
        self.deletes = deletes
        self.credit = credit
        self.got: list[StoredMessage] = []
        self.locks: list[Lock] = []
        self.starvations = 0
        self._world = world

    def ready(self) -> bool:
        return self.credit > 0

    def reserve(self) -> None:
        self.credit -= 1

    def unreserve(self) -> None:
        self.credit += 1

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        if lock is not None:
            self.credit -= 1
            self.locks.append(lock)
        self.got.append(message)

    def starved(self) -> None:
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


class SessionReceiver(Consumer):
    """Holds a session: a given one, or the next that is free."""

    def __init__(
        self,
        world: World,
        id: str | None = None,
        *,
        path: str = "s",
        credit: int = 1000,
        deletes: bool = False,
        time_out: int = MINUTE,
    ) -> None:
        super().__init__(world, credit, deletes)
        self.session: Session | None = None
        self.failure: BrokerError | None = None
        """Why there is no session, or none any more."""
        self._queue = world.sessions(path)
        self.waiter: Waiter | None
        if id is None:
            self.waiter = self._queue.accept_next(self, time_out, self._accepted)
        else:
            self.waiter = self._queue.accept_when_settled(id, self, self._accepted)
        world.run()

    def _accepted(self, outcome: Session | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            self.failure = outcome
        else:
            self.session = outcome
            self._queue.want(outcome)

    def session_lost(self, failure: BrokerError) -> None:
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
            self._queue.stop_waiting(self.waiter)
        if self.session is not None:
            self._queue.let_go(self.session, self)
            self.session = None
        self._world.run()


def session_queue(name: str = "s", **settings: Any) -> QueueDefinition:
    return QueueDefinition(name=name, requires_session=True, **settings)


def incoming(
    text: str, session_id: str | None = None, at: int | None = None, ttl: int | None = None, **fields: Any
) -> Incoming:
    """A message as a sender gives it: of a session, for a time, with a time to live."""
    if session_id is not None:
        fields["properties"] = Properties(message_id=f"id-{text[:20]}", group_id=session_id)
    if at is not None:
        fields["message_annotations"] = {Symbol(SCHEDULED_ENQUEUE_TIME): Timestamp(at)}
    if ttl is not None:
        fields["header"] = Header(ttl=ttl)
    return read_incoming(encoded(text, **fields), session_id is not None)


def encoded(text: str, **fields: Any) -> bytes:
    message = Message(data=[text.encode()], **fields)
    if message.properties is None:
        message.properties = Properties(message_id=f"id-{text[:20]}")
    return message.encode()


def delivered(message: StoredMessage, locked_until: int | None = None) -> Message:
    """As a receiver would read it."""
    return Message.decode(head(message, locked_until) + message.payload)


def body(message: StoredMessage) -> str:
    return b"".join(delivered(message).data).decode()
