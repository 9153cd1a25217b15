"""Temporary entities: queues and topics made for one connection, and subscriptions made for its consumers.

They are deleted when the connection closes or the last consumer detaches. They do not survive a restart: their stored
definitions are marked as temporary, and the namespace deletes marked entities when it starts. Their number is limited
per connection, per authorization rule, and in the namespace.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from peeklock.broker.administration import Administration
from peeklock.broker.agenda import Agenda
from peeklock.broker.catalogue import AnyEntity, Catalogue, owner_of
from peeklock.broker.entity import Done
from peeklock.broker.errors import BrokerError, EntityChanging, EntityNotFound, OperationNotAllowed, QuotaExceeded
from peeklock.broker.retries import RETRY_MS
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.names import fold, subscription_path
from peeklock.entities.settings import Profile
from peeklock.limits.broker import MAX_TEMPORARY, MAX_TEMPORARY_OF_CONNECTION, MAX_TEMPORARY_OF_RULE

log = logging.getLogger(__name__)


Made = Callable[[AnyEntity | BrokerError], None]


@dataclass(frozen=True, slots=True)
class Owner:
    """The connection that an entity is made for."""

    connection: object
    rule: str
    """The authorization rule that allows it to make the entity."""


class TemporaryEntities:
    """The temporary entities of a namespace. The caller checks the rights."""

    def __init__(self, administration: Administration, catalogue: Catalogue, agenda: Agenda, profile: Profile) -> None:
        self._administration = administration
        self._catalogue = catalogue
        self._agenda = agenda
        self._profile = profile
        self._owners: dict[str, Owner] = {}
        """The owners by folded path of the entity, from before its creation until its deletion."""
        self._of_rules: Counter[str] = Counter()
        """The number of entities that were made with an authorization rule, by rule."""
        self._of_connections: Counter[int] = Counter()
        """The number of entities of a connection, by the `id` of the connection, which lives as long as it owns one."""

        self._links: Counter[str] = Counter()
        """The number of links that use an entity, by folded path. The entity is deleted when the last one detaches."""

        self._waiting: dict[str, list[Callable[[], None]]] = {}
        """Callbacks to call after the creation or deletion of an entity, by folded path."""

    def __len__(self) -> int:
        return len(self._owners)

    def make_queue(self, owner: Owner, made: Made) -> None:
        """Make a queue with an unguessable name."""
        name = f"temporary-queue-{secrets.token_hex(16)}"
        definition = QueueDefinition(name=name, temporary=True, **self._profile.defaults_for(QueueDefinition))
        self._make(name, owner, partial(self._administration.create_queue, definition), made)

    def make_topic(self, owner: Owner, made: Made) -> None:
        name = f"temporary-topic-{secrets.token_hex(16)}"
        definition = TopicDefinition(name=name, temporary=True, **self._profile.defaults_for(TopicDefinition))
        self._make(name, owner, partial(self._administration.create_topic, definition), made)

    def make_subscription(self, owner: Owner, topic: str, definition: SubscriptionDefinition, made: Made) -> None:
        """Make a subscription. Its definition must be marked as temporary."""
        path = subscription_path(topic, definition.name)
        self._make(path, owner, partial(self._administration.create_subscription, topic, definition), made)

    def check_receiving(self, path: str, connection: object) -> None:
        """Raise OperationNotAllowed if the path is that of a temporary entity of another connection, or below it.

        Only the connection that it was made for may receive from it. `connection` is None for clients over HTTP.
        """
        owner = self._owners.get(owner_of(path))
        if owner is not None and owner.connection is not connection:
            raise OperationNotAllowed(f"The temporary entity '{path}' belongs to another connection.")

    def when_changed(self, path: str, action: Callable[[], None]) -> bool:
        """Call `action` after the next creation or deletion of the entity. Return False if the entity is not known."""
        key = fold(path)
        if key in self._owners:
            self._waiting.setdefault(key, []).append(action)
        return key in self._owners

    def join(self, path: str) -> None:
        """Count a link that uses the entity. The entity is deleted when the last link detaches."""
        self._links[fold(path)] += 1

    def leave(self, path: str) -> None:
        key = fold(path)
        self._links[key] -= 1
        if self._links[key] <= 0:
            del self._links[key]
            self.delete(path)

    def delete(self, path: str) -> None:
        """Delete an entity that is no longer used. If that fails, try again later."""
        try:
            entity = self._catalogue.find(path)
            self._administration.delete(entity, partial(self._deleted, path))
        except EntityNotFound:
            self._forget(path)
        except BrokerError as failure:
            self._retry(path, failure)

    def _make(self, path: str, owner: Owner, create: Callable[[Done], None], made: Made) -> None:
        self._check_room(owner)
        key = fold(path)
        if key in self._owners:
            raise EntityChanging(f"The temporary entity '{path}' is being made or deleted; try again.")
        self._owners[key] = owner
        self._of_rules[owner.rule] += 1
        self._of_connections[id(owner.connection)] += 1

        def created(error: BrokerError | None) -> None:
            if error is None:
                made(self._catalogue.find(path))
                self._notify_changed(key)
            else:
                self._forget(path)
                made(error)

        try:
            create(created)
        except BaseException:
            self._forget(path)
            raise

    def _check_room(self, owner: Owner) -> None:
        for count, limit, what in (
            (self._of_connections[id(owner.connection)], MAX_TEMPORARY_OF_CONNECTION, "connection"),
            (self._of_rules[owner.rule], MAX_TEMPORARY_OF_RULE, "authorization rule"),
            (len(self._owners), MAX_TEMPORARY, "namespace"),
        ):
            if count >= limit:
                raise QuotaExceeded(f"The {what} has {count} temporary entities; no more are allowed.")

    def _deleted(self, path: str, error: BrokerError | None) -> None:
        if error is None:
            self._forget(path)
        else:
            self._retry(path, error)
            self._notify_changed(fold(path))

    def _retry(self, path: str, failure: BrokerError) -> None:
        log.info("a temporary entity could not be deleted: %s", failure, extra={"fields": {"entity": path}})
        self._agenda.after(RETRY_MS, partial(self._delete_again, path))

    def _delete_again(self, path: str) -> None:
        if not self._links[fold(path)]:  # no link was attached to the entity meanwhile
            self.delete(path)

    def _notify_changed(self, key: str) -> None:
        for action in self._waiting.pop(key, ()):
            action()

    def _forget(self, path: str) -> None:
        key = fold(path)
        owner = self._owners.pop(key, None)
        if owner is None:
            return
        self._of_rules[owner.rule] -= 1
        self._of_connections[id(owner.connection)] -= 1
        self._of_rules += Counter()  # drops the entries that are zero
        self._of_connections += Counter()
        self._notify_changed(key)
