"""Operations on the rules of subscriptions. A queue has none."""

from __future__ import annotations

from peeklock.broker.definitions import (
    Right,
)
from peeklock.broker.errors import OperationNotAllowed
from peeklock.nodes.operation import Call, Field, Kind, Operation


def _no_rules(call: Call) -> None:
    raise OperationNotAllowed(f"The entity '{call.container.path}' has no rules.")


_RULE_NAME = Field("rule-name", Kind.STRING)

OPERATIONS = (
    Operation(
        name="com.microsoft:add-rule",
        summary="Add a rule to a subscription.",
        right=Right.LISTEN,
        request=(_RULE_NAME, Field("rule-description", Kind.MAP)),
        response=(),
        run=_no_rules,
    ),
    Operation(
        name="com.microsoft:remove-rule",
        summary="Remove a rule from a subscription.",
        right=Right.LISTEN,
        request=(_RULE_NAME,),
        response=(),
        run=_no_rules,
    ),
    Operation(
        name="com.microsoft:enumerate-rules",
        summary="List the rules of a subscription.",
        right=Right.LISTEN,
        request=(Field("top", Kind.INTEGER), Field("skip", Kind.INTEGER)),
        response=(Field("rules", Kind.MAPS),),
        run=_no_rules,
    ),
)
