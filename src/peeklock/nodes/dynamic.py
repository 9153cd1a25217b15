"""Links that create their own node (`dynamic`, 3.5.3): temporary queues and topics.

Creating a temporary entity requires Listen for the whole namespace, since its purpose is to receive from it. Only the
connection that created it receives from it. Sending to it requires Send for the whole namespace. It is deleted when the
link that created it is detached, whatever lifetime policy the link asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.termini import Source, Target
from peeklock.amqp.types import Described, Symbol, ULong
from peeklock.broker.audit import DENIED
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.errors import BrokerError, Unauthorized
from peeklock.broker.temporary import Owner
from peeklock.engine.links import Link, Sender
from peeklock.entities.authorization import Right
from peeklock.nodes.addresses import Address
from peeklock.nodes.node import Node

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

TEMPORARY_TOPIC: Final = "temporary-topic"
LIFETIME_POLICY: Final = "lifetime-policy"
_DELETE_ON_CLOSE: Final = 0x2B
"""The descriptor of delete-on-close (3.5.10): the node is deleted when the link that created it is detached."""


class WaitingNode(Node):
    """The node of a link whose entity is being made. Afterwards another node replaces it."""

    def __init__(self, peer: Peer, address: Address, link: Link) -> None:
        super().__init__(peer, address)
        self._link = link
        self._is_gone = False

    def on_closed(self) -> None:
        self._is_gone = True

    def _continue_with(self, make: Callable[[], Node]) -> None:
        self.peer.replace_node(self._link, make)

    def _refuse(self, failure: BrokerError) -> None:
        if isinstance(failure, Unauthorized):
            self.peer.audit("receive", DENIED, self.address.path, reason=str(failure))
        self.peer.detach(self._link, failure)


class DynamicNode(WaitingNode):
    """Creates a temporary entity for a link."""

    def __init__(self, peer: Peer, link: Link, terminus: Source | Target, make: Callable[[], Node]) -> None:
        super().__init__(peer, Address(), link)
        self._make = make
        grant = peer.grants.check("", "", Right.LISTEN, peer.namespace.now())
        temporary = peer.namespace.temporary
        make_entity = temporary.make_topic if TEMPORARY_TOPIC in (terminus.capabilities or ()) else temporary.make_queue
        make_entity(Owner(peer, grant.rule), self._made)

    def _made(self, outcome: AnyEntity | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            if not self._is_gone:
                self._refuse(outcome)
            return
        delete = partial(self.peer.namespace.temporary.delete, outcome.path)
        if self._is_gone:
            delete()
            return
        # The answer to the attach repeats these properties, and `make` finds the entity by the address.
        properties: dict[Any, Any] = {Symbol(LIFETIME_POLICY): Described(ULong(_DELETE_ON_CLOSE), [])}
        attach = self._link.remote
        assert attach is not None
        if isinstance(attach.source, Source) and isinstance(self._link, Sender):
            attach.source = replace(attach.source, address=outcome.path, dynamic_node_properties=properties)
        elif isinstance(attach.target, Target):
            attach.target = replace(attach.target, address=outcome.path, dynamic_node_properties=properties)
        self.peer.when_detached(self._link, delete)
        self._continue_with(self._make)
