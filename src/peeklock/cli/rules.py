"""`peeklock rule`: create, show, list, update and delete the rules of a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import typer

from peeklock.cli.connecting import administering, clear_error_if_exists
from peeklock.cli.failing import fail
from peeklock.cli.output import confirm, note, print_json, print_pairs, print_table
from peeklock.cli.signatures import COMMON, YES, argument, option, with_signature
from peeklock.cli.values import RULE_TYPES, pairs, typed_pairs
from peeklock.client.descriptions import FilterKind, Rule, RuleValue

app = typer.Typer()
group = typer.Typer(help="Create, show, list, update and delete rules of a subscription.")
app.add_typer(group, name="rule")

CORRELATION = {
    "correlation-id": "CorrelationId",
    "message-id": "MessageId",
    "to": "To",
    "reply-to": "ReplyTo",
    "subject": "Label",
    "session-id": "SessionId",
    "reply-to-session-id": "ReplyToSessionId",
    "content-type": "ContentType",
}

_SUBSCRIPTION = (argument("topic", "The topic."), argument("subscription", "The subscription."))
_RULE = (*_SUBSCRIPTION, argument("name", "The rule."))

Sql = Annotated[str | None, typer.Option("--sql", help="Match messages for which this SQL expression is true.")]
Correlation = Annotated[
    list[str] | None,
    typer.Option(help=f"Match messages by name=value; the name is {', '.join(CORRELATION)}. Repeatable."),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        help="Match messages by application property: name=text or name:type=value; a type is one of "
        f"{', '.join(RULE_TYPES)}. Repeatable.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Match every message.")]
Nothing = Annotated[bool, typer.Option("--none", help="Match no message.")]
Action = Annotated[
    str | None, typer.Option(help="An SQL action that changes matching messages, with SET and REMOVE; '' for none.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", help="A value for an @name in the SQL: @name=text or @name:type=value. Repeatable."),
]
_DEFINITION = (
    option("sql", Sql),
    option("correlation", Correlation),
    option("property", PropertyOption),
    option("all", All, False),
    option("none", Nothing, False),
    option("action", Action),
    option("parameter", Parameters),
)


def _filter(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of a rule that the filter options set; None without a filter option."""
    sql: str | None = given["sql"]
    correlation, properties = given["correlation"], given["property"]
    every, no = given["all"], given["none"]
    compares = bool(correlation or properties)
    if (sql is not None) + compares + every + no > 1:
        fail("a rule has one filter: --sql, or --correlation and --property, or --all, or --none")
    nothing: dict[str, Any] = {"expression": None, "parameters": {}, "correlation": {}, "properties": {}}
    if sql is not None:
        return {**nothing, "filter": FilterKind.SQL, "expression": sql}
    if every or no:
        return {**nothing, "filter": FilterKind.TRUE if every else FilterKind.FALSE}
    if not compares:
        return None
    named = pairs(correlation or (), "--correlation")
    unknown = next((name for name in named if name not in CORRELATION), None)
    if unknown is not None:
        fail(f"--correlation: unknown name '{unknown}'; use one of {', '.join(CORRELATION)}")
    return {
        **nothing,
        "filter": FilterKind.CORRELATION,
        "correlation": {CORRELATION[name]: value for name, value in named.items()},
        "properties": typed_pairs(properties or (), "--property", RULE_TYPES),
    }


def _changed(rule: Rule, filtering: dict[str, Any] | None, given: Mapping[str, Any]) -> Rule:
    """The rule with a new filter, action and parameters, as far as they were given."""
    action: str | None = given["action"]
    values = typed_pairs(given["parameter"] or (), "--parameter", RULE_TYPES)
    if filtering is not None:
        rule = replace(rule, **filtering)
    if action is not None:
        rule = replace(rule, action=action or None, action_parameters={})
    if values:
        # A parameter belongs to the filter, to the action or to both, depending on which of the texts has its name.
        if rule.filter is FilterKind.SQL:
            rule = replace(rule, parameters=_used(values, rule.expression))
        if rule.action is not None:
            rule = replace(rule, action_parameters=_used(values, rule.action))
    return rule


def _used(values: Mapping[str, RuleValue], expression: str | None) -> dict[str, RuleValue]:
    return {name: value for name, value in values.items() if name.lower() in (expression or "").lower()}


