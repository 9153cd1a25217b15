"""Links on which a client receives: deliveries out, settlements in.

`Receiving` is the base class of all receivers. `ReceivingNode` and `SelectingNode` are receivers without sessions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.outcomes import Accepted, Modified, Received, Rejected, Released
from peeklock.amqp.termini import Source
from peeklock.amqp.transactions import TransactionalState
from peeklock.broker.errors import BrokerError, MessageLockLost, SessionLockLost
from peeklock.broker.heads import head
from peeklock.broker.locks import Lock
from peeklock.broker.message_queue import MessageQueue
from peeklock.broker.queue import Queue
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.broker.window_budget import memory_cost
from peeklock.engine.deliveries import OutgoingDelivery
from peeklock.engine.links import Sender
from peeklock.entities.authorization import Right
from peeklock.nodes.addresses import Address
from peeklock.nodes.filters import Filters, in_force
from peeklock.nodes.node import Node, rejected
from peeklock.nodes.settling import ACCEPTED, ANSWERS, OUTCOMES, RELEASED, settlement_of_outcome
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

SETTLED_BY_SENDER: Final = 1
"""The snd-settle-mode of a receive-and-delete link."""
_COMPLETION: Final = Settlement(Verdict.COMPLETE)


class Receiving(Node):
    """Delivers messages to a client and settles them by its outcomes."""

    needs: Right | None = Right.LISTEN

    def __init__(self, peer: Peer, address: Address, link: Sender, queue: MessageQueue) -> None:
        super().__init__(peer, address)
        self._link = link
        self._entity = queue
        self._settlements = queue.settlements
        self._reserved = 0
        self._held = peer.held
        self._unwritten = peer.unwritten
        self._gives_copies = queue.holds_copies
        assert link.remote is not None
        self.deletes = link.remote.snd_settle_mode == SETTLED_BY_SENDER
        queue.check_receiving()
        self.depend_on(link, queue)

    def on_entity_changed(self) -> None:
        try:
            self._entity.check_receiving()
        except BrokerError as failure:
            self.on_entity_deleted(failure)

    # --- as a consumer ---

    def ready(self) -> bool:
        if self._link.credit <= self._reserved or not self._link.ready():
            return False
        if self._held.is_full:
            if not self.deletes:
                self.on_starved()  # no more messages are sent for now, so a drain is answered
                return False
            if self._unwritten.bytes:  # otherwise it may have one, because the client cannot release memory
                self._unwritten.is_awaited = True
                return False
        return True

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        link = self._link
        if lock is not None:
            lock.charge(self._held)
            link.send(lock.tag, _parts(message, lock.locked_until, lock.token, self._gives_copies), context=lock)
        else:
            self._reserved -= 1
            size = memory_cost(message)
            if link.attached:
                link.send(b"", _parts(message, None, None, self._gives_copies), settled=True)
                self._unwritten.on_sent(size)
                self._answer_drain()
            else:
                self._unwritten.cancel(size)
        self.peer.wake()

    def reserve(self, message: StoredMessage) -> None:
        self._reserved += 1
        self._unwritten.reserve(memory_cost(message))

    def unreserve(self, message: StoredMessage) -> None:
        self._reserved -= 1
        self._unwritten.cancel(memory_cost(message))
        self._answer_drain()
        # Ask for messages again after a delay: the store would refuse the same removal at once.
        self.peer.namespace.agenda.after(RETRY_MS, self._want_again)

    def _want_again(self) -> None:
        if self._link.attached:
            self.on_credit()

    def _answer_drain(self) -> None:
        """Answer a drain, unless messages that are being removed are still to be delivered."""
        if self._link.drain and not self._reserved and self._link.attached:
            self.on_credit()

    def on_starved(self) -> None:
        if self._link.drain and not self._reserved and self._link.attached:
            self._link.finish_drain()
            self._link.drain = False
            self.peer.wake()

    # --- as a node ---

    def on_disposed(self, deliveries: list[OutgoingDelivery], state: Any, settled: bool) -> None:
        if type(state) is Accepted:
            if len(deliveries) > 1 and self._settle_all(deliveries, _COMPLETION):
                return
            complete = self._settlements.complete
            for delivery in deliveries:
                lock = delivery.context
                if lock is None:
                    continue  # the client settled the delivery before, and its commit is under way
                delivery.context = None
                try:
                    complete(lock, partial(self._settled, delivery, ACCEPTED))
                except (MessageLockLost, SessionLockLost) as failure:
                    self._settled(delivery, ACCEPTED, failure)
            return
        if isinstance(state, TransactionalState):
            self._enlist(deliveries, state, settled)
        elif isinstance(state, Released) or (state is None and settled):
            for delivery in deliveries:
                if delivery.context is not None:
                    self._settlements.release(delivery.context)
                    self._settled(delivery, RELEASED, None)
        elif state is not None and not isinstance(state, Received):  # Received is not an outcome
            settlement = settlement_of_outcome(state)
            if len(deliveries) > 1 and settlement.verdict is Verdict.DEFER and self._settle_all(deliveries, settlement):
                return
            self._settlements.check_together(len(deliveries), settlement.added)
            settlement.check()
            outcome = ANSWERS[settlement.verdict]
            for delivery in deliveries:
                lock, delivery.context = delivery.context, None
                if lock is None:
                    continue
                try:
                    self._settlements.settle(settlement, lock, partial(self._settled, delivery, outcome))
                except Exception as failure:
                    self._settled(delivery, outcome, self.peer.failed(failure, self))

    def _settle_all(self, deliveries: list[OutgoingDelivery], settlement: Settlement) -> bool:
        """Settle a range of deliveries as one change. Return False, without any effect, if one lock is not held."""
        locks: list[Lock | None] = [delivery.context for delivery in deliveries]
        done = partial(self._all_settled, deliveries, ANSWERS[settlement.verdict])
        try:
            self._settlements.settle_all(settlement, locks, done)
        except (MessageLockLost, SessionLockLost):
            return False
        for delivery in deliveries:
            delivery.context = None
        return True

    def _all_settled(self, deliveries: list[OutgoingDelivery], outcome: bytes, error: BrokerError | None) -> None:
        outcome = outcome if error is None else rejected(error)
        for delivery in deliveries:
            delivery.settle(outcome)
        self.peer.wake()

    def _enlist(self, deliveries: list[OutgoingDelivery], state: TransactionalState, settled: bool) -> None:
        """Add settlements to a transaction. The client is answered at once, and keeps its locks until the discharge.

        If the client has settled the deliveries on its side, a rollback returns the messages at once.
        """
        scope = self.peer.scope(self.address.owner, self._link)
        on_rollback = self._return_message if settled else None
        for delivery in deliveries:
            lock = delivery.context
            if lock is None:
                continue
            try:
                transaction = self.peer.transactions.get(state.txn_id)
                settlement = _COMPLETION if state.outcome is None else settlement_of_outcome(state.outcome)
                settlement.check()
                transaction.settle(self._settlements, [lock], settlement, scope, on_rollback)
            except BrokerError as failure:
                self.peer.transactions.mark_rollback_only(state.txn_id, failure)
                self._settled(delivery, b"", failure)
                if on_rollback is not None:
                    on_rollback(lock)
            else:
                provisional = TransactionalState(state.txn_id, OUTCOMES[settlement.verdict]())
                self._settled(delivery, provisional.encode(), None)

    def _return_message(self, lock: Lock) -> None:
        """Apply the default outcome of the link's source to a message whose settlement was rolled back.

        Without a default outcome, or if it is `accepted`, the message is released: a rollback must not lose a message.
        """
        attach = self._link.remote
        source = None if attach is None else attach.source
        outcome = source.default_outcome if isinstance(source, Source) else None
        if not isinstance(outcome, Modified | Rejected):
            self._settlements.release(lock)
            return
        try:
            self._settlements.settle(settlement_of_outcome(outcome), lock, partial(self._on_returned, lock))
        except Exception as failure:
            self._on_returned(lock, self.peer.failed(failure, self))

    def _on_returned(self, lock: Lock, error: BrokerError | None) -> None:
        if error is not None:
            self._settlements.release(lock)  # otherwise the message would stay locked without a holder

    def _settled(self, delivery: OutgoingDelivery, outcome: bytes, error: BrokerError | None) -> None:
        delivery.settle(outcome if error is None else rejected(error))
        self.peer.wake()


class ReceivingNode(Receiving):
    """A receiver of a queue without sessions."""

    def __init__(self, peer: Peer, address: Address, link: Sender, queue: Queue) -> None:
        super().__init__(peer, address, link, queue)
        self._queue = queue
        assert link.remote is not None
        assert isinstance(link.remote.source, Source)
        link.accept(source=in_force(link.remote.source))

    def on_credit(self) -> None:
        if self._link.credit > 0:
            self._queue.want(self)
        else:
            self.on_starved()

    def on_closed(self) -> None:
        self._queue.leave(self)


class SelectingNode(Receiving):
    """A receiver with a selector, of a queue without sessions. It gets only the messages that match."""

    def __init__(self, peer: Peer, address: Address, link: Sender, queue: Queue, filters: Filters) -> None:
        super().__init__(peer, address, link, queue)
        attach = link.remote
        assert attach is not None
        assert isinstance(attach.source, Source)
        assert filters.selector is not None
        self._queue = queue
        self._selection = queue.select(self, filters.selector)
        try:
            link.accept(source=in_force(attach.source, filters.selector_key))
        except AmqpError:
            self.on_closed()
            raise

    def on_credit(self) -> None:
        if self._link.credit > 0:
            self._queue.want_selected(self._selection)
        else:
            self.on_starved()

    def on_closed(self) -> None:
        self._queue.stop_selecting(self._selection)


def _parts(message: StoredMessage, locked_until: int | None, token: bytes | None, is_copy: bool) -> tuple[bytes, ...]:
    """Return the parts of an encoded message. Joined, they are the message."""
    front = head(message, locked_until, token, False, is_copy)
    if message.body is None:
        return front, message.payload
    return front, message.payload, message.body.data
