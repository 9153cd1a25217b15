"""Checks of a new or changed definition against the old definition and against other entities."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from peeklock.broker.catalogue import Catalogue
from peeklock.broker.errors import BrokerError, QuotaExceeded
from peeklock.broker.session_queue import AnyQueue
from peeklock.broker.topic import Topic
from peeklock.entities.authorization import DEFAULT_KEY
from peeklock.entities.definitions import DEFAULT_TTL, AnyDefinition, destinations
from peeklock.entities.durations import MAX_DURATION_MS
from peeklock.entities.names import DefinitionError, fold
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.entities.settings import Profile, settings_of

D = TypeVar("D", bound=AnyDefinition)


def check_change(before: AnyDefinition, after: AnyDefinition) -> None:
    """Raise DefinitionError if a setting that is fixed at creation changes: stored messages depend on such settings."""
    for name, setting in settings_of(type(before)).items():
        was, wanted = getattr(before, name), getattr(after, name)
        if not setting.changeable and was != wanted:
            shown = str(wanted).lower()
            raise DefinitionError(
                f"{setting.name} of '{before.name}'", shown, "cannot be changed once the entity exists"
            )


def merged_rules(before: tuple[RuleDefinition, ...], wanted: tuple[RuleDefinition, ...]) -> tuple[RuleDefinition, ...]:
    """Return the rules of an existing subscription after a configuration file was applied.

    The file adds and changes rules, and does not remove any. A file without rules changes none. If the file has rules,
    the default rule is removed, because it matches every message.
    """
    if wanted == (RuleDefinition(),):
        return before
    named = {fold(rule.name): rule for rule in before if rule != RuleDefinition()}
    for rule in wanted:
        known = named.get(fold(rule.name))
        named[fold(rule.name)] = rule if known is None else replace(rule, name=known.name, created_at=known.created_at)
    return tuple(named.values())


def fitted(definition: D, profile: Profile) -> D:
    """Return the definition; if it has no time to live, with the longest of the profile. Some clients never set one."""
    longest = DEFAULT_TTL.ranges[profile.name][1]
    if definition.default_message_ttl_ms is None and longest < MAX_DURATION_MS:
        return replace(definition, default_message_ttl_ms=longest)
    return definition


def check_keys(definition: AnyDefinition) -> None:
    """Raise DefinitionError if a rule has the well-known key of the development emulator."""
    if any(DEFAULT_KEY in rule.keys for rule in definition.authorization_rules):
        raise DefinitionError(
            "PrimaryKey", "(not shown)", "must not be the well-known key if other machines can reach the broker"
        )


def check_forwarding(path: str, definition: AnyDefinition, catalogue: Catalogue) -> None:
    """Raise DefinitionError unless the destinations exist.

    An entity may forward to itself: the limit of hops ends the loop.
    """
    for setting, destination in destinations(definition):
        if fold(destination) == fold(path):
            continue  # the entity itself may not exist yet
        try:
            catalogue.destination(destination)
        except BrokerError:
            raise DefinitionError(setting.name, destination, "must name a queue or topic of the namespace") from None


def check_filters(
    topic: Topic, subscription: AnyQueue | None, rules: tuple[RuleDefinition, ...], profile: Profile
) -> None:
    """Raise QuotaExceeded if the topic would have too many filters with `rules` as the subscription's rules."""
    counts: dict[bool, int] = {True: 0, False: 0}
    others = [each for each in topic.subscriptions.values() if each is not subscription]
    for rule in (*rules, *(rule for each in others for rule in each.subscription_definition.rules)):
        counts[rule.filter_kind is FilterKind.CORRELATION] += rule.filter_kind is not FilterKind.TRUE
    for is_correlation, limit, what in (
        (True, profile.max_correlation_filters, "correlation"),
        (False, profile.max_sql_filters, "SQL"),
    ):
        if counts[is_correlation] > limit:
            raise QuotaExceeded(f"The topic '{topic.path}' would have more than {limit} {what} filters.")
