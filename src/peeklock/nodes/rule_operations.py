"""Operations on the rules of subscriptions. Queues, topics and sub-queues have no rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peeklock.broker.administration import Administration, explain_refused_rule, rules_of
from peeklock.broker.catalogue import is_queue
from peeklock.broker.errors import BrokerError, EntityChanging, OperationNotAllowed
from peeklock.broker.session_queue import AnyQueue
from peeklock.entities.authorization import Right
from peeklock.entities.base import EntityKind
from peeklock.entities.names import split_subscription
from peeklock.limits.amqp import MAX_LISTED_RULES
from peeklock.nodes.fields import Field, Kind, check_page
from peeklock.nodes.operation import Call, Operation
from peeklock.nodes.rule_descriptions import DESCRIPTION, read_rule, write_rule


def add_rule(call: Call) -> None:
    arguments = call.arguments
    topic, subscription = _names(call)
    rule = read_rule(arguments["rule-name"], arguments[DESCRIPTION.name])
    _in_turn(call, lambda: _administration(call).create_rule(topic, subscription, rule, call.done))


def remove_rule(call: Call) -> None:
    topic, subscription = _names(call)
    name = call.arguments["rule-name"]
    _in_turn(call, lambda: _administration(call).delete_rule(topic, subscription, name, call.done))


def enumerate_rules(call: Call) -> None:
    subscription = _subscription(call)
    skip, top = check_page(call.arguments, MAX_LISTED_RULES)
    rules = rules_of(subscription)[skip : skip + top]
    if not rules:
        call.answer({}, 204)
        return
    listed = [write_rule(rule, rule.created_at or subscription.created_at) for rule in rules]
    call.answer({"rules": [{DESCRIPTION.name: each} for each in listed]})


def _subscription(call: Call) -> AnyQueue:
    entity = call.entity
    if not is_queue(entity) or entity.kind is not EntityKind.SUBSCRIPTION or entity.is_dead_letter_queue:
        raise OperationNotAllowed(f"The entity '{entity.path}' has no rules.")
    return entity


def _names(call: Call) -> tuple[str, str]:
    """Return the names of the topic and of the subscription."""
    parts = split_subscription(_subscription(call).path)
    assert parts is not None
    return parts


def _administration(call: Call) -> Administration:
    administration: Administration = call.peer.namespace.administration
    return administration


def _in_turn(call: Call, change: Callable[[], None]) -> None:
    """Change the subscription; if another change is under way, after its commit. Clients add several rules at once."""

    def again() -> None:
        try:
            _in_turn(call, change)
        except BrokerError as failure:
            call.fail(failure)

    try:
        change()
    except EntityChanging:
        call.peer.namespace.journal.after_commit(again)


_RULE_NAME = Field("rule-name", Kind.STRING, note="without the names of topic and subscription")

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="com.microsoft:add-rule",
        summary="Add a rule to a subscription, in force for the next message that is sent to its topic.",
        right=Right.LISTEN,
        request=(_RULE_NAME, DESCRIPTION),
        response=(),
        run=add_rule,
        audited=True,
        explain=explain_refused_rule,
    ),
    Operation(
        name="com.microsoft:remove-rule",
        summary="Remove a rule from a subscription. A subscription without rules receives nothing.",
        right=Right.LISTEN,
        request=(_RULE_NAME,),
        response=(),
        run=remove_rule,
        audited=True,
    ),
    Operation(
        name="com.microsoft:enumerate-rules",
        summary="List the rules of a subscription, the oldest first. 204 when there are none.",
        right=Right.LISTEN,
        request=(
            Field("top", Kind.INT, note=f"at most {MAX_LISTED_RULES} are returned"),
            Field("skip", Kind.INT),
        ),
        response=(Field("rules", Kind.MAPS, keys=(Field(DESCRIPTION.name, Kind.DESCRIBED),)),),
        run=enumerate_rules,
    ),
)
