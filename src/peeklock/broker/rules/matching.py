"""Applies the rules of all subscriptions of a topic to a message, and returns the copies to make.

Filters and actions are compiled when rules are set. So a message costs one evaluation for each distinct SQL text, one
lookup for each shape of correlation filters, and nothing for true and false filters. The topic stores the copies, and
dead-letters the copies for which a rule failed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from peeklock.broker.rules.correlation import CorrelationIndex
from peeklock.broker.rules.errors import SqlError, sentence_of
from peeklock.broker.rules.sql import (
    Action,
    Filter,
    compile_action,
    compile_filter,
    matches_everything,
    matches_nothing,
)
from peeklock.broker.rules.view import View
from peeklock.entities.names import DefinitionError
from peeklock.entities.rules import CorrelationFilter, FilterKind, PropertyValue, RuleDefinition

RULE_NAME: Final = "RuleName"
"""The application property with the name of the rule whose action changed a copy."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy for a subscription."""

    subscription: Any
    """The key under which its rules were set."""
    rule: str | None = None
    """The name of the rule whose action was applied, or that failed. None for a copy without an action."""
    view: View | None = None
    """The message after the action; None if there was no action."""
    error: str | None = None
    """The reason why the rule could not be evaluated, as a sentence. Such a copy is dead-lettered or dropped."""


class Matcher:
    """The compiled rules of all subscriptions of one topic."""

    def __init__(self) -> None:
        self._subscriptions: dict[Hashable, _Subscription] = {}
        self._next_position = 0
        self._always: dict[_Rule, None] = {}
        self._always_acting: dict[_Rule, None] = {}
        self._sql: dict[_SqlKey, _SqlGroup] = {}
        self._correlation: CorrelationIndex[_Rule] = CorrelationIndex()
        self._unconditional: dict[_Order, Copy] | None = None
        """The copies that are made of every message; None if they must be collected again."""

    def set(self, subscription: Hashable, rules: Sequence[RuleDefinition]) -> None:
        """Replace the rules of a subscription. If one is invalid, raise DefinitionError and change nothing."""
        known = self._subscriptions.get(subscription)
        position = self._next_position if known is None else known.position
        compiled = [_compile(rule, subscription, (position, rank)) for rank, rule in enumerate(rules)]
        if known is None:
            self._next_position += 1
        else:
            self._forget(known)
        self._subscriptions[subscription] = _Subscription(position, compiled)
        for rule in compiled:
            self._add(rule)
        self._unconditional = None

    def remove(self, subscription: Hashable) -> None:
        """Remove the rules of a subscription, if it has any."""
        known = self._subscriptions.pop(subscription, None)
        if known is not None:
            self._forget(known)
            self._unconditional = None

    @property
    def needs_view(self) -> bool:
        """Whether any rule needs the message. If none does, `match(None)` is enough."""
        return bool(self._sql or self._correlation or self._always_acting)

    def match(self, view: View | None) -> list[Copy]:
        """Return the copies to make, ordered by the creation of subscriptions; copies without an action come first."""
        if self._unconditional is None:
            self._unconditional = {rule.plain_order: rule.plain for rule in sorted(self._always, key=_position)}
        if view is None:
            assert not self.needs_view, "there are rules that need the message"
            return list(self._unconditional.values())
        hits = list(self._always_acting)
        failures: list[tuple[_Rule, str]] = []
        for group in self._sql.values():
            try:
                if group.passes(view):
                    hits += group.rules
            except Exception as error:
                sentence = sentence_of(error)
                failures += [(rule, sentence) for rule in group.rules]
        self._correlation.find(view, hits, failures)
        if not hits and not failures:
            return list(self._unconditional.values())
        copies = self._unconditional.copy()
        for rule in hits:
            if rule.action is None:
                copies[rule.plain_order] = rule.plain
            else:
                copies[rule.order] = _acted(rule, rule.action, view)
        for rule, sentence in failures:
            copies[rule.order] = Copy(rule.subscription, rule.name, None, sentence)
        return [copies[order] for order in sorted(copies)]

    def _add(self, rule: _Rule) -> None:
        if rule.filter_kind is FilterKind.TRUE:
            (self._always if rule.action is None else self._always_acting)[rule] = None
        elif rule.sql is not None:
            key, passes = rule.sql
            group = self._sql.get(key) or self._sql.setdefault(key, _SqlGroup(passes))
            group.rules[rule] = None
        elif rule.correlation is not None:
            self._correlation.add(rule.correlation, rule)

    def _forget(self, subscription: _Subscription) -> None:
        for rule in subscription.rules:
            self._always.pop(rule, None)
            self._always_acting.pop(rule, None)
            if rule.sql is not None:
                key, _ = rule.sql
                group = self._sql[key]
                del group.rules[rule]
                if not group.rules:
                    del self._sql[key]
            elif rule.correlation is not None:
                self._correlation.discard(rule.correlation, rule)


def check_rule(rule: RuleDefinition) -> None:
    """Raise DefinitionError, with a caret under the error, unless the filter and the action of a rule are valid."""
    _compile(rule, None, (0, 0))


# --- compiled rules ---

_Order = tuple[int, int]
"""The position of the subscription in the topic, and the rank of the rule in the subscription."""
_PLAIN: Final = -1
"""The rank of the copy without an action. It is the same for all rules without an action, so they make one copy."""
_SqlKey = tuple[str, tuple[tuple[str, type, PropertyValue], ...]]


@dataclass(slots=True, eq=False)
class _Rule:
    """One rule of one subscription."""

    subscription: Hashable
    name: str
    order: _Order
    plain: Copy
    filter_kind: FilterKind
    sql: tuple[_SqlKey, Filter] | None = None
    correlation: CorrelationFilter | None = None
    action: Action | None = None

    @property
    def plain_order(self) -> _Order:
        return self.order[0], _PLAIN


@dataclass(slots=True)
class _Subscription:
    position: int
    rules: list[_Rule]


@dataclass(slots=True)
class _SqlGroup:
    """All rules with the same SQL filter."""

    passes: Filter
    rules: dict[_Rule, None] = field(default_factory=dict)


def _position(rule: _Rule) -> int:
    return rule.order[0]


def _compile(rule: RuleDefinition, subscription: Hashable, order: _Order) -> _Rule:
    kind, text = rule.filter_kind, rule.sql_expression
    sql = None
    if text is not None:
        try:
            passes = compile_filter(text, rule.parameters)
        except SqlError as error:
            raise DefinitionError("SqlFilter", text, str(error)) from error
        if passes is matches_everything:
            kind = FilterKind.TRUE
        elif passes is not matches_nothing:
            sql = _sql_key(text, rule.parameters), passes
    action = None
    if rule.action is not None:
        try:
            action = compile_action(rule.action, rule.action_parameters)
        except SqlError as error:
            raise DefinitionError("Action", rule.action, str(error)) from error
    return _Rule(subscription, rule.name, order, Copy(subscription), kind, sql, rule.correlation, action)


def _sql_key(text: str, parameters: Mapping[str, PropertyValue]) -> _SqlKey:
    # The key has the types, because 1, 1.0 and True are equal in Python but not in a filter.
    return text, tuple((name, type(value), value) for name, value in sorted(parameters.items()))


def _acted(rule: _Rule, action: Action, view: View) -> Copy:
    changed = view.copy()
    try:
        action(changed)
        changed.remove_user(RULE_NAME)
        changed.set_user(RULE_NAME, rule.name)
    except Exception as error:
        return Copy(rule.subscription, rule.name, None, sentence_of(error))
    return Copy(rule.subscription, rule.name, changed)
