"""The anonymous relay: a link without a target. The property `to` of each message has its destination.

A message is rejected if a link to its destination would be refused: the entity is unknown, or a right is missing. The
link stays attached. Rights are checked when the message arrives. Nothing is cached about destinations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.termini import Target
from peeklock.broker.audit import DENIED
from peeklock.broker.bare_message import destination_of
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
"""The capability in the broker's open."""
NO_ADDRESS: Final = Address()


class RelayNode(Sending):
    """Sends each message to the entity that it names."""

    def __init__(self, peer: Peer, link: Receiver) -> None:
        super().__init__(peer, NO_ADDRESS, link, None)
        self.check_rights(peer.namespace.now())
        limit = link.max_message_size = peer.namespace.profile.max_message_bytes
        asked = None if link.remote is None else link.remote.target
        link.accept(max_message_size=limit, target=asked if isinstance(asked, Target) else Target())
        link.grant(CREDIT)

    def check_rights(self, now: int) -> None:
        """Raise Unauthorized if the connection may not send to any entity."""
        if not self.peer.grants.has(Right.SEND, now):
            raise Unauthorized("Unauthorized access: a 'Send' claim is required to send without a target.")

    def _send_all(self, deliveries: list[IncomingDelivery]) -> None:
        """Send the messages of one turn, grouped by destination. Their order is kept within each destination."""
        by_destination: dict[str, list[IncomingDelivery]] = {}
        for delivery in deliveries:
            try:
                by_destination.setdefault(_named_by(delivery), []).append(delivery)
            except Exception as failure:
                self._answer([delivery], rejected(self.peer.failed(failure, self)))
        for name, together in by_destination.items():
            try:
                self._select(name)
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
        return self._select(_named_by(delivery)).owner

    def _select(self, name: str) -> Address:
        """Make an address the destination of the next sends. Raise BrokerError if a link to it would be refused."""
        address = parse_address(name)
        try:
            self.peer.grants.check(address.entity, address.owner, Right.SEND, self.peer.namespace.now())
        except Unauthorized as failure:
            self.peer.audit("send", DENIED, address.path, reason=str(failure))
            raise
        if address.is_management:
            raise EntityNotFound(address.path)
        entity = self.peer.namespace.entity(address.entity)
        entity.check_sending()
        self._set_entity(entity)
        return address


def _named_by(delivery: IncomingDelivery) -> str:
    """Return the destination of the message."""
    if delivery.oversize:
        raise MessageSizeExceeded("The message is larger than any entity accepts.")
    try:
        name = destination_of(delivery.data[delivery.at : delivery.end])
    except DecodeError as error:
        raise InvalidMessage(f"The message could not be decoded: {error.description}.") from error
    if not isinstance(name, str) or not name:
        raise InvalidField("The link has no target, and the message has no property 'to' with its destination.")
    return str(name)
