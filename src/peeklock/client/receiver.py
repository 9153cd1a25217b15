"""Receiving: messages are returned in lists and settled in ranges."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from peeklock.amqp.message import NO_VALUE, Message
from peeklock.amqp.outcomes import Accepted, Error, Modified, Rejected, Released
from peeklock.amqp.performatives import Attach, Source, Target
from peeklock.client.errors import ClientError, SettlementFailed, Timeout
from peeklock.client.link import ClientLink
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.events import IncomingDisposed

if TYPE_CHECKING:
    from peeklock.client.connection import Connection


class ReceiveMode(StrEnum):
    """How messages are settled."""

    PEEK_LOCK = "peek-lock"
    """The peer locks a message until it is settled, and confirms settlement (rcv-settle-mode second)."""
    SETTLE_FIRST = "settle-first"
    """The peer locks a message until it is settled, without confirmation (rcv-settle-mode first)."""
    RECEIVE_AND_DELETE = "receive-and-delete"
    """The peer removes a message when it sends it (snd-settle-mode settled)."""


_SETTLE_MODES = {
    ReceiveMode.PEEK_LOCK: (0, 1),
    ReceiveMode.SETTLE_FIRST: (0, 0),
    ReceiveMode.RECEIVE_AND_DELETE: (1, 0),
}
_DRAIN_SECONDS = 1.0
"""How long `close` waits for messages in flight; not every peer answers a drain."""
_ACCEPTED = Accepted().encode()
_RELEASED = Released().encode()


class ReceivedMessage:
    """A received message; it is decoded on first access."""

    __slots__ = ("_message", "delivery", "payload")

    def __init__(self, delivery: IncomingDelivery) -> None:
        self.delivery = delivery
        self.payload = delivery.payload
        """The encoded message."""
        delivery.drop_data()
        self._message: Message | None = None

    def __repr__(self) -> str:
        return f"ReceivedMessage(tag={self.tag.hex()}, {len(self.payload)} bytes)"

    @property
    def message(self) -> Message:
        if self._message is None:
            self._message = Message.decode(self.payload)
        return self._message

    @property
    def body(self) -> Any:
        """The joined data sections, or the value, or the sequences."""
        message = self.message
        if message.data:
            return b"".join(message.data)
        return message.sequences if message.value is NO_VALUE else message.value

    @property
    def tag(self) -> bytes:
        return self.delivery.tag

    @property
    def lock_token(self) -> UUID | None:
        """The lock token: Service Bus makes the delivery tag of it."""
        return UUID(bytes_le=self.tag) if len(self.tag) == 16 else None

    @property
    def settled(self) -> bool:
        return self.delivery.settled


Messages = ReceivedMessage | Sequence[ReceivedMessage]


class Receiver(ClientLink):
    """A receiving link, made by `Connection.receiver`."""

    def __init__(
        self,
        connection: Connection,
        source: str | Source,
        *,
        credit: int,
        mode: ReceiveMode,
        filter: Mapping[Any, Any] | None = None,
        properties: Mapping[Any, Any] | None = None,
        target: str | None = None,
        timeout: float,
    ) -> None:
        link = connection.session().receiver(f"receiver-{uuid4()}")
        super().__init__(connection, link)
        self._receiver = link
        self._credit = credit
        self._ready: deque[IncomingDelivery] = deque()
        """Received from the peer and not yet returned to the caller."""
        self._unconfirmed = 0
        self._settlement_failure: SettlementFailed | None = None
        if isinstance(source, str):
            source = Source(address=source, filter=dict(filter) if filter else None)
        snd_settle_mode, rcv_settle_mode = _SETTLE_MODES[mode]
        attach = Attach(
            name=link.name,
            handle=link.handle,
            role=True,
            snd_settle_mode=snd_settle_mode,
            rcv_settle_mode=rcv_settle_mode,
            source=source,
            target=Target(address=target or link.name),
            properties=dict(properties) if properties else None,
        )
        where = f"a receiver from '{source.address}'" if source.address else "a receiver from a dynamic node"
        self._attach(attach, where, timeout)
        # The peer's attach decides: a peer that settles first sends no confirmations.
        self._is_confirmed = rcv_settle_mode == 1 and self.remote is not None and self.remote.rcv_settle_mode == 1
        self._top_up()

    # --- receiving ---

    @property
    def source(self) -> Source | None:
        """The source in the peer's attach: the address of a dynamic node, the accepted filters."""
        return self.remote.source if self.remote is not None else None

    @property
    def credit(self) -> int:
        """How many messages may be in flight or not yet returned. With 0 the peer sends only during `receive`."""
        return self._credit

    @credit.setter
    def credit(self, credit: int) -> None:
        """Set the credit from now on; credit that the peer has stays until it is used or drained."""
        self._credit = credit

    @property
    def waiting(self) -> int:
        """The number of messages that `receive` would return at once."""
        return len(self._ready)

    def receive(self, max_count: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Return up to `max_count` messages as soon as there is one; an empty list if none arrives in time."""
        ready = self._ready
        if not ready:
            self.check()
            self._receive_more(max_count, timeout)
        taken = [ReceivedMessage(ready.popleft()) for _ in range(min(max_count, len(ready)))]
        self._top_up()
        return taken

    def messages(self, timeout: float | None = None) -> Iterator[ReceivedMessage]:
        """Yield messages; end when none arrives for `timeout` seconds, or never if it is None."""
        while True:
            taken = self.receive(1, timeout)
            if taken:
                yield taken[0]
            elif timeout is not None:
                return

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages without end."""
        return self.messages()

    def drain(self, timeout: float | None = None) -> None:
        """Withdraw the credit: the peer sends what it has, then nothing until the next `receive`."""
        self.check()
        link = self._receiver
        if link.credit <= 0:
            return
        link.grant(link.credit, drain=True)
        # If the last messages used up the credit, the peer has none to return and need not answer.
        self.wait_for(lambda: not link.drain or link.credit <= 0, timeout, "the end of the drain")
        link.drain = False

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        self._ready.append(delivery)

    def close(self) -> None:
        """Detach. Messages that were not returned to the caller are released, if they are not settled."""
        if not self.closed:
            with suppress(ClientError):
                self.drain(timeout=_DRAIN_SECONDS)  # messages in flight would stay locked
        while self._ready:
            self._ready.popleft().dispose(_RELEASED)
        super().close()

    def _receive_more(self, max_count: int, timeout: float | None) -> None:
        """Wait for a message or the end of the time."""
        if self._credit == 0:
            self._receiver.grant(max_count)
        else:
            self._top_up()
        with suppress(Timeout):
            self.wait_for(lambda: len(self._ready) > 0, timeout, "a message")
        if self._credit == 0:
            try:
                self.drain()  # the peer must not lock messages between calls
            except Timeout:
                if not self._ready:  # messages that arrived may be removed at the peer already, and are returned
                    raise

    def _top_up(self) -> None:
        """Renew the credit once half of it is used."""
        link = self._receiver
        wanted = self._credit - len(self._ready)
        if link.attached and wanted - link.credit >= (self._credit + 1) // 2 > 0:
            link.grant(wanted)

    # --- settling ---

    def accept(self, messages: Messages, *, wait: bool = False, timeout: float | None = None) -> None:
        """Complete messages."""
        self._settle(messages, _ACCEPTED, wait, timeout)

    def release(self, messages: Messages, *, wait: bool = False, timeout: float | None = None) -> None:
        """Release messages, without counting a delivery."""
        self._settle(messages, _RELEASED, wait, timeout)

    def reject(
        self,
        messages: Messages,
        condition: str | None = None,
        description: str = "",
        info: Mapping[Any, Any] | None = None,
        *,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Dead-letter messages."""
        error = None
        if condition is not None:
            error = Error(condition=condition, description=description, info=dict(info) if info else None)
        self._settle(messages, Rejected(error=error).encode(), wait, timeout)

    def modify(
        self,
        messages: Messages,
        *,
        delivery_failed: bool = True,
        undeliverable_here: bool = False,
        annotations: Mapping[Any, Any] | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Abandon messages, which counts a delivery; with `undeliverable_here`, defer them."""
        state = Modified(
            delivery_failed=delivery_failed,
            undeliverable_here=undeliverable_here,
            message_annotations=dict(annotations) if annotations else None,
        )
        self._settle(messages, state.encode(), wait, timeout)

    def settle(self, messages: Messages, state: bytes, *, wait: bool = False, timeout: float | None = None) -> None:
        """Settle with any encoded state, for example that of a transaction."""
        self._settle(messages, state, wait, timeout)

    def confirm(self, timeout: float | None = None) -> None:
        """Wait until the peer has confirmed all settlements; SettlementFailed if one of them failed."""
        self.connection.flush()
        self.wait_for(lambda: self._unconfirmed == 0, timeout, "the confirmation")
        self.wait_for(lambda: not self.connection.writing, timeout, "room to write")
        self._raise_failure()

    def on_confirmed(self, event: IncomingDisposed) -> None:
        if not event.settled:
            return
        self._unconfirmed = max(0, self._unconfirmed - len(event.deliveries))
        error = event.state.error if isinstance(event.state, Rejected) else None
        if error is not None and self._settlement_failure is None:
            tags = [delivery.tag for delivery in event.deliveries]
            self._settlement_failure = SettlementFailed(error.condition, error.description, tags)

    def _settle(self, messages: Messages, state: bytes, wait: bool, timeout: float | None) -> None:
        self.check()
        self._raise_failure()
        settled = not self._is_confirmed
        for message in (messages,) if isinstance(messages, ReceivedMessage) else messages:
            delivery = message.delivery
            if delivery.settled or delivery.link is not self._receiver:
                tag = delivery.tag.hex()
                raise ValueError(f"the message with tag {tag} is settled already, or is from another receiver")
            delivery.dispose(state, settled)
            self._unconfirmed += not settled
        if wait:
            self.confirm(timeout)
        else:
            self.connection.flush()

    def _raise_failure(self) -> None:
        failure, self._settlement_failure = self._settlement_failure, None
        if failure is not None:
            raise failure
