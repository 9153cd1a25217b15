"""Coverage-guided fuzzing of what reads the documents of administration clients; README.md says how to run it.

Any exception but MarkupError and DefinitionError, and EntityNotFound for a path, is a finding. So is a rule that was
read and is another one when it is written and read again.
"""

from __future__ import annotations

from pathlib import Path

import atheris  # type: ignore[import-untyped]
from harness import fuzz

with atheris.instrument_imports(include=["peeklock.admin", "peeklock.entities.definitions", "peeklock.broker.rules"]):
    from peeklock.admin.addresses import owner_of, parse_address
    from peeklock.admin.descriptions import ENTITY_DESCRIPTIONS, read_settings
    from peeklock.admin.markup import (
        ATOM,
        INSTANCE,
        SCHEMA,
        SERVICE_BUS,
        MarkupError,
        branch,
        description_of,
        parse,
        written,
    )
    from peeklock.admin.rule_descriptions import read_rule, write_rule
    from peeklock.broker.errors import EntityNotFound
    from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
    from peeklock.entities.names import DefinitionError
    from peeklock.entities.settings import settings_of

KINDS = (QueueDefinition, TopicDefinition, SubscriptionDefinition)
SENT = Path(__file__).parents[2] / "tests" / "admin" / "sent"


def check(data: bytes) -> None:
    check_address(data)
    try:
        description = description_of(parse(data))
    except MarkupError:
        return
    for kind in KINDS:
        try:
            kind(name="fuzzed", **read_settings(kind, description, "2021-05", None))
        except DefinitionError:
            continue
    try:
        rule = read_rule(description, "fuzzed")
    except DefinitionError:
        return
    document = entry("RuleDescription", "".join(write_rule(rule)))
    again = read_rule(description_of(parse(document)), "fuzzed")
    assert again == rule


def check_address(data: bytes) -> None:
    try:
        owner_of(parse_address(data.decode(errors="replace")))
    except EntityNotFound:
        return


def entry(name: str, inner: str) -> bytes:
    described = branch(name, [inner], f' xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"')
    return f'<entry xmlns="{ATOM}"><content>{described}</content></entry>'.encode()


def examples() -> list[bytes]:
    """What the SDKs sent, and a little of everything."""
    sql = "<Filter i:type='SqlFilter'><SqlExpression>{}</SqlExpression></Filter>"
    return [
        *(path.read_bytes() for path in sorted(SENT.glob("*.xml"))),
        *(entry(name, "<LockDuration>PT1M</LockDuration>") for name in ENTITY_DESCRIPTIONS),
        entry("RuleDescription", sql.format(written("a = 1 AND b <> 'c'"))),
        b"/topic/subscriptions/s/rules/r",
        b"<!DOCTYPE x [<!ENTITY y 'z'>]><x>&y;</x>",
    ]


def words() -> list[str]:
    """The names of elements, and the values that they may have."""
    settings = {setting.name for kind in KINDS for setting in settings_of(kind).values()}
    elements = [
        *settings,
        "Filter",
        "Action",
        "SqlExpression",
        "Parameters",
        "Properties",
        "AuthorizationRules",
        "Rights",
    ]
    types = ["SqlFilter", "CorrelationFilter", "TrueFilter", "SqlRuleAction", "EmptyRuleAction"]
    kinds = ["string", "int", "long", "double", "boolean", "dateTime", "duration", "guid"]
    values = ["PT1M", "P10675199DT2H48M5.4775807S", "true", "Active", "-1", "9223372036854775808", "1e400"]
    return [
        *(f"<{name}>" for name in elements),
        *(f"</{name}>" for name in elements),
        *(f'i:type="{name}"' for name in types),
        *(f'<Value i:type="d:{kind}" xmlns:d="{SCHEMA}">' for kind in kinds),
        "</Value>",
        "<KeyValueOfstringanyType><Key>k</Key>",
        "</KeyValueOfstringanyType>",
        'i:nil="true"',
        *values,
    ]


if __name__ == "__main__":
    fuzz(check, examples(), words())
