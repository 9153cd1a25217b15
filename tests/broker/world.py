"""A namespace without a server: a clock that is moved, turns that are run, receivers that write down what they get."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from peeklock.amqp.message import Message, Properties
from peeklock.broker.agenda import ManualClock
from peeklock.broker.definitions import (
    NamespaceDefinition,
    QueueDefinition,
)
from peeklock.broker.envelope import head, read_incoming
from peeklock.broker.errors import BrokerError
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import Lock, Queue
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
        return self.namespace.queue(path)

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
            self.queue(to).send([read_incoming(encoded(body, **fields), False)], outcomes.append)
        self.run()
        return outcomes


class FlakyStore(MemoryStore):
    """A memory store that can be told to fail or to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: Callable[[Changes], StoreError | None] = lambda changes: None
        self.held: list[Callable[[], None]] | None = None

    def commit(self, changes: Changes, done: Committed) -> None:
        def commit_now() -> None:
            error = self.fails(changes)
            if error is not None:
                done(error)
            else:
                MemoryStore.commit(self, changes, done)

        if self.held is not None:
            self.held.append(commit_now)
        else:
            commit_now()


class Receiver:
    """A consumer with as much credit as it is given."""

    def __init__(self, world: World, queue: Queue, credit: int = 1000, deletes: bool = False) -> None:
        self.deletes = deletes
        self.credit = credit
        self.got: list[StoredMessage] = []
        self.locks: list[Lock] = []
        self.starvations = 0
        self._world = world
        self._queue = queue
        self.outcomes: list[BrokerError | None] = []
        queue.want(self)
        world.run()

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

    def more(self, credit: int = 1000) -> None:
        self.credit += credit
        self._queue.want(self)
        self._world.run()

    @property
    def bodies(self) -> list[str]:
        return [body(message) for message in self.got]

    @property
    def numbers(self) -> list[int]:
        return [message.sequence_number for message in self.got]


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
