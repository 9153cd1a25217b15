"""Receiving: messages taken out in lists, and settled in ranges."""

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
    """How a message leaves the peer."""

    PEEK_LOCK = "peek-lock"
    """It stays locked until it is settled, and the peer confirms that (rcv-settle-mode second)."""
    SETTLE_FIRST = "settle-first"
    """It stays locked until it is settled here; the peer does not confirm (rcv-settle-mode first)."""
    RECEIVE_AND_DELETE = "receive-and-delete"
    """It is gone when it is sent (snd-settle-mode settled)."""


_SETTLE_MODES = {
    ReceiveMode.PEEK_LOCK: (0, 1),
    ReceiveMode.SETTLE_FIRST: (0, 0),
    ReceiveMode.RECEIVE_AND_DELETE: (1, 0),
}
_DRAIN_SECONDS = 1.0
"""How long a receiver that closes waits for what is on its way; not every peer answers a drain."""
_ACCEPTED = Accepted().encode()
_RELEASED = Released().encode()


class ReceivedMessage:
    """A message that came; it is decoded when it is first looked into."""

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
        """The data sections joined, or else the value, or else the sequences."""
        message = self.message
        if message.data:
            return b"".join(message.data)
        return message.sequences if message.value is NO_VALUE else message.value

    @property
    def tag(self) -> bytes:
        return self.delivery.tag

    @property
    def lock_token(self) -> UUID | None:
        """The delivery tag as Service Bus means it."""
        return UUID(bytes_le=self.tag) if len(self.tag) == 16 else None

    @property
    def settled(self) -> bool:
        return self.delivery.settled


Messages = ReceivedMessage | Sequence[ReceivedMessage]


class Receiver(ClientLink):
    """A link to receive on, made by `Connection.receiver`."""

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
        """Arrived and not taken out yet."""
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
        # The peer says what it does; one that settles first is not asked for confirmation.
        self._is_confirmed = rcv_settle_mode == 1 and self.remote is not None and self.remote.rcv_settle_mode == 1
        self._top_up()

    # --- taking messages ---

    @property
    def source(self) -> Source | None:
        """What the peer receives from for us: the address of a dynamic node, the accepted filters."""
        return self.remote.source if self.remote is not None else None

    @property
    def credit(self) -> int:
        """How many messages may be on their way or wait here; 0: they come only while they are asked for."""
        return self._credit

    @credit.setter
    def credit(self, credit: int) -> None:
        """For the next ones; credit that the peer has stays until it is used or drained."""
        self._credit = credit

    @property
    def waiting(self) -> int:
        """Messages that came, and that nobody took out yet."""
        return len(self._ready)

    def receive(self, max_count: int = 1, timeout: float | None = None) -> list[ReceivedMessage]:
        """Up to `max_count` messages as soon as there is one; an empty list when none came in time."""
        ready = self._ready
        if not ready:
            self.check()
            self._receive_more(max_count, timeout)
        taken = [ReceivedMessage(ready.popleft()) for _ in range(min(max_count, len(ready)))]
        self._top_up()
        return taken

    def messages(self, timeout: float | None = None) -> Iterator[ReceivedMessage]:
        """One after the other; ends when none came for `timeout` seconds, and never when that is None."""
        while True:
            taken = self.receive(1, timeout)
            if taken:
                yield taken[0]
            elif timeout is not None:
                return

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """All that come, for ever."""
        return self.messages()

    def drain(self, timeout: float | None = None) -> None:
        """Take the credit back: what the peer has at hand still comes, then nothing until more is received."""
        self.check()
        link = self._receiver
        if link.credit <= 0:
            return
        link.grant(link.credit, drain=True)
        # A peer whose last messages used up the credit has nothing to take back, and need not say so.
        self.wait_for(lambda: not link.drain or link.credit <= 0, timeout, "the end of the drain")
        link.drain = False

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        self._ready.append(delivery)

    def close(self) -> None:
        """Detach; messages that nobody took out are given back, if they can be."""
        if not self.closed:
            with suppress(ClientError):
                self.drain(timeout=_DRAIN_SECONDS)  # what is on its way would stay locked
        while self._ready:
            self._ready.popleft().dispose(_RELEASED)
        super().close()

    def _receive_more(self, max_count: int, timeout: float | None) -> None:
        """Wait for a message, or for the time."""
        if self._credit == 0:
            self._receiver.grant(max_count)
        else:
            self._top_up()
        with suppress(Timeout):
            self.wait_for(lambda: len(self._ready) > 0, timeout, "a message")
        if self._credit == 0:
            try:
                self.drain()  # nothing may come, and be locked, while nobody asks for it
            except Timeout:
                if not self._ready:  # what came may be gone from the peer, and must not be lost for that
                    raise

    def _top_up(self) -> None:
        """Give credit for what was taken out, in steps of half of it."""
        link = self._receiver
        wanted = self._credit - len(self._ready)
        if link.attached and wanted - link.credit >= (self._credit + 1) // 2 > 0:
            link.grant(wanted)

    # --- settling ---

    def accept(self, messages: Messages, *, wait: bool = False, timeout: float | None = None) -> None:
        """Done with them: complete."""
        self._settle(messages, _ACCEPTED, wait, timeout)

    def release(self, messages: Messages, *, wait: bool = False, timeout: float | None = None) -> None:
        """Give them back, uncounted."""
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
        """They are no good: dead-letter."""
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
        """Give them back as tried: abandon, or with `undeliverable_here` defer."""
        state = Modified(
            delivery_failed=delivery_failed,
            undeliverable_here=undeliverable_here,
            message_annotations=dict(annotations) if annotations else None,
        )
        self._settle(messages, state.encode(), wait, timeout)

    def settle(self, messages: Messages, state: bytes, *, wait: bool = False, timeout: float | None = None) -> None:
        """Settle with any encoded state, a transaction's for example."""
        self._settle(messages, state, wait, timeout)

    def confirm(self, timeout: float | None = None) -> None:
        """Wait until the peer has confirmed all that was settled; SettlementFailed when it did not do as asked."""
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
                raise ValueError(f"the message with tag {delivery.tag.hex()} is settled, or not from this receiver")
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
