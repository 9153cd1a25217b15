"""The anonymous relay: a link without a target, on which each message goes where its `to` property says.

What would refuse a link to that address refuses the message, and only that message: an unknown entity, a missing right.
Rights are checked as they are when the message comes. Nothing is remembered about destinations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.termini import Target
from peeklock.broker.audit import DENIED
from peeklock.broker.envelope import destination_of
from peeklock.broker.errors import (
    EntityNotFound,
    InvalidField,
    InvalidMessage,
    MessageSizeExceeded,
    Unauthorized,
)
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.links import Receiver
from peeklock.entities.authorization import Right
from peeklock.nodes.addresses import Address, parse_address
from peeklock.nodes.node import rejected
from peeklock.nodes.sending import CREDIT, Sending

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

ANONYMOUS_RELAY: Final = "ANONYMOUS-RELAY"
"""The capability that an open offers."""
NOWHERE: Final = Address()


class RelayNode(Sending):
    """Sends each message on to the entity that it names."""

    def __init__(self, peer: Peer, link: Receiver) -> None:
        super().__init__(peer, NOWHERE, link, None)
        self.check_rights(peer.namespace.now())
        limit = link.max_message_size = peer.namespace.profile.max_message_bytes
        asked = None if link.remote is None else link.remote.target
        link.accept(max_message_size=limit, target=asked if isinstance(asked, Target) else Target())
        link.grant(CREDIT)

    def check_rights(self, now: int) -> None:
        """Whoever may send to nothing at all may not attach."""
        if not self.peer.claims.has(Right.SEND, now):
            raise Unauthorized("Unauthorized access: a 'Send' claim is required to send without a target.")

    def _send_all(self, deliveries: list[IncomingDelivery]) -> None:
        """What one turn brought for one entity is sent together; the order between entities means nothing."""
        by_destination: dict[str, list[IncomingDelivery]] = {}
        for delivery in deliveries:
            try:
                by_destination.setdefault(_named_by(delivery), []).append(delivery)
            except Exception as failure:
                self._answer([delivery], rejected(self.peer.failed(failure, self)))
        for name, together in by_destination.items():
            try:
                self._turn_to(name)
            except Exception as failure:
                self._answer(together, rejected(self.peer.failed(failure, self)))
            else:
                super()._send_all(together)

    def _send(self, deliveries: list[IncomingDelivery]) -> None:
        for delivery in deliveries:
            if delivery.end - delivery.at > self._limit:
                raise MessageSizeExceeded(f"The message is larger than {self._limit} bytes, the limit of its entity.")
        super()._send(deliveries)

    def _destination(self, delivery: IncomingDelivery) -> str:
        return self._turn_to(_named_by(delivery)).owner

    def _turn_to(self, name: str) -> Address:
        """Send to that address from now on. Raises what a link to it would be refused with."""
        address = parse_address(name)
        try:
            self.peer.claims.check(address.entity, address.owner, Right.SEND, self.peer.namespace.now())
        except Unauthorized as failure:
            self.peer.audit("send", DENIED, address.path, reason=str(failure))
            raise
        if address.is_management:
            raise EntityNotFound(address.path)
        entity = self.peer.namespace.entity(address.entity)
        entity.check_sending()
        self._go_to(entity)
        return address


def _named_by(delivery: IncomingDelivery) -> str:
    """Where the message says that it goes."""
    if delivery.oversize:
        raise MessageSizeExceeded("The message is larger than any entity takes.")
    try:
        name = destination_of(delivery.data[delivery.at : delivery.end])
    except DecodeError as error:
        raise InvalidMessage(f"The message could not be read: {error.description}.") from error
    if not isinstance(name, str) or not name:
        raise InvalidField("The link has no target, and the message has no 'to' that says where it goes.")
    return str(name)
