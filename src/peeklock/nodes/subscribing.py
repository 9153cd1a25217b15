"""Consumers of a topic in JMS: links to the topic itself, for which a subscription is found or created.

A durable subscription stays until a client unsubscribes. Any other subscription is deleted when its last link detaches.
A subscription is shared, or has one link at most. As in the hosted service, its name consists of the client's name for
it, the client id, and whether it is durable (`names.client_scoped_name`). The selector of the link becomes the rule of
the subscription.

Receiving requires Listen on the topic. Creating a subscription requires Manage. Unsubscribing requires it too, and so
does replacing a durable subscription because of another selector or topic. Otherwise a client with Listen only could
fill the topic with copies that are never received, until it accepts no more messages. A temporary topic belongs to its
connection, so Listen is enough.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from peeklock.amqp.termini import Source
from peeklock.broker.access import Grant
from peeklock.broker.audit import FAILED, OK
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.errors import (
    BrokerError,
    EntityChanging,
    EntityNotFound,
    InvalidProperty,
    OperationNotAllowed,
    SubscriptionInUse,
    Unauthorized,
)
from peeklock.broker.queue import Queue
from peeklock.broker.rules.errors import SqlError
from peeklock.broker.rules.selectors import Selector, rule_of
from peeklock.broker.session_queue import AnyQueue, is_without_sessions
from peeklock.broker.temporary import Owner
from peeklock.broker.topic import Topic
from peeklock.engine.links import Sender
from peeklock.entities.authorization import Right
from peeklock.entities.definitions import SubscriptionDefinition
from peeklock.entities.names import DefinitionError, client_scoped_name, fold, subscription_path
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.nodes.addresses import Address
from peeklock.nodes.dynamic import TEMPORARY_TOPIC, WaitingNode
from peeklock.nodes.filters import in_force, read_filters
from peeklock.nodes.node import Node, error_of
from peeklock.nodes.receiving import Receiving, ReceivingNode

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

TOPIC: Final = "topic"
SHARED: Final = "shared"
GLOBAL: Final = "global"
NEVER: Final = "never"
DELIMITER: Final = "|"
"""The character after the subscription's name in the name of a link. The rest distinguishes links of a subscription."""
AUTO_DELETE: Final = "com.microsoft:subscriber-auto-delete-on-idle-duration-in-seconds"
"""A property of the open of azure-servicebus-jms."""
ATTEMPTS: Final = 20
"""The number of times that a link waits for another client's change of its subscription, before it is refused."""
CREATE: Final = "create subscription"
DELETE: Final = "delete subscription"


def is_consumer(source: object) -> bool:
    """Return whether a link to a topic is a JMS consumer, for which a subscription must be found or created."""
    capabilities = (source.capabilities or ()) if isinstance(source, Source) else ()
    return TOPIC in capabilities or TEMPORARY_TOPIC in capabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The subscription that a link asks for."""

    topic: str
    name: str
    durable: bool
    shared: bool
    rule: RuleDefinition

    @property
    def path(self) -> str:
        return subscription_path(self.topic, self.name)


def consumer_node(peer: Peer, link: Sender, topic: Topic, source: Source) -> Node:
    """Make the node of a consumer's link. The caller has checked the right to receive from the topic."""
    assert link.remote is not None
    filters = read_filters(source)
    if filters.asks_session:
        raise OperationNotAllowed("A consumer of a topic cannot have a session: receive from a subscription.")
    # The answer has only the filters that the broker applies.
    keys = () if filters.selector is None else (filters.selector_key,)
    link.remote.source = in_force(source, *keys, mode=source.distribution_mode)
    return ConsumerNode(peer, link, _wanted(peer, link, topic, source, filters.selector))


def unsubscribing_node(peer: Peer, link: Sender) -> Node:
    """Make the node of a link without a source. Its name is that of a durable subscription to delete or look up."""
    attach = link.remote
    assert attach is not None
    name, _, more = link.name.partition(DELIMITER)
    is_global = GLOBAL in (attach.desired_capabilities or ()) or more.startswith(GLOBAL)
    scoped = _scoped_name(name, "" if is_global else peer.container_id, durable=True)
    now = peer.namespace.now()
    for topic, subscription in _named(peer, scoped):
        peer.grants.check(topic.path, topic.path, Right.MANAGE, now)
        if _is_active(subscription):
            raise SubscriptionInUse(f"The subscription '{subscription.path}' has a consumer.")
        return UnsubscribingNode(peer, link, topic, subscription)
    raise EntityNotFound(f"(durable subscription) {scoped}")


