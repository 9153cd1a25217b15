"""Authorization of administration: the token of a request, and the rights of its key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from peeklock.broker.access import Claim
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
"""The headers with a token for the entity to which messages are forwarded, by setting."""


def authorize(namespace: Namespace, token: str, path: str, owner: str | None, ticket: Ticket) -> Claim:
    """Return the claim of a token with the right Manage at the path; Unauthorized or InvalidToken otherwise.

    `owner` is the queue or topic to which the path belongs. A rule of the namespace administers everything; a rule of
    an entity administers that entity and the entities below it.
    """
    claim = verify_token(namespace, token, path, ticket)
    if not claim.allows(Right.MANAGE, owner):
        raise Unauthorized(f"Unauthorized access to '{path}': '{Right.MANAGE}' claim is required.")
    return claim


def authorize_destinations(
    namespace: Namespace, claim: Claim, wanted: object, former: object, headers: Mapping[str, str], ticket: Ticket
) -> None:
    """Check that a key of one entity also has the right Send for new destinations of the entity."""
    if not claim.owner or isinstance(wanted, RuleDefinition):
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
