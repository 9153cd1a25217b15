"""Makes the node of a link from its address, its role and the grants of its connection."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from peeklock.amqp.termini import Source, Target
from peeklock.amqp.transactions import Coordinator
from peeklock.broker.errors import BrokerError, InvalidProperty, OperationNotAllowed
from peeklock.broker.session_queue import is_with_sessions, is_without_sessions
from peeklock.engine.links import Link, Receiver, Sender
from peeklock.entities.authorization import Right
from peeklock.entities.base import EntityKind
from peeklock.nodes.addresses import Address, parse_address
from peeklock.nodes.browsing import BrowsingNode
from peeklock.nodes.cbs import CbsNode
from peeklock.nodes.coordinator import CoordinatorNode
from peeklock.nodes.dynamic import DynamicNode
from peeklock.nodes.filters import COPY, read_filters
from peeklock.nodes.management import ManagementNode
from peeklock.nodes.node import Node, check_any_right
from peeklock.nodes.receiving import ReceivingNode, SelectingNode
from peeklock.nodes.relay import RelayNode
from peeklock.nodes.request_response import ReplyNode
from peeklock.nodes.sending import TRANSFER_DESTINATION, SendingNode
from peeklock.nodes.session_receiving import SessionReceivingNode
from peeklock.nodes.subscribing import consumer_node, is_consumer, unsubscribing_node

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer


def make_node(peer: Peer, link: Link) -> Node:
    """Make the node of a link, which accepts the link. Raise BrokerError to refuse the link."""
    attach = link.remote
    assert attach is not None
    if isinstance(link, Receiver) and isinstance(attach.target, Coordinator):
        # No grant is required: one SDK declares before it sends its first token. All work requires links with grants.
        return CoordinatorNode(peer, Address(path="$coordinator"), link)
    terminus = attach.source if isinstance(link, Sender) else attach.target
    if isinstance(link, Receiver) and _is_anonymous(terminus):
        return RelayNode(peer, link)
    if isinstance(link, Sender) and terminus is None:
        return unsubscribing_node(peer, link)
    if isinstance(terminus, Source | Target) and terminus.dynamic:
        return DynamicNode(peer, link, terminus, partial(_node_at_temporary, peer, link))
    return _node_at(peer, link, terminus)


def _node_at(peer: Peer, link: Link, terminus: object) -> Node:
    address = _address(link, terminus)
    if address.is_cbs:
        return ReplyNode(peer, address, link) if isinstance(link, Sender) else CbsNode(peer, address, _receiver(link))
    if address.is_management:
        return _management_node(peer, address, link)
    right = Right.LISTEN if isinstance(link, Sender) else Right.SEND
    peer.grants.check(address.entity, address.owner, right, peer.namespace.now())
    if isinstance(link, Sender):
        return _receiving_node(peer, address, link, terminus)
    return _sending_node(peer, address, _receiver(link))


def _node_at_temporary(peer: Peer, link: Link) -> Node:
    """Make the node of a link for which a temporary entity was made. Sending to that entity requires Listen."""
    attach = link.remote
    assert attach is not None
    if isinstance(link, Sender):
        return _node_at(peer, link, attach.source)
    node = _sending_node(peer, _address(link, attach.target), _receiver(link))
    node.needs = Right.LISTEN
    return node


def requested_address(link: Link) -> str:
    """Return the address that a link asks for, without scheme and host. For the audit log."""
    attach = link.remote
    terminus = None if attach is None else attach.source if isinstance(link, Sender) else attach.target
    address = terminus.address if isinstance(terminus, Source | Target) else None
    try:
        return parse_address(address).path if isinstance(address, str) else ""
    except BrokerError:
        return ""


def _receiver(link: Link) -> Receiver:
    assert isinstance(link, Receiver)
    return link


def _is_anonymous(target: object) -> bool:
    """Return whether a target has no address, so that each message names its destination."""
    return target is None or (isinstance(target, Target) and target.address is None and not target.dynamic)


def _address(link: Link, terminus: object) -> Address:
    side = "source" if isinstance(link, Sender) else "target"
    if not isinstance(terminus, Source | Target) or not isinstance(terminus.address, str) or not terminus.address:
        raise InvalidProperty(f"The attach of link '{link.name}' has no {side} address.")
    return parse_address(terminus.address)


def _management_node(peer: Peer, address: Address, link: Link) -> Node:
    check_any_right(peer.grants, address, peer.namespace.now())
    peer.namespace.temporary.check_receiving(address.entity, peer)
    entity = peer.namespace.entity(address.entity)
    if isinstance(link, Sender):
        node: Node = ReplyNode(peer, address, link)
    else:
        node = ManagementNode(peer, address, _receiver(link), entity)
    node.depend_on(link, entity)
    return node


def _sending_node(peer: Peer, address: Address, link: Receiver) -> Node:
    assert link.remote is not None
    destination = (link.remote.properties or {}).get(TRANSFER_DESTINATION)
    entity = peer.namespace.entity(address.entity)
    if destination is None:
        return SendingNode(peer, address, link, entity)
    if not isinstance(destination, str):
        raise InvalidProperty(f"The property {TRANSFER_DESTINATION} must be a string.")
    # Sending through one entity to another requires Send on both. In a transaction, the work counts for the entity of
    # the link (the first).
    final = parse_address(destination)
    peer.grants.check(final.entity, final.owner, Right.SEND, peer.namespace.now())
    target = peer.namespace.entity(final.entity)
    return SendingNode(peer, address, link, target, through=entity, destination=final)


def _receiving_node(peer: Peer, address: Address, link: Sender, source: object) -> Node:
    assert isinstance(source, Source)
    entity = peer.namespace.entity(address.entity)
    if entity.kind is EntityKind.TOPIC and is_consumer(source):
        peer.namespace.temporary.check_receiving(address.entity, peer)
        return consumer_node(peer, link, peer.namespace.topic(address.entity), source)
    queue = peer.namespace.queue(address.entity, peer)
    filters = read_filters(source)
    if source.distribution_mode == COPY:
        return BrowsingNode(peer, address, link, queue, filters)
    if is_with_sessions(queue):
        if not filters.asks_session:
            raise OperationNotAllowed(f"The entity '{queue.path}' requires sessions; receive with a session filter.")
        return SessionReceivingNode(peer, address, link, queue, filters)
    if filters.asks_session:
        raise OperationNotAllowed(f"The entity '{queue.path}' has no sessions; receive without a session filter.")
    assert is_without_sessions(queue)
    if filters.selector is not None:
        return SelectingNode(peer, address, link, queue, filters)
    return ReceivingNode(peer, address, link, queue)
