"""The settings of entities as options: one for each in the client's table, and back to values for the service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from inspect import Parameter
from typing import Annotated, Any

import typer

from peeklock.cli.failing import fail
from peeklock.cli.values import duration
from peeklock.client.descriptions import SETTINGS, STATUSES, UNCHANGEABLE, Form, Kind, Value

Status = StrEnum("Status", {name: name for name in STATUSES})  # type: ignore[misc]

HELP = {
    "LockDuration": "How long a message, or a session, is locked for its receiver.",
    "MaxSizeInMegabytes": "How much it holds.",
    "MaxMessageSizeInKilobytes": "How large a message may be.",
    "RequiresDuplicateDetection": "Drop a message whose id was seen within the window.",
    "DuplicateDetectionHistoryTimeWindow": "How long message ids are remembered.",
    "RequiresSession": "Every message belongs to a session.",
    "DefaultMessageTimeToLive": "How long a message lives at most.",
    "DeadLetteringOnMessageExpiration": "Messages that expire become dead letters.",
    "DeadLetteringOnFilterEvaluationExceptions": "Messages that a filter fails on become dead letters.",
    "MaxDeliveryCount": "How often a message is delivered before it becomes a dead letter.",
    "EnableBatchedOperations": "The service may store in batches.",
    "Status": "What it takes and gives.",
    "ForwardTo": "The queue or topic that its messages go on to; '' for none.",
    "ForwardDeadLetteredMessagesTo": "The queue or topic that its dead letters go on to; '' for none.",
    "AutoDeleteOnIdle": "It is deleted after so long without use.",
    "UserMetadata": "Text of yours that is kept with it.",
    "EnablePartitioning": "Spread over several stores, where the service has them.",
    "EnableExpress": "Kept in memory first, where the service does that.",
    "SupportOrdering": "Messages keep their order.",
    "OrderByPriority": "Deliver messages of a higher priority first (Peeklock only).",
    "FilteringMessagesBeforePublishing": "Filter before a message is accepted.",
    "EnableSubscriptionPartitioning": "Spread subscriptions over several stores, where the service has them.",
}


def setting_options(kind: Kind, *, changing: bool = False) -> list[Parameter]:
    """An option for each setting, for `create` or for `update`."""
    return [
        Parameter(_argument(name), Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(name, form))
        for name, form in SETTINGS[kind].items()
        if not (changing and name in UNCHANGEABLE)
    ]


def settings_from(kind: Kind, given: Mapping[str, Any]) -> dict[str, Value]:
    """The settings that were given, by name."""
    found: dict[str, Value] = {}
    for name, form in SETTINGS[kind].items():
        value = given.get(_argument(name))
        if value is None:
            continue
        if form is Form.COUNT and value < 0:
            fail(f"{_flag(name)}: {value} is less than nothing")
        found[name] = duration(value, _flag(name)) if form is Form.DURATION else value
    return found


def _annotation(name: str, form: Form) -> Any:
    kinds: dict[Form, Any] = {Form.FLAG: bool | None, Form.COUNT: int | None, Form.STATUS: Status | None}
    return Annotated[kinds.get(form, str | None), _option(name, form)]


def _option(name: str, form: Form) -> Any:
    flag = _flag(name)
    decision = f"{flag}/--no-{flag.removeprefix('--')}" if form is Form.FLAG else flag
    note = " Such as 90s, PT5M, 14d, or max for no limit." if form is Form.DURATION else ""
    return typer.Option(decision, help=HELP[name] + note, show_default=False)


def _argument(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _flag(name: str) -> str:
    return "--" + _argument(name).replace("_", "-")
