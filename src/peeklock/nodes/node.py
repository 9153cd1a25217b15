"""The base class of nodes, which are the broker's ends of links, and the encoding of failures for the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peeklock.amqp.outcomes import Error, Rejected
from peeklock.broker.access import Grants
from peeklock.broker.entity import Entity
from peeklock.broker.errors import BrokerError, OperationNotAllowed, Unauthorized
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
from peeklock.engine.links import Link
from peeklock.entities.authorization import Right
from peeklock.nodes.addresses import Address

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer


class Node:
    """The broker's end of one link. Handlers default to no-ops; each subclass overrides those that it needs."""

    needs: Right | None = None
    """The right that the link requires while it is attached; None if it requires none."""
    destination: Address | None = None
    """A second address for which the link requires the same right."""

    def __init__(self, peer: Peer, address: Address) -> None:
        self.peer = peer
        self.address = address

    def check_rights(self, now: int) -> None:
        """Raise Unauthorized if the connection no longer has a grant for the right that the link requires."""
        if self.address.is_management:
            check_any_right(self.peer.grants, self.address, now)
        elif self.needs is not None:
            for address in (self.address, self.destination):
                if address is not None:
                    self.peer.grants.check(address.entity, address.owner, self.needs, now)

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        raise OperationNotAllowed(f"'{self.address.path}' accepts no messages on this link.")

    def on_turn_ended(self) -> None:
        """All events of one read from the transport were handled. Called only for nodes in `peer.busy`."""

    def on_disposed(self, deliveries: list[OutgoingDelivery], state: Any, settled: bool) -> None:
        """The client sent a state for deliveries, or settled them."""

    def on_credit(self) -> None:
        """The client changed credit or drain, or sending has become possible again."""

    def on_link_closed(self) -> None:
        """The client closed the link instead of suspending it. `on_closed` follows."""

    def on_closed(self) -> None:
        """The link is detached, for any reason."""

    # --- the entities of the link ---

    _dependencies: tuple[Link, tuple[Entity, ...]] | None = None

    def depend_on(self, link: Link, *entities: Entity) -> None:
        """Set the entities of the link. While it is attached, it watches them, and they do not count as idle."""
        self._dependencies = link, entities

    def on_attached(self) -> None:
        """The link was accepted, or a waiting node was replaced by this one."""
        if self._dependencies is not None:
            for entity in self._dependencies[1]:
                entity.watch(self)

    def stop_watching(self) -> None:
        """Stop watching the entities of the link, because it is detached."""
        if self._dependencies is not None:
            for entity in self._dependencies[1]:
                entity.unwatch(self)
            self._dependencies = None

    def on_entity_changed(self) -> None:
        """The definition of the entity has changed. Subclasses detach the link if it is no longer allowed."""

    def on_entity_deleted(self, failure: BrokerError) -> None:
        """The entity was deleted, or no longer allows the link: detach it."""
        if self._dependencies is not None:
            self.peer.detach(self._dependencies[0], failure)


def check_any_right(grants: Grants, address: Address, now: int) -> None:
    """Raise Unauthorized if the client has neither Listen nor Send on the entity, of which `$management` requires one.

    Each operation then checks its own right.
    """
    for right in (Right.LISTEN, Right.SEND):
        try:
            # The path includes `$management`, because some clients send a token for that path only.
            grants.check(address.path, address.owner, right, now)
        except Unauthorized as failure:
            refusal = failure
        else:
            return
    raise refusal


def error_of(failure: BrokerError) -> Error:
    return Error(condition=failure.condition, description=str(failure))


def rejected(failure: BrokerError) -> bytes:
    return Rejected(error=error_of(failure)).encode()
