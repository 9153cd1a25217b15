"""Sending: one message and its outcome, or many with a bounded number in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from peeklock.amqp.codec import encode_value
from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Accepted, Received, Rejected
from peeklock.amqp.performatives import Attach, Coordinator, Source, Target
from peeklock.amqp.transactions import Declared, TransactionalState
from peeklock.client.errors import SendRejected
from peeklock.client.link import ClientLink
from peeklock.engine.events import OutgoingDisposed

if TYPE_CHECKING:
    from peeklock.client.connection import Connection

IN_FLIGHT: Final = 2000
_BURST: Final = 256
"""Messages that are encoded between two writes."""


class Sent:
    """A sent message and its outcome."""

    __slots__ = ("done", "outcome", "refused")

    def __init__(self) -> None:
        self.done = False
        self.outcome: Any = None
        self.refused: SendRejected | None = None
        """The exception for an outcome other than accepted."""


class Sender(ClientLink):
    """A sending link, made by `Connection.sender`."""

    def __init__(
        self,
        connection: Connection,
        target: Target | Coordinator,
        properties: Mapping[Any, Any] | None,
        timeout: float,
    ) -> None:
        link = connection.session().sender(f"sender-{uuid4()}")
        super().__init__(connection, link)
        self._sender = link
        self._sent = 0
        self._refused: SendRejected | None = None
        """The first message of `send_all` that was not accepted."""
        attach = Attach(
            name=link.name,
            handle=link.handle,
            role=False,
            source=Source(address=link.name),
            target=target,
            initial_delivery_count=0,
            properties=dict(properties) if properties else None,
        )
        self._attach(attach, _words(target), timeout)

    @property
    def max_message_size(self) -> int:
        """The largest message that the peer accepts, in bytes; 0 if it has no limit."""
        return self._sender.max_message_size

    @property
    def in_flight(self) -> int:
        """The number of messages without an outcome."""
        return self._sender.unsettled

    def send(
        self,
        message: Message | bytes,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Send a message and return its outcome. Bytes are an encoded message.

        SendRejected when that is not accepted. A message that goes out settled has no outcome. `state` is sent along,
        for a message in a transaction.
        """
        sent = self.post(message, message_format=message_format, settled=settled, state=state, timeout=timeout)
        if settled:
            return None
        self.wait_for(lambda: sent.done, timeout, "the outcome of the message")
        if sent.refused is not None:
            raise sent.refused
        return sent.outcome

    def post(
        self,
        message: Message | bytes,
        *,
        message_format: int = 0,
        settled: bool = False,
        state: Any = None,
        timeout: float | None = None,
    ) -> Sent:
        """Send a message without waiting; the returned object gets the outcome when it arrives."""
        payload = self._payload(message)
        self.check()
        self.wait_for(self._sender.ready, timeout, "credit to send")
        sent = Sent()
        self._sender.send(
            self._tag(), (payload,), settled=settled, context=sent, message_format=message_format, state=state
        )
        self.connection.flush()
        return sent

    def send_all(
        self,
        messages: Iterable[Message | bytes],
        *,
        in_flight: int = IN_FLIGHT,
        message_format: int = 0,
        settled: bool = False,
        timeout: float | None = None,
    ) -> int:
        """Send messages, up to `in_flight` at a time, wait for all outcomes, and return the number of messages.

        SendRejected, after the outcomes of all that were sent, when one was not accepted: nothing is sent after it is
        known. `timeout` is how long may pass without any progress.
        """
        sender = self._sender
        # At the limit, half of the messages must be settled before more are sent: few, large writes.
        enough = in_flight // 2
        count = 0
        self._refused = None
        self.check()
        for message in messages:
            payload = self._payload(message)
            if sender.unsettled >= in_flight:
                self.wait_for(lambda: sender.unsettled <= enough, timeout, "an outcome")
            if not sender.ready():
                self.wait_for(sender.ready, timeout, "credit to send")
            sender.send(self._tag(), (payload,), settled=settled, message_format=message_format)
            count += 1
            if count % _BURST == 0:
                self.connection.turn(0)
            if self._refused is not None:
                break
        self._wait_for_outcomes(timeout)
        if self._refused is not None:
            raise self._refused
        return count

    def on_outcome(self, event: OutgoingDisposed) -> None:
        state = event.state
        if isinstance(state, Received) or (state is None and not event.settled):
            return  # `received` is a progress report, not an outcome
        refused = None if type(state) is Accepted else refusal(state)
        for delivery in event.deliveries:
            if delivery.context is not None:
                sent: Sent = delivery.context
                sent.done, sent.outcome, sent.refused = True, state, refused
            elif refused is not None and self._refused is None:
                self._refused = refused
            if not event.settled:
                delivery.settle(encode_value(state))

    def _wait_for_outcomes(self, timeout: float | None) -> None:
        sender = self._sender
        while sender.unsettled:
            before = sender.unsettled
            self.wait_for(lambda: sender.unsettled < before, timeout, f"the outcomes of {before} messages")  # noqa: B023
        self.wait_for(lambda: not self.connection.writing, timeout, "room to write")

    def _payload(self, message: Message | bytes) -> bytes:
        payload = message.encode() if isinstance(message, Message) else message
        limit = self.max_message_size
        if limit and len(payload) > limit:
            raise SendRejected(
                Condition.MESSAGE_SIZE_EXCEEDED, f"the message has {len(payload)} bytes; the peer accepts {limit}"
            )
        return payload

    def _tag(self) -> bytes:
        self._sent += 1
        return self._sent.to_bytes(16, "big")


def refusal(state: Any) -> SendRejected | None:
    """Return the exception for an outcome; None for accepted."""
    if isinstance(state, TransactionalState) and state.outcome is not None:
        state = state.outcome
    if isinstance(state, Accepted | Declared | TransactionalState):
        return None
    if isinstance(state, Rejected) and state.error is not None:
        return SendRejected(state.error.condition, state.error.description)
    name = type(state).__name__.lower() if state is not None else "settled without an outcome"
    return SendRejected(Condition.NOT_ALLOWED, f"the peer answered the message with: {name}")


def _words(target: Target | Coordinator) -> str:
    return f"a sender to '{target.address}'" if isinstance(target, Target) else "a coordinator link"
