"""`peeklock rule`: the filters and actions of a subscription."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

import typer

from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString, administering, told_when_there
from peeklock.cli.failing import fail
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_pairs, print_table
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

Topic = Annotated[str, typer.Argument(help="The topic.")]
Subscription = Annotated[str, typer.Argument(help="The subscription.")]
Name = Annotated[str, typer.Argument(help="The rule.")]
Sql = Annotated[str | None, typer.Option("--sql", help="Messages for which this SQL expression is true.")]
Correlation = Annotated[
    list[str] | None,
    typer.Option(help=f"Messages with this: name=value, where the name is {', '.join(CORRELATION)}. Several times."),
]
PropertyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        help="Messages with this application property: name=text or name:type=value; a type is one of "
        f"{', '.join(RULE_TYPES)}. Several times.",
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every message.")]
Nothing = Annotated[bool, typer.Option("--none", help="No message.")]
Action = Annotated[str | None, typer.Option(help="What to change in the messages: SET and REMOVE; '' for nothing.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--parameter", help="A value for an @name in the SQL: @name=text or @name:type=value. Several times."),
]


def _filter(
    sql: str | None, correlation: list[str] | None, properties: list[str] | None, every: bool, no: bool
) -> dict[str, Any] | None:
    """The fields of a rule for the filter that the options tell; None when they tell none."""
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
        fail(f"--correlation: there is no '{unknown}'; there are {', '.join(CORRELATION)}")
    return {
        **nothing,
        "filter": FilterKind.CORRELATION,
        "correlation": {CORRELATION[name]: value for name, value in named.items()},
        "properties": typed_pairs(properties or (), "--property", RULE_TYPES),
    }


def _changed(rule: Rule, filtering: dict[str, Any] | None, action: str | None, parameters: list[str] | None) -> Rule:
    values = typed_pairs(parameters or (), "--parameter", RULE_TYPES)
    if filtering is not None:
        rule = replace(rule, **filtering)
    if action is not None:
        rule = replace(rule, action=action or None, action_parameters={})
    if values:
        # Which of the two texts uses a name is the service's to know: each takes what it is given.
        if rule.filter is FilterKind.SQL:
            rule = replace(rule, parameters=_used(values, rule.expression))
        if rule.action is not None:
            rule = replace(rule, action_parameters=_used(values, rule.action))
    return rule


def _used(values: Mapping[str, RuleValue], expression: str | None) -> dict[str, RuleValue]:
    return {name: value for name, value in values.items() if name.lower() in (expression or "").lower()}


@group.command()
def create(
    topic: Topic,
    subscription: Subscription,
    name: Name,
    sql: Sql = None,
    correlation: Correlation = None,
    property: PropertyOption = None,
    all: All = False,
    none: Nothing = False,
    action: Action = None,
    parameter: Parameters = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Add a rule. A new subscription has the rule $Default, which lets everything pass, until that is deleted."""
    filtering = _filter(sql, correlation, property, all, none)
    if filtering is None:
        fail("a rule needs a filter: --sql, or --correlation and --property, or --all, or --none")
    rule = _changed(Rule(name=name), filtering, action, parameter)
    what = f"the rule {name} of {topic}/Subscriptions/{subscription}"
    with administering(connection_string, ca_file) as client, told_when_there(what):
        made = client.create_rule(topic, subscription, rule)
    _tell(made, "created", topic, subscription, json)


@group.command()
def show(
    topic: Topic,
    subscription: Subscription,
    name: Name,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Show a rule."""
    with administering(connection_string, ca_file) as client:
        rule = client.get_rule(topic, subscription, name)
    if json:
        print_json(as_json(rule))
    else:
        print_pairs([("Name", rule.name), ("Filter", _shown_filter(rule)), ("Action", rule.action)])


@group.command("list")
def list_(
    topic: Topic,
    subscription: Subscription,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """List the rules of a subscription. With --json: one array."""
    with administering(connection_string, ca_file) as client:
        rules = list(client.rules(topic, subscription))
    if json:
        print_json([as_json(rule) for rule in rules])
    elif rules:
        print_table(("Name", "Filter", "Action"), [(rule.name, _shown_filter(rule), rule.action) for rule in rules])
    else:
        note("no rules")


@group.command()
def update(
    topic: Topic,
    subscription: Subscription,
    name: Name,
    sql: Sql = None,
    correlation: Correlation = None,
    property: PropertyOption = None,
    all: All = False,
    none: Nothing = False,
    action: Action = None,
    parameter: Parameters = None,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Change the filter of a rule, its action, or both."""
    filtering = _filter(sql, correlation, property, all, none)
    if filtering is None and action is None and not parameter:
        fail("there is nothing to update: give a filter, --action or --parameter")
    with administering(connection_string, ca_file) as client:
        rule = _changed(client.get_rule(topic, subscription, name), filtering, action, parameter)
        made = client.update_rule(topic, subscription, rule)
    _tell(made, "updated", topic, subscription, json)


@group.command()
def delete(
    topic: Topic,
    subscription: Subscription,
    name: Name,
    yes: Yes = False,
    connection_string: ConnectionString = LOCAL,
    ca_file: CaFile = None,
    json: AsJson = False,
) -> None:
    """Delete a rule. A subscription without rules gets no messages."""
    with administering(connection_string, ca_file) as client:
        rule = client.get_rule(topic, subscription, name)
        confirm(f"Delete the rule {rule.name} of {topic}/Subscriptions/{subscription}?", yes)
        client.delete_rule(topic, subscription, name)
    _tell(rule, "deleted", topic, subscription, json)


def as_json(rule: Rule) -> dict[str, Any]:
    """As the configuration file has rules, with the values of the two SQL texts beside them."""
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
    return "everything" if rule.filter is FilterKind.TRUE else "nothing"


def _tell(rule: Rule, what: str, topic: str, subscription: str, json: bool) -> None:
    if json:
        print_json(as_json(rule))
    else:
        print(f"{what} the rule {rule.name} of {topic}/Subscriptions/{subscription}")
