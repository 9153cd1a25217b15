"""Authorization of administration requests by the rights of a token's key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peeklock.broker.access import Grant
from peeklock.broker.errors import Unauthorized
from peeklock.broker.namespace import Namespace
from peeklock.entities.authorization import Right
from peeklock.entities.definitions import (
    FORWARD_DEAD_LETTERS,
    FORWARD_TO,
    QueueDefinition,
    SubscriptionDefinition,
    destinations,
)
from peeklock.entities.rules import RuleDefinition
from peeklock.server.admission import Ticket
from peeklock.server.http import verify_token

DESTINATION_HEADERS: Final = {
    FORWARD_TO.name: "ServiceBusSupplementaryAuthorization",
    FORWARD_DEAD_LETTERS.name: "ServiceBusDlqSupplementaryAuthorization",
}
"""By forwarding setting: the header with a token for the destination."""


def authorize(namespace: Namespace, token: str, path: str, owner: str | None, ticket: Ticket) -> Grant:
    """Verify that a token has the right Manage at the path, and return its grant.

    Raise Unauthorized or InvalidToken. `owner` is the queue or topic to which the path belongs. An authorization rule
    of the namespace gives access to everything; a rule of an entity gives access to that entity and the entities below
    it.
    """
    grant = verify_token(namespace, token, path, ticket)
    if not grant.allows(Right.MANAGE, owner):
        raise Unauthorized(f"Unauthorized access to '{path}': '{Right.MANAGE}' claim is required.")
    return grant


def authorize_destinations(
    namespace: Namespace, grant: Grant, wanted: object, former: object, headers: Mapping[str, str], ticket: Ticket
) -> None:
    """Verify that a client with a key of one entity also has the right Send for the entity's new destinations.

    Raise Unauthorized or InvalidToken.
    """
    if not grant.owner or isinstance(wanted, RuleDefinition):
        return
    known = _destinations(former)
    for setting, destination in _destinations(wanted).items():
        if known.get(setting) == destination:
            continue
        shown = verify_token(namespace, headers.get(DESTINATION_HEADERS[setting], ""), f"/{destination}", ticket)
        if not shown.allows(Right.SEND, destination):
            raise Unauthorized(f"Unauthorized access to '{destination}': '{Right.SEND}' claim is required.")


def _destinations(definition: object) -> dict[str, str]:
    if not isinstance(definition, QueueDefinition | SubscriptionDefinition):
        return {}
    return {setting.name: name for setting, name in destinations(definition)}
