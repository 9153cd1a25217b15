"""Checks whether clients may send to an entity and receive from it: by its kind, its status, and its deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.broker.errors import BrokerError, EntityDisabled, EntityNotFound, OperationNotAllowed
from peeklock.entities.base import EntityKind
from peeklock.entities.settings import Status

if TYPE_CHECKING:
    from peeklock.broker.entity import Entity


def why_no_sends(entity: Entity) -> BrokerError | None:
    """Return the error for clients that send to the entity; None if clients may send."""
    if entity.is_deleting:
        return EntityNotFound(entity.path)
    if entity.is_dead_letter_queue:
        return OperationNotAllowed(f"Messages cannot be sent to '{entity.path}': it is a dead-letter queue.")
    if entity.kind is EntityKind.SUBSCRIPTION:
        return OperationNotAllowed(f"Messages cannot be sent to '{entity.path}': send to its topic.")
    status = entity.definition.status
    if status not in (Status.ACTIVE, Status.RECEIVE_DISABLED):
        return EntityDisabled(f"The entity '{entity.path}' is disabled for sending (status {status}).")
    return None


def check_receiving(entity: Entity) -> None:
    """Raise EntityDisabled if no client may receive from the entity."""
    status = entity.definition.status
    if status not in (Status.ACTIVE, Status.SEND_DISABLED):
        raise EntityDisabled(f"The entity '{entity.path}' is disabled for receiving (status {status}).")
