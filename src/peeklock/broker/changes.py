"""What a new or changed definition must respect beyond itself: what it was before, and what else there is."""

from __future__ import annotations

from typing import Any

from peeklock.broker.catalogue import AnyQueue, Catalogue
from peeklock.broker.definitions import (
    AnyDefinition,
    FilterKind,
    QueueDefinition,
    RuleDefinition,
    SubscriptionDefinition,
    destinations,
)
from peeklock.broker.errors import BrokerError, QuotaExceeded
from peeklock.broker.names import DefinitionError, fold
from peeklock.broker.settings import Profile, settings_of
from peeklock.broker.topic import Topic


def check_change(before: AnyDefinition, after: AnyDefinition) -> None:
    """Some settings are fixed when an entity is made: the messages in it are laid out by them."""
    for name, setting in settings_of(type(before)).items():
        was, wanted = getattr(before, name), getattr(after, name)
        if not setting.changeable and was != wanted:
            shown = str(wanted).lower()
            raise DefinitionError(f"{setting.name} of '{before.name}'", shown, "cannot be changed once it exists")


def check_forwarding(path: str, definition: AnyDefinition, catalogue: Catalogue) -> None:
    """Who forwards must have somewhere to forward to, other than itself."""
    if not isinstance(definition, QueueDefinition | SubscriptionDefinition):
        return
    for setting, destination in destinations(definition):
        if fold(destination) == fold(path):
            raise DefinitionError(setting.name, destination, "must name another entity")
        try:
            catalogue.destination(destination)
        except BrokerError:
            raise DefinitionError(setting.name, destination, "must name a queue or topic of the namespace") from None


def check_filters(
    topic: Topic, subscription: AnyQueue | None, rules: tuple[RuleDefinition, ...], profile: Profile
) -> None:
    """How many filters a topic may have, with these as the rules of that subscription."""
    counts: dict[bool, int] = {True: 0, False: 0}
    others: list[Any] = [each for each in topic.subscriptions.values() if each is not subscription]
    for rule in (*rules, *(rule for each in others for rule in each.definition.rules)):
        counts[rule.filter_kind is FilterKind.CORRELATION] += rule.filter_kind is not FilterKind.TRUE
    for is_correlation, limit, what in (
        (True, profile.max_correlation_filters, "correlation"),
        (False, profile.max_sql_filters, "SQL"),
    ):
        if counts[is_correlation] > limit:
            raise QuotaExceeded(f"The topic '{topic.path}' would have more than {limit} {what} filters.")