class ConsumerNode(WaitingNode):
    """Finds or creates the subscription of a consumer. Then a receiving node replaces this one."""

    def __init__(self, peer: Peer, link: Sender, wanted: Wanted) -> None:
        path = wanted.path
        super().__init__(peer, Address(path=path, entity=path, owner=wanted.topic), link)
        self._sender = link
        self._wanted = wanted
        self._attempts = 0

    def on_attached(self) -> None:
        super().on_attached()
        self._proceed()

    def _proceed(self) -> None:
        if self._is_gone:
            return
        try:
            ready = self._find()
        except EntityChanging as failure:
            self._wait(failure)
        except (BrokerError, DefinitionError, SqlError) as failure:
            self._refuse(failure if isinstance(failure, BrokerError) else InvalidProperty(str(failure)))
        else:
            if ready is not None:
                self._continue_with(partial(_receiving, self.peer, self._sender, self._wanted.topic, ready))

    def _wait(self, failure: BrokerError) -> None:
        """Try again after a commit that is under way."""
        namespace = self.peer.namespace
        journal = namespace.journal
        self._attempts += 1
        if namespace.temporary.when_changed(self._wanted.path, self._proceed):
            return
        if journal.idle or self._attempts > ATTEMPTS:
            self._refuse(failure)
        else:
            journal.when_settled(self._proceed)

    def _find(self) -> Queue | None:
        """Return the subscription if it is as the link requires. Otherwise start to create or replace it."""
        wanted = self._wanted
        topic = self.peer.namespace.topic(wanted.topic)
        found = topic.subscriptions.get(fold(wanted.name))
        if found is None:
            if not self._delete_elsewhere(topic):
                self._create(topic)
            return None
        if found.is_deleting:
            raise EntityChanging(f"The subscription '{found.path}' is being deleted; try again.")
        if not is_without_sessions(found):
            raise OperationNotAllowed(f"The subscription '{found.path}' requires sessions.")
        definition = found.definition
        assert isinstance(definition, SubscriptionDefinition)
        if definition.shared is not None and definition.shared is not wanted.shared:
            kind, needed = ("shared", "with") if definition.shared else ("not shared", "without")
            raise OperationNotAllowed(
                f"The subscription '{found.path}' is {kind}: attach {needed} the capability '{SHARED}'."
            )
        if not wanted.shared and _is_active(found):
            raise SubscriptionInUse(f"The subscription '{found.path}' is not shared and has a consumer.")
        if definition.rules == (wanted.rule,) or (definition.shared is None and wanted.rule == RuleDefinition()):
            return found
        if definition.shared is None:
            raise OperationNotAllowed(f"The subscription '{found.path}' has rules of its own: use no selector.")
        self._replace(topic, found)
        return None

    def _delete_elsewhere(self, here: Topic) -> bool:
        """Delete the client's durable subscription with the same name on another topic: a client may have only one.

        Return whether one is being deleted.
        """
        if not self._wanted.durable:
            return False
        for topic, subscription in _named(self.peer, self._wanted.name):
            definition = subscription.definition
            assert isinstance(definition, SubscriptionDefinition)
            if topic is not here and definition.shared is not None:
                self._replace(topic, subscription)
                return True
        return False

    def _replace(self, topic: Topic, found: AnyQueue) -> None:
        """Delete a subscription so that it can be created again."""
        if found.is_deleting:
            raise EntityChanging(f"The subscription '{found.path}' is being deleted; try again.")
        if _is_active(found):
            raise SubscriptionInUse(f"The subscription '{found.path}' has a consumer, with another topic or selector.")
        self._check_manage(topic)
        self.peer.namespace.administration.delete(found, partial(self._changed, DELETE, found.path))

    def _create(self, topic: Topic) -> None:
        wanted, namespace = self._wanted, self.peer.namespace
        definition = SubscriptionDefinition(
            name=wanted.name,
            rules=(wanted.rule,),
            shared=wanted.shared,
            temporary=not wanted.durable,
            **namespace.profile.defaults_for(SubscriptionDefinition),
        )
        grant = self._check_manage(topic)
        if wanted.durable:
            definition = replace(definition, auto_delete_on_idle_ms=_idle_limit(self.peer))
            created = partial(self._changed, CREATE, wanted.path)
            namespace.administration.create_subscription(topic.path, definition, created)
        else:
            namespace.temporary.make_subscription(Owner(self.peer, grant.rule), topic.path, definition, self._made)

    def _check_manage(self, topic: Topic) -> Grant:
        right = Right.LISTEN if topic.definition.temporary else Right.MANAGE
        return self.peer.grants.check(topic.path, topic.path, right, self.peer.namespace.now())

    def _changed(self, action: str, path: str, error: BrokerError | None) -> None:
        self.peer.audit(action, OK if error is None else FAILED, path, reason="" if error is None else str(error))
        if error is None:
            self._proceed()
        elif not self._is_gone:
            self._refuse(error)

    def _made(self, outcome: AnyEntity | BrokerError) -> None:
        if not isinstance(outcome, BrokerError):
            if self._is_gone and not _is_active(outcome):
                self.peer.namespace.temporary.delete(outcome.path)
            self._proceed()
        elif not self._is_gone:
            self._refuse(outcome)


