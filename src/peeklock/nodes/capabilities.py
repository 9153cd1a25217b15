"""The capabilities that the broker offers in its open, and client ids that only one connection may use.

The container-id of an open is the client id of JMS. Clients do not prove it, so it is unique only among connections
that logged in with the same key. A connection that logs in later, with a token, does not get the capability
`sole-connection-for-container`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Error
from peeklock.amqp.types import Symbol
from peeklock.broker.access import Grant
from peeklock.nodes.claim_operations import CLAIMS
from peeklock.nodes.relay import ANONYMOUS_RELAY

if TYPE_CHECKING:
    from peeklock.amqp.performatives import Open
    from peeklock.nodes.peer import Peer

DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"
SHARED_SUBSCRIPTIONS: Final = "SHARED-SUBS"
SOLE_CONNECTION: Final = "sole-connection-for-container"
ClientKey = tuple[str, str]
"""The rules that a connection logged in with, and its container-id."""
CAPABILITIES: Final = (ANONYMOUS_RELAY, DELAYED_DELIVERY, SHARED_SUBSCRIPTIONS, CLAIMS)
"""The capabilities in every open of the broker."""


def reserve_client_id(peer: Peer, opened: Open) -> Error | None:
    """Reserve the client id for a connection that asks for it; return an error if another connection has it."""
    identity: list[Grant] = peer.connection.identity or []
    if not identity or SOLE_CONNECTION not in (opened.desired_capabilities or ()):
        return None
    peer.connection.offered_capabilities.append(SOLE_CONNECTION)
    key: ClientKey = ",".join(sorted(grant.rule for grant in identity)), str(opened.container_id)
    if key in peer.namespace.sole_containers:
        info: dict[Any, Any] = {Symbol("invalid-field"): Symbol("container-id")}
        description = f"The client id '{opened.container_id}' is in use by another connection."
        return Error(condition=Condition.INVALID_FIELD, description=description, info=info)
    peer.namespace.sole_containers.add(key)
    peer.client_key = key
    return None


def release_client_id(peer: Peer) -> None:
    """Release the client id of a closed connection."""
    if peer.client_key is not None:
        peer.namespace.sole_containers.discard(peer.client_key)
        peer.client_key = None
