"""The operations of scenarios: a bus, its senders and receivers, an administrator. Each is a command to the program."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from conformance.program import PATIENCE, Program, SdkError, result

Told = str | dict[str, Any]
"""A message to send: its body, or a mapping with `body` or `size` and other properties."""
Kind = Literal["queue", "topic", "subscription", "rule"]
WAIT = 20.0
"""Seconds to wait for an expected message: enough for a loaded machine."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message as an SDK returns it. Times are in milliseconds."""

    handle: str
    body: str
    properties: dict[str, Any]
    id: str | None
    session: str | None
    subject: str | None
    correlation: str | None
    content_type: str | None
    to: str | None
    reply_to: str | None
    reply_session: str | None
    partition: str | None
    sequence: int
    delivery_count: int
    state: str
    enqueued: int | None
    scheduled: int | None
    locked_until: int | None
    expires: int | None
    reason: str | None
    description: str | None
    source: str | None


def _messages(told: list[dict[str, Any]]) -> list[Message]:
    return [Message(**each) for each in told]


class Bus:
    """A client of the SDK."""

    def __init__(self, program: Program, **options: Any) -> None:
        self._program = program
        self.handle: str = program.call("open", **options)

    def sender(self, queue: str) -> Sender:
        return Sender(self._program, self._program.call("sender", client=self.handle, queue=queue))

    def publisher(self, topic: str = "topic") -> Sender:
        return Sender(self._program, self._program.call("sender", client=self.handle, topic=topic))

    def send(self, queue: str, *messages: Told) -> None:
        self.sender(queue).send(*messages)

    def receiver(
        self,
        queue: str,
        *,
        part: Literal["dead", "transfer"] | None = None,
        deletes: bool = False,
        prefetch: int = 0,
    ) -> Receiver:
        return self._receiver(queue=queue, part=part, deletes=deletes, prefetch=prefetch)

    def subscriber(self, subscription: str, topic: str = "topic", *, part: Literal["dead"] | None = None) -> Receiver:
        return self._receiver(topic=topic, subscription=subscription, part=part)

    def _receiver(self, **options: Any) -> Receiver:
        return Receiver(self._program, self._program.call("receiver", client=self.handle, **options))

    def accept(self, queue: str, session: str | None = None, *, deletes: bool = False) -> SessionReceiver:
        """Accept the session of that name, or the next free session."""
        return self.accepted(self.accepting(queue, session, deletes=deletes))

    def accepting(self, queue: str, session: str | None = None, *, deletes: bool = False) -> Future[Any]:
        return self._program.start(
            "accept", client=self.handle, queue=queue, session=session, deletes=deletes, wait=WAIT
        )

    def accepted(self, accepting: Future[Any]) -> SessionReceiver:
        return SessionReceiver(self._program, result(accepting, "accept"))

    def accept_of_subscription(self, topic: str, subscription: str, session: str | None = None) -> SessionReceiver:
        accepting = self._program.start(
            "accept", client=self.handle, topic=topic, subscription=subscription, session=session, wait=WAIT
        )
        return self.accepted(accepting)

    def sessions(self, queue: str) -> list[str]:
        listed: list[str] = self._program.call("sessions", client=self.handle, queue=queue)
        return listed

    def process(self, **options: Any) -> list[Message]:
        """Handle `count` messages with the SDK's handler, and stop."""
        return _messages(result(self.processing(**options), "process"))

    def processing(self, **options: Any) -> Future[Any]:
        return self._program.start("process", client=self.handle, **options)

    def processed(self, processing: Future[Any]) -> list[Message]:
        return _messages(result(processing, "process"))

    # --- rules, by the messaging client ---

    def add_rule(self, subscription: str, name: str, filter: dict[str, Any], action: str | None = None) -> None:
        place = {"topic": "topic", "subscription": subscription}
        self._program.call("add_rule", client=self.handle, **place, name=name, filter=filter, action=action)

    def rules(self, subscription: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._program.call(
            "rules", client=self.handle, topic="topic", subscription=subscription
        )
        return found

    def remove_rule(self, subscription: str, name: str) -> None:
        self._program.call("remove_rule", client=self.handle, topic="topic", subscription=subscription, name=name)

    def close(self) -> None:
        self._program.call("close", handle=self.handle)


class Sender:
    def __init__(self, program: Program, handle: str) -> None:
        self._program = program
        self.handle = handle

    def send(self, *messages: Told, batch: bool = False, transaction: str | None = None) -> None:
        """Send messages one at a time, or as a batch."""
        told = [_told(message) for message in messages]
        self._program.call("send", sender=self.handle, messages=told, batch=batch, transaction=transaction)

    def fill(self, size: int) -> int:
        """Send a batch with as many messages of that size as fit, and return their number."""
        count: int = self._program.call("fill", sender=self.handle, size=size)
        return count

    def schedule(self, at: int, *messages: Told, transaction: str | None = None) -> list[int]:
        told = [_told(message) for message in messages]
        numbers: list[int] = self._program.call(
            "schedule", sender=self.handle, messages=told, at=at, transaction=transaction
        )
        return numbers

    def cancel(self, *numbers: int) -> None:
        self._program.call("cancel", sender=self.handle, numbers=numbers)

    def begin(self) -> str:
        """A transaction."""
        transaction: str = self._program.call("begin", sender=self.handle)
        return transaction

    def commit(self, transaction: str) -> None:
        self._program.call("commit", sender=self.handle, transaction=transaction)

    def roll_back(self, transaction: str) -> None:
        self._program.call("roll_back", sender=self.handle, transaction=transaction)


class Receiver:
    def __init__(self, program: Program, handle: str) -> None:
        self._program = program
        self.handle = handle

    def receive(self, count: int = 1) -> list[Message]:
        """Receive exactly that many messages, with as many calls of the SDK as necessary."""
        found: list[Message] = []
        while len(found) < count:
            some = self.ask(count - len(found))
            if not some:
                raise AssertionError(f"only {len(found)} of {count} messages came")
            found += some
        return found

    def one(self) -> Message:
        return self.receive(1)[0]

    def ask(self, count: int, wait: float = WAIT) -> list[Message]:
        """Return the messages of one call of the SDK: perhaps fewer, or none."""
        return _messages(self._program.call("receive", receiver=self.handle, count=count, wait=wait))

    def asking(self, count: int, wait: float = WAIT) -> Future[Any]:
        return self._program.start("receive", receiver=self.handle, count=count, wait=wait)

    def asked(self, asking: Future[Any], patience: float = PATIENCE) -> list[Message]:
        return _messages(result(asking, "receive", patience))

    def take(self, count: int = 1) -> list[str]:
        """Receive and complete messages; return the bodies."""
        messages = self.receive(count)
        for message in messages:
            self.complete(message)
        return bodies(messages)

    def deferred(self, *numbers: int) -> list[Message]:
        return _messages(self._program.call("deferred", receiver=self.handle, numbers=numbers))

    def peek(self, count: int = 100, start: int | None = None) -> list[Message]:
        return _messages(self._program.call("peek", receiver=self.handle, count=count, start=start))

    def complete(self, message: Message, transaction: str | None = None) -> None:
        self._settle(message, "complete", transaction=transaction)

    def abandon(
        self, message: Message, properties: dict[str, Any] | None = None, transaction: str | None = None
    ) -> None:
        self._settle(message, "abandon", properties=properties, transaction=transaction)

    def defer(self, message: Message, transaction: str | None = None) -> None:
        self._settle(message, "defer", transaction=transaction)

    def dead_letter(
        self, message: Message, reason: str = "a reason", description: str = "a description", **further: Any
    ) -> None:
        self._settle(message, "dead_letter", reason=reason, description=description, **further)

    def _settle(self, message: Message, how: str, **further: Any) -> None:
        self._program.call("settle", receiver=self.handle, message=message.handle, how=how, **further)

    def renew(self, message: Message) -> int:
        until: int = self._program.call("renew", receiver=self.handle, message=message.handle)
        return until

    def close(self) -> None:
        self._program.call("close", handle=self.handle)


class SessionReceiver(Receiver):
    def __init__(self, program: Program, accepted: dict[str, Any]) -> None:
        super().__init__(program, accepted["handle"])
        self.session: str = accepted["session"]
        self.until: int | None = accepted["until"]
        """When the lock ends; not every SDK returns it."""

    @property
    def state(self) -> str | None:
        state: str | None = self._program.call("state", receiver=self.handle)
        return state

    @state.setter
    def state(self, state: str | None) -> None:
        self._program.call("set_state", receiver=self.handle, state=state)

    def renew_session(self) -> int:
        until: int = self._program.call("renew_session", receiver=self.handle)
        return until


class Administrator:
    """An administration client. A path is the names, beginning with the topic or queue."""

    def __init__(self, program: Program, **options: Any) -> None:
        self._program = program
        self._handle: str = program.call("administer", **options)

    def create(self, kind: Kind, *path: str, **settings: Any) -> dict[str, Any]:
        return self._call("create", kind, path, settings=settings)

    def get(self, kind: Kind, *path: str) -> dict[str, Any]:
        return self._call("get", kind, path)

    def update(self, kind: Kind, *path: str, **settings: Any) -> dict[str, Any]:
        return self._call("update", kind, path, settings=settings)

    def delete(self, kind: Kind, *path: str) -> None:
        self._call("delete", kind, path)

    def counts(self, kind: Kind, *path: str) -> dict[str, Any]:
        return self._call("counts", kind, path)

    def names(self, kind: Kind, *path: str) -> list[str]:
        listed: list[str] = self._program.call("names", administrator=self._handle, kind=kind, path=path)
        return listed

    def namespace(self) -> str:
        name: str = self._program.call("namespace", administrator=self._handle)
        return name

    def _call(self, call: str, kind: Kind, path: tuple[str, ...], **further: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._program.call(call, administrator=self._handle, kind=kind, path=path, **further)
        return found


# --- assertions ---


@contextmanager
def refused(*kinds: str) -> Iterator[None]:
    """Expect that the block is refused with an error of this kind."""
    try:
        yield
    except SdkError as error:
        if error.kind not in kinds:
            raise AssertionError(f"refused, but not as {' or '.join(kinds)}: {error}") from error
    else:
        raise AssertionError(f"not refused, though {' or '.join(kinds)} was expected")


@contextmanager
def refused_in_words(words: str) -> Iterator[None]:
    """Expect that the block is refused with an error whose text contains these words; no SDK has a kind for it."""
    try:
        yield
    except SdkError as error:
        if words not in error.text:
            raise AssertionError(f"refused, but not a word of '{words}': {error}") from error
    else:
        raise AssertionError(f"not refused, though it should be: {words}")


def equal(found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"found {found!r}, expected {expected!r}")


def bodies(messages: list[Message]) -> list[str]:
    return [message.body for message in messages]


def _told(message: Told) -> dict[str, Any]:
    return {"body": message} if isinstance(message, str) else message
