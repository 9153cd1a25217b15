"""Coverage-guided fuzzing of the parsers for documents of administration clients; README.md has the commands.

Any exception except MarkupError, DefinitionError and, for a path, EntityNotFound, is a finding. So is a rule that
changes when it is written and parsed again.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element

import atheris  # type: ignore[import-untyped]
from harness import fuzz

READERS = ["peeklock.admin", "peeklock.atom", "peeklock.entities", "peeklock.broker.rules"]

with atheris.instrument_imports(include=READERS):
    from peeklock.admin.addresses import owner_of, parse_address
    from peeklock.admin.descriptions import ENTITY_DESCRIPTIONS, read_settings
    from peeklock.admin.rule_descriptions import describe_rule, read_rule
    from peeklock.atom.entries import add_content, description, description_of, document
    from peeklock.atom.markup import SCHEMA, MarkupError, branch, leaf, parse, to_text
    from peeklock.broker.errors import EntityNotFound
    from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
    from peeklock.entities.names import DefinitionError
    from peeklock.entities.settings import settings_of

KINDS = (QueueDefinition, TopicDefinition, SubscriptionDefinition)
SENT = Path(__file__).parents[2] / "tests" / "admin" / "sent"


def check(data: bytes) -> None:
    check_address(data)
    try:
        found = description_of(parse(data))
    except MarkupError:
        return
    for kind in KINDS:
        try:
            kind(name="fuzzed", **read_settings(kind, found, "2021-05", None))
        except DefinitionError:
            continue
    try:
        rule = read_rule(found, "fuzzed")
    except DefinitionError:
        return
    again = read_rule(description_of(parse(entry(describe_rule(rule)))), "fuzzed")
    assert again == rule


def check_address(data: bytes) -> None:
    try:
        owner_of(parse_address(data.decode(errors="replace")))
    except EntityNotFound:
        return


def entry(described: Element) -> bytes:
    root = document("entry")
    add_content(root, described)
    return to_text(root).encode()


def examples() -> list[bytes]:
    """Return recorded requests of the SDKs, and an example of every element."""
    rule = description("RuleDescription")
    leaf(branch(rule, "Filter", i_type="SqlFilter"), "SqlExpression", "a = 1 AND b <> 'c'")
    entities = [description(name) for name in ENTITY_DESCRIPTIONS]
    for each in entities:
        leaf(each, "LockDuration", "PT1M")
    return [
        *(path.read_bytes() for path in sorted(SENT.glob("*.xml"))),
        *map(entry, (*entities, rule)),
        b"/topic/subscriptions/s/rules/r",
        b"<!DOCTYPE x [<!ENTITY y 'z'>]><x>&y;</x>",
    ]


def words() -> list[str]:
    """Return the names of elements, and their possible values."""
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
