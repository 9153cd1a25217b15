"""The transaction coordinator (4.1), which handles declare and discharge."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.codec import encode_value
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.errors import AmqpError
from peeklock.amqp.message import Message
from peeklock.amqp.transactions import Declare, Declared, Discharge
from peeklock.amqp.types import Described
from peeklock.broker.errors import BrokerError, InvalidMessage, NotSupported
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.links import Receiver
from peeklock.limits.amqp import MAX_COORDINATOR_BYTES
from peeklock.nodes.addresses import Address
from peeklock.nodes.node import Node, rejected
from peeklock.nodes.settling import ACCEPTED

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

CREDIT: Final = 200


class CoordinatorNode(Node):
    """Declares and discharges transactions of its connection. When the link ends, its transactions are rolled back."""

    def __init__(self, peer: Peer, address: Address, link: Receiver) -> None:
        super().__init__(peer, address)
        self._link = link
        self._declared: set[bytes] = set()
        link.max_message_size = MAX_COORDINATOR_BYTES
        link.accept(max_message_size=MAX_COORDINATOR_BYTES)
        link.grant(CREDIT)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        try:
            self._handle(delivery)
        except Exception as failure:
            delivery.dispose(rejected(self.peer.failed(failure, self)))
        if self._link.credit < CREDIT // 2:
            self._link.grant(CREDIT)
        self.peer.wake()

    def on_closed(self) -> None:
        self.peer.transactions.forget(list(self._declared))

    def _handle(self, delivery: IncomingDelivery) -> None:
        request = _read(delivery)
        if isinstance(request, Declare):
            if delivery.settled:
                return  # the client would not get the id of the transaction
            if request.global_id is not None:
                raise NotSupported("Transactions are local to a connection: declare without a global-id.")
            id = self.peer.transactions.declare()
            self._declared.add(id)
            delivery.dispose(Declared(id).encode())
        else:
            self._declared.discard(request.txn_id)
            self.peer.transactions.discharge(
                request.txn_id, fail=bool(request.fail), done=partial(self._discharged, delivery)
            )

    def _discharged(self, delivery: IncomingDelivery, error: BrokerError | None) -> None:
        delivery.dispose(ACCEPTED if error is None else rejected(error))
        self.peer.wake()


def _read(delivery: IncomingDelivery) -> Declare | Discharge:
    try:
        value: Any = Message.decode(delivery.payload).value
        if isinstance(value, Described):
            value = decode_composite(encode_value(value))[0]
    except AmqpError as error:  # a described value is encoded again for `decode_composite`
        raise InvalidMessage(f"The coordinator could not decode the message: {error.description}.") from error
    if not isinstance(value, Declare | Discharge):
        raise InvalidMessage("The coordinator accepts declare and discharge only.")
    return value
