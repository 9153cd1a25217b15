"""Links on which a client receives from a queue: deliveries out, settlements in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Accepted, Modified, Received, Rejected, Released
from peeklock.broker.definitions import Right
from peeklock.broker.envelope import head
from peeklock.broker.errors import BrokerError, InvalidProperty, MessageLockLost, NotSupported
from peeklock.broker.queue import Done, Lock, Queue
from peeklock.engine.deliveries import OutgoingDelivery
from peeklock.engine.links import Sender
from peeklock.nodes.addresses import Address
from peeklock.nodes.node import Node, rejected
from peeklock.nodes.sending import ACCEPTED
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

SETTLED_BY_SENDER: Final = 1
"""snd-settle-mode of a receive-and-delete link."""
RELEASED: Final = Released().encode()
MODIFIED: Final = Modified().encode()
DEAD_LETTERED: Final = Rejected().encode()
"""Without the error: clients take one for a failure to dead-letter."""


class ReceivingNode(Node):
    """Gives the messages of one queue to a client."""

    needs = Right.LISTEN

    def __init__(self, peer: Peer, address: Address, link: Sender, queue: Queue) -> None:
        super().__init__(peer, address)
        self._link = link
        self._queue = queue
        self._reserved = 0
        assert link.remote is not None
        self.deletes = link.remote.snd_settle_mode == SETTLED_BY_SENDER
        queue.check_receiving()
        link.accept()

    # --- as a consumer of the queue ---

    def ready(self) -> bool:
        return self._link.credit > self._reserved and self._link.ready()

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        link = self._link
        if lock is not None:
            link.send(lock.tag, (head(message, lock.expires_at), message.payload), context=lock)
        else:
            self._reserved -= 1
            if link.attached:
                tag = message.sequence_number.to_bytes(16)
                link.send(tag, (head(message, None), message.payload), settled=True)
        self.peer.wake()

    def reserve(self) -> None:
        self._reserved += 1

    def starved(self) -> None:
        if self._link.drain and not self._reserved and self._link.attached:
            self._link.drained()
            self._link.drain = False
            self.peer.wake()

    # --- as a node ---

    def on_credit(self) -> None:
        if self._link.credit > 0:
            self._queue.want(self)
        else:
            self.starved()

    def closed(self) -> None:
        self._queue.leave(self)

    def on_disposed(self, deliveries: list[OutgoingDelivery], state: Any, settled: bool) -> None:
        if type(state) is Accepted:
            complete = self._queue.complete
            for delivery in deliveries:
                try:
                    complete(delivery.context, partial(self._settled, delivery, ACCEPTED))
                except MessageLockLost as failure:
                    self._settled(delivery, ACCEPTED, failure)
            return
        settle = self._gesture(state, settled)
        if settle is not None:
            for delivery in deliveries:
                try:
                    settle(delivery)
                except BrokerError as failure:
                    self._settled(delivery, b"", failure)

    def _settled(self, delivery: OutgoingDelivery, outcome: bytes, error: BrokerError | None) -> None:
        delivery.settle(outcome if error is None else rejected(error))
        self.peer.wake()

    def _gesture(self, state: Any, settled: bool) -> Callable[[OutgoingDelivery], None] | None:
        """What the state asks for, as something to do to each delivery."""
        queue = self._queue
        if isinstance(state, Modified):
            properties = state.message_annotations
            # Deferring is told from abandoning by undeliverable-here alone; what else is set differs by SDK.
            act = queue.defer if state.undeliverable_here else queue.abandon
            return lambda delivery: act(delivery.context, self._done(delivery, MODIFIED), properties)
        if isinstance(state, Rejected):
            reason, description, properties = _dead_letter_reason(state)
            return lambda delivery: queue.dead_letter(
                delivery.context, self._done(delivery, DEAD_LETTERED), reason, description, properties
            )
        if isinstance(state, Released) or (state is None and settled):
            return self._release
        if state is None or isinstance(state, Received):
            return None  # not a final word
        return self._unsupported

    def _done(self, delivery: OutgoingDelivery, outcome: bytes) -> Done:
        return partial(self._settled, delivery, outcome)

    def _release(self, delivery: OutgoingDelivery) -> None:
        self._queue.release(delivery.context)
        self._settled(delivery, RELEASED, None)

    def _unsupported(self, delivery: OutgoingDelivery) -> None:
        raise NotSupported("Transactions are not supported yet.")


def _dead_letter_reason(state: Rejected) -> tuple[str | None, str | None, dict[Any, Any]]:
    """Reason, description and properties out of a rejected outcome; clients that know no Service Bus give an error."""
    error = state.error
    if error is None:
        return None, None, {}
    properties = {str(key): value for key, value in (error.info or {}).items()}
    reason = properties.pop("DeadLetterReason", None)
    description = properties.pop("DeadLetterErrorDescription", None)
    if reason is None and error.condition != Condition.DEAD_LETTER:
        reason = str(error.condition)
    for name, value in (("DeadLetterReason", reason), ("DeadLetterErrorDescription", description)):
        if value is not None and not isinstance(value, str):
            raise InvalidProperty(f"{name} must be a string.")
    return reason, description or error.description or None, properties
