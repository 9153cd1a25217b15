"""What stands at the broker's end of a link, and how failures are put into words for the peer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peeklock.amqp.outcomes import Error, Rejected
from peeklock.broker.access import Claims
from peeklock.broker.entity import Entity
from peeklock.broker.errors import BrokerError, OperationNotAllowed, Unauthorized
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
from peeklock.engine.links import Link
from peeklock.entities.authorization import Right
from peeklock.nodes.addresses import Address

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer


class Node:
    """The broker's end of one link. Deaf by default: each kind of node hears what concerns it."""

    needs: Right | None = None
    """The right the link depends on as long as it lives; None for nodes that are open to all."""
    destination: Address | None = None
    """Where the same right is needed, too."""

    def __init__(self, peer: Peer, address: Address) -> None:
        self.peer = peer
        self.address = address

    def check_rights(self, now: int) -> None:
        """Unauthorized when the connection has no claim any more that the link depends on."""
        if self.address.is_management:
            check_any_right(self.peer.claims, self.address, now)
        elif self.needs is not None:
            for address in (self.address, self.destination):
                if address is not None:
                    self.peer.claims.check(address.entity, address.owner, self.needs, now)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        raise OperationNotAllowed(f"'{self.address.path}' takes no messages on this link.")

    def on_turn_ended(self) -> None:
        """All that was read at once has been handed over; only for nodes that are in `peer.busy`."""

    def on_disposed(self, deliveries: list[OutgoingDelivery], state: Any, settled: bool) -> None:
        """The peer's word on messages it was sent."""

    def on_credit(self) -> None:
        """The peer changed the credit or wants the link drained, or there is room to send again."""

    def on_link_closed(self) -> None:
        """The client closed the link, and did not only suspend it; `closed` follows."""

    def on_closed(self) -> None:
        """The link is gone, for whatever reason."""

    # --- at an entity ---

    _place: tuple[Link, tuple[Entity, ...]] | None = None

    def depend_on(self, link: Link, *entities: Entity) -> None:
        """The link needs these entities: attached, it hears when one of them goes, and keeps them from being idle."""
        self._place = link, entities

    def on_attached(self) -> None:
        if self._place is not None:
            for entity in self._place[1]:
                entity.watch(self)

    def stop_watching(self) -> None:
        """The link is gone: nobody stands there any more."""
        if self._place is not None:
            for entity in self._place[1]:
                entity.unwatch(self)
            self._place = None

    def entity_changed(self) -> None:
        """The entity has another definition; what that refuses is refused when it is tried."""

    def entity_gone(self, failure: BrokerError) -> None:
        """The link cannot stay."""
        if self._place is not None:
            self.peer.detach(self._place[0], failure)


def check_any_right(claims: Claims, address: Address, now: int) -> None:
    """`$management` is open to whoever may do anything with the entity; each operation asks for its own right."""
    for right in (Right.LISTEN, Right.SEND):
        try:
            # By the whole path: some clients put a token for `$management` alone.
            claims.check(address.path, address.owner, right, now)
        except Unauthorized as failure:
            refusal = failure
        else:
            return
    raise refusal


def error_of(failure: BrokerError) -> Error:
    return Error(condition=failure.condition, description=str(failure))


def rejected(failure: BrokerError) -> bytes:
    return Rejected(error=error_of(failure)).encode()