@group.command()
@with_signature(*_RULE, *_DEFINITION, *COMMON)
def create(*, topic: str, subscription: str, name: str, json: bool, **given: Any) -> None:
    """Create a rule. A new subscription has the rule $Default, which matches every message until it is deleted."""
    filtering = _filter(given)
    if filtering is None:
        fail("a rule needs a filter: --sql, or --correlation and --property, or --all, or --none")
    rule = _changed(Rule(name=name), filtering, given)
    title = f"the rule {name} of {topic}/Subscriptions/{subscription}"
    with administering(given["connection_string"], given["ca_file"]) as client, clear_error_if_exists(title):
        made = client.create_rule(topic, subscription, rule)
    _print_result(made, "created", topic, subscription, json)


@group.command()
@with_signature(*_RULE, *COMMON)
def show(*, topic: str, subscription: str, name: str, json: bool, **given: Any) -> None:
    """Show the filter and the action of a rule."""
    with administering(given["connection_string"], given["ca_file"]) as client:
        rule = client.get_rule(topic, subscription, name)
    if json:
        print_json(as_json(rule))
    else:
        print_pairs([("Name", rule.name), ("Filter", _shown_filter(rule)), ("Action", rule.action)])


@group.command("list")
@with_signature(*_SUBSCRIPTION, *COMMON)
def list_(*, topic: str, subscription: str, json: bool, **given: Any) -> None:
    """List the rules of a subscription. With --json: one array."""
    with administering(given["connection_string"], given["ca_file"]) as client:
        rules = list(client.rules(topic, subscription))
    if json:
        print_json([as_json(rule) for rule in rules])
    elif rules:
        print_table(("Name", "Filter", "Action"), [(rule.name, _shown_filter(rule), rule.action) for rule in rules])
    else:
        note("no rules")


@group.command()
@with_signature(*_RULE, *_DEFINITION, *COMMON)
def update(*, topic: str, subscription: str, name: str, json: bool, **given: Any) -> None:
    """Change the filter of a rule, its action, or both."""
    filtering = _filter(given)
    if filtering is None and given["action"] is None and not given["parameter"]:
        fail("nothing to update: give a filter, --action or --parameter")
    with administering(given["connection_string"], given["ca_file"]) as client:
        rule = _changed(client.get_rule(topic, subscription, name), filtering, given)
        made = client.update_rule(topic, subscription, rule)
    _print_result(made, "updated", topic, subscription, json)


@group.command()
@with_signature(*_RULE, YES, *COMMON)
def delete(*, topic: str, subscription: str, name: str, yes: bool, json: bool, **given: Any) -> None:
    """Delete a rule. A subscription without rules receives no messages."""
    with administering(given["connection_string"], given["ca_file"]) as client:
        rule = client.get_rule(topic, subscription, name)
        confirm(f"Delete the rule {rule.name} of {topic}/Subscriptions/{subscription}?", yes)
        client.delete_rule(topic, subscription, name)
    _print_result(rule, "deleted", topic, subscription, json)


def as_json(rule: Rule) -> dict[str, Any]:
    """Convert a rule to the form of the configuration file, with the parameters of its SQL texts."""
    filtering: dict[str, Any] = {"FilterType": rule.filter.removesuffix("Filter")}
    if rule.filter is FilterKind.SQL:
        filtering["SqlFilter"] = {"SqlExpression": rule.expression, **_parameters(rule.parameters)}
    elif rule.filter is FilterKind.CORRELATION:
        properties = {"Properties": _plain(rule.properties)} if rule.properties else {}
        filtering["CorrelationFilter"] = {**rule.correlation, **properties}
    if rule.action is not None:
        filtering["Action"] = {"SqlExpression": rule.action, **_parameters(rule.action_parameters)}
    return {"Name": rule.name, "Properties": filtering}


def _parameters(values: Mapping[str, RuleValue]) -> dict[str, Any]:
    return {"Parameters": _plain(values)} if values else {}


def _plain(values: Mapping[str, RuleValue]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


def _shown_filter(rule: Rule) -> str:
    if rule.filter is FilterKind.SQL:
        return rule.expression or ""
    if rule.filter is FilterKind.CORRELATION:
        compared = {**rule.correlation, **_plain(rule.properties)}
        shown = {name: repr(str(value)) if isinstance(value, str) else str(value) for name, value in compared.items()}
        return ", ".join(f"{name} = {value}" for name, value in shown.items())
    return "all" if rule.filter is FilterKind.TRUE else "none"


def _print_result(rule: Rule, done: str, topic: str, subscription: str, json: bool) -> None:
    if json:
        print_json(as_json(rule))
    else:
        print(f"{done} the rule {rule.name} of {topic}/Subscriptions/{subscription}")
