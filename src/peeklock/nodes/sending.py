"""Links on which a client sends to a queue or topic: messages and batches in, one outcome for each delivery out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.sections import data_sections
from peeklock.amqp.transactions import TransactionalState
from peeklock.amqp.types import Symbol, ULong
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.errors import (
    BrokerError,
    InvalidMessage,
    MessageSizeExceeded,
    NotSupported,
    ServerBusy,
)
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.links import Receiver
from peeklock.entities.authorization import Right
from peeklock.limits.amqp import MAX_BATCH_BYTES, MAX_BATCH_MESSAGES, MAX_UNSAVED_BYTES
from peeklock.nodes.addresses import Address
from peeklock.nodes.node import Node, rejected
from peeklock.nodes.settling import ACCEPTED

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

TRANSFER_DESTINATION: Final = "com.microsoft:transfer-destination-address"
"""A property of an attach: the destination of messages that are sent through this entity."""
MAX_BATCH_SIZE: Final = "com.microsoft:max-message-batch-size"
BATCH_FORMAT: Final = 0x80013700
CREDIT: Final = 2000
"""The most deliveries of a sender that may await their commit."""
MESSAGE_BYTES: Final = 600
"""About how much memory a message that awaits its commit uses in addition to its payload."""


class Sending(Node):
    """Sends the messages of a client to `_entity`, and answers each delivery."""

    def __init__(self, peer: Peer, address: Address, link: Receiver, entity: AnyEntity | None) -> None:
        super().__init__(peer, address)
        self._link = link
        self._in_flight = 0
        self._arrived: list[IncomingDelivery] = []
        """The deliveries that arrived in this turn."""
        self._journal = peer.namespace.journal
        if entity is not None:
            self._set_entity(entity)

    def _set_entity(self, entity: AnyEntity) -> None:
        """Make an entity the destination of the next sends."""
        self._entity = entity
        self._limit = entity.max_message_bytes

    def _destination(self, delivery: IncomingDelivery) -> str:
        """Set `_entity` to the destination of a delivery, and return the path of its queue or topic."""
        return self.address.owner

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        if delivery.state is not None:
            self.on_turn_ended()
            self._enlist(delivery)  # at once, because the discharge of the transaction may follow in the same turn
            return
        if not self._arrived:
            self.peer.busy.append(self)
        self._arrived.append(delivery)

    def on_turn_ended(self) -> None:
        """Send the deliveries of one turn together or, if that fails, each alone."""
        deliveries, self._arrived = self._arrived, []
        if deliveries:
            self._send_all(deliveries)

    def _send_all(self, deliveries: list[IncomingDelivery]) -> None:
        try:
            self._send(deliveries)
        except Exception:
            for delivery in deliveries:
                try:
                    self._send([delivery])
                except Exception as failure:
                    self._answer([delivery], rejected(self.peer.failed(failure, self)))

    def _send(self, deliveries: list[IncomingDelivery]) -> None:
        wants_session = self._entity.reads_session_ids
        messages: list[Incoming] = []
        cost = 0
        for delivery in deliveries:
            if delivery.oversize or delivery.message_format:
                messages += self._read_unusual(delivery)
            else:
                messages.append(read_incoming(delivery.data, wants_session, delivery.at, delivery.end))
            cost += delivery.end - delivery.at
        if self._journal.unsaved_bytes > MAX_UNSAVED_BYTES:
            raise ServerBusy("The broker is waiting for its store and accepts no messages for now; try again.")
        cost += MESSAGE_BYTES * len(messages) * self._entity.copies
        self._entity.send(messages, partial(self._sent, deliveries, cost))
        for delivery in deliveries:
            delivery.drop_data()
        self._in_flight += len(deliveries)
        self.peer.unsaved_bytes += cost
        self._journal.charge(cost)

    def _enlist(self, delivery: IncomingDelivery) -> None:
        """Add a send to a transaction. The client is answered at once."""
        state = delivery.state
        try:
            if not isinstance(state, TransactionalState):
                raise NotSupported(f"The state {type(state).__name__} is not supported on a transfer.")
            transaction = self.peer.transactions.get(state.txn_id)
            scope = self.peer.scope(self._destination(delivery), self._link)
            transaction.send(self._entity, self._read_unusual(delivery), scope)
        except Exception as error:
            failure = self.peer.failed(error, self)
            if isinstance(state, TransactionalState):
                self.peer.transactions.mark_rollback_only(state.txn_id, failure)
            self._answer([delivery], rejected(failure))
        else:
            self._answer([delivery], TransactionalState(state.txn_id, Accepted()).encode())

    def _read_unusual(self, delivery: IncomingDelivery) -> list[Incoming]:
        if delivery.message_format == BATCH_FORMAT:
            return self._read_batch(delivery)
        if delivery.oversize:
            raise MessageSizeExceeded(f"The message is larger than {self._limit} bytes, the limit of the entity.")
        if delivery.message_format:
            raise NotSupported(f"Message format 0x{delivery.message_format:x} is not known.")
        return [read_incoming(delivery.payload, self._entity.reads_session_ids)]

    def _read_batch(self, delivery: IncomingDelivery) -> list[Incoming]:
        if delivery.oversize:
            raise MessageSizeExceeded(f"The batch is larger than {self._limit} bytes, the limit of the entity.")
        try:
            encoded = data_sections(delivery.payload)
        except DecodeError as error:
            raise InvalidMessage(f"The batch could not be decoded: {error.description}.") from error
        if not encoded:
            raise InvalidMessage("The batch has no message.")
        if len(encoded) > MAX_BATCH_MESSAGES:
            raise MessageSizeExceeded(f"The batch has more than {MAX_BATCH_MESSAGES} messages.")
        wants_session = self._entity.reads_session_ids
        return [read_incoming(message, wants_session) for message in encoded]

    def _sent(self, deliveries: list[IncomingDelivery], cost: int, error: BrokerError | None) -> None:
        self._in_flight -= len(deliveries)
        self.peer.unsaved_bytes -= cost
        self._journal.discharge(cost)
        self._answer(deliveries, ACCEPTED if error is None else rejected(error))

    def _answer(self, deliveries: list[IncomingDelivery], outcome: bytes) -> None:
        for delivery in deliveries:
            delivery.dispose(outcome)
        link = self._link
        if link.credit + self._in_flight < CREDIT // 2 and link.attached:
            link.grant(CREDIT - self._in_flight)
        self.peer.wake()


class SendingNode(Sending):
    """Sends the messages of a client to one entity, possibly through another entity."""

    needs: Right | None = Right.SEND

    def __init__(
        self,
        peer: Peer,
        address: Address,
        link: Receiver,
        entity: AnyEntity,
        *,
        through: AnyEntity | None = None,
        destination: Address | None = None,
    ) -> None:
        super().__init__(peer, address, link, entity)
        self.destination = destination
        entity.check_sending()
        self.depend_on(link, entity, *(() if through is None else (through,)))
        limit = link.max_message_size = entity.max_message_bytes
        properties: dict[Any, Any] = {Symbol(MAX_BATCH_SIZE): ULong(min(limit, MAX_BATCH_BYTES))}
        asked = link.remote.properties if link.remote is not None else None
        if asked and TRANSFER_DESTINATION in asked:
            properties[Symbol(TRANSFER_DESTINATION)] = asked[TRANSFER_DESTINATION]
        link.accept(max_message_size=limit, properties=properties)
        link.grant(CREDIT)

    def on_entity_changed(self) -> None:
        self._limit = self._link.max_message_size = self._entity.max_message_bytes
