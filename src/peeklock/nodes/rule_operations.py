"""Operations on the rules of subscriptions. A queue has none."""

from __future__ import annotations

from peeklock.broker.definitions import Right
from peeklock.broker.errors import OperationNotAllowed
from peeklock.nodes.operation import Call, Field, Kind, Operation


def _no_rules(call: Call) -> None:
    raise OperationNotAllowed(f"The entity '{call.container.path}' has no rules.")


_RULE_NAME = Field("rule-name", Kind.STRING, note="without the names of topic and subscription")
_EXPRESSION = (Field("expression", Kind.STRING),)
_CORRELATION = (
    Field("correlation-id", Kind.STRING, required=False),
    Field("message-id", Kind.STRING, required=False),
    Field("to", Kind.STRING, required=False),
    Field("reply-to", Kind.STRING, required=False),
    Field("label", Kind.STRING, required=False),
    Field("session-id", Kind.STRING, required=False),
    Field("reply-to-session-id", Kind.STRING, required=False),
    Field("content-type", Kind.STRING, required=False),
    Field("properties", Kind.MAP, required=False),
)
_DESCRIPTION = (
    Field("sql-filter", Kind.MAP, required=False, note="this or a correlation-filter", keys=_EXPRESSION),
    Field("correlation-filter", Kind.MAP, required=False, note="at least one of its keys", keys=_CORRELATION),
    Field("sql-rule-action", Kind.MAP, required=False, keys=_EXPRESSION),
)

OPERATIONS = (
    Operation(
        name="com.microsoft:add-rule",
        summary="Add a rule to a subscription. A queue has none, and answers 400.",
        right=Right.LISTEN,
        request=(_RULE_NAME, Field("rule-description", Kind.MAP, keys=_DESCRIPTION)),
        response=(),
        run=_no_rules,
    ),
    Operation(
        name="com.microsoft:remove-rule",
        summary="Remove a rule from a subscription. A queue has none, and answers 400.",
        right=Right.LISTEN,
        request=(_RULE_NAME,),
        response=(),
        run=_no_rules,
    ),
    Operation(
        name="com.microsoft:enumerate-rules",
        summary="List the rules of a subscription. A queue has none, and answers 400.",
        right=Right.LISTEN,
        request=(Field("top", Kind.INT), Field("skip", Kind.INT)),
        response=(Field("rules", Kind.MAPS, keys=(Field("rule-description", Kind.DESCRIBED),)),),
        run=_no_rules,
    ),
)