class UnsubscribingNode(Node):
    """Deletes a durable subscription when the client closes the link.

    The detach is answered when the deletion is durable, because the client's `unsubscribe` then returns.
    """

    def __init__(self, peer: Peer, link: Sender, topic: Topic, subscription: AnyQueue) -> None:
        path = subscription.path
        super().__init__(peer, Address(path=path, entity=path, owner=topic.path))
        self._link = link
        self._subscription = subscription
        self._is_deleting = False
        self.depend_on(link, subscription)
        definition = subscription.definition
        assert isinstance(definition, SubscriptionDefinition)
        capabilities = [TOPIC, *([SHARED] if definition.shared else [])]
        link.accept(source=Source(address=topic.path, durable=2, expiry_policy=NEVER, capabilities=capabilities))
        link.answers_detach_later = True

    def on_link_closed(self) -> None:
        path = self._subscription.path
        self._is_deleting = True
        try:
            self.peer.grants.check(self.address.owner, self.address.owner, Right.MANAGE, self.peer.namespace.now())
            if _is_active(self._subscription):
                raise SubscriptionInUse(f"The subscription '{path}' has a consumer.")
            self.peer.namespace.administration.delete(self._subscription, self._deleted)
        except BrokerError as failure:
            self._deleted(failure)

    def _deleted(self, error: BrokerError | None) -> None:
        reason = "" if error is None else str(error)
        self.peer.audit(DELETE, OK if error is None else FAILED, self.address.path, reason=reason)
        self._link.detach(None if error is None else error_of(error))
        self.peer.wake()

    def on_closed(self) -> None:
        if not self._is_deleting and not self._link.attached:
            self._link.detach()  # the client suspended the link


def _idle_limit(peer: Peer) -> int | None:
    """Return the auto-delete-on-idle of the client's durable subscriptions, in milliseconds."""
    opened = peer.connection.remote_open
    seconds = ((opened.properties if opened is not None else None) or {}).get(AUTO_DELETE)
    return int(seconds) * 1000 if isinstance(seconds, int) and seconds > 0 else None


def _receiving(peer: Peer, link: Sender, topic: str, subscription: Queue) -> Node:
    path = subscription.path
    if subscription.definition.temporary:
        temporary = peer.namespace.temporary
        temporary.join(path)
        peer.when_detached(link, partial(temporary.leave, path))
    subscription.check_receiving()
    link.accept()  # the answer has the selector, because the rule of the subscription applies it
    return ReceivingNode(peer, Address(path=path, entity=path, owner=topic), link, subscription)


def _wanted(peer: Peer, link: Sender, topic: Topic, source: Source, selector: Selector | None) -> Wanted:
    capabilities = source.capabilities or ()
    shared = SHARED in capabilities
    durable = source.expiry_policy == NEVER or source.durable > 0
    client = "" if GLOBAL in capabilities else peer.container_id
    name = link.name.partition(DELIMITER)[0] if shared or durable else secrets.token_hex(8)
    return Wanted(
        topic=topic.path,
        name=_scoped_name(name, client, durable=durable),
        durable=durable,
        shared=shared,
        rule=_rule(selector),
    )


def _scoped_name(name: str, client: str, *, durable: bool) -> str:
    scoped = client_scoped_name(name, client, durable=durable)
    try:
        SubscriptionDefinition(name=scoped, temporary=not durable)
    except DefinitionError as error:
        raise InvalidProperty(f"The client id or the name of the subscription is invalid: {error}") from error
    return scoped


def _rule(selector: Selector | None) -> RuleDefinition:
    """Return the rule for the selector of a link."""
    if selector is None:
        return RuleDefinition()
    return RuleDefinition(filter_kind=FilterKind.SQL, sql_expression=rule_of(selector.text))


def _named(peer: Peer, name: str) -> Iterator[tuple[Topic, AnyQueue]]:
    """Find the subscriptions of that name, on all topics that the client may receive from."""
    now = peer.namespace.now()
    for topic in peer.namespace.topics:
        subscription = topic.subscriptions.get(fold(name))
        if subscription is None:
            continue
        try:
            peer.grants.check(topic.path, topic.path, Right.LISTEN, now)
        except Unauthorized:
            continue  # the client has no right to this topic, and must not learn of its subscriptions
        yield topic, subscription


def _is_active(subscription: AnyEntity) -> bool:
    """Return whether a link receives from the subscription."""
    return any(isinstance(watcher, Receiving) for watcher in subscription.watchers)
