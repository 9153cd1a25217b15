"""The JSON schema of configuration files: it accepts what the reader accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.settings import PROFILES, settings_of
from peeklock.server.jsonc import load
from peeklock.server.schema import format_schema, schema

ROOT = Path(__file__).parents[2]
COPY = ROOT / "docs" / "config.schema.json"
EXAMPLE = re.findall(r"```jsonc\n(.*?)```", (ROOT / "docs" / "configuration.md").read_text("utf-8"), re.DOTALL)[0]
SAMPLE = (ROOT / "examples" / "config.json").read_text("utf-8")


def mistakes(document: object, profile: str = "unlimited") -> list[str]:
    return [error.json_path for error in Draft7Validator(schema(PROFILES[profile])).iter_errors(document)]


def namespace(**keys: Any) -> Any:
    return {"UserConfig": {"Namespaces": [keys]}}


def test_the_schema_in_the_documentation_is_up_to_date() -> None:
    """If not: peeklock config schema > docs/config.schema.json"""
    assert COPY.read_text("utf-8") == format_schema()


@pytest.mark.parametrize("profile", PROFILES)
def test_it_is_a_schema(profile: str) -> None:
    Draft7Validator.check_schema(schema(PROFILES[profile]))


@pytest.mark.parametrize("text", [EXAMPLE, SAMPLE], ids=["documentation", "sample"])
@pytest.mark.parametrize("profile", PROFILES)
def test_valid_files_match_the_schema(text: str, profile: str) -> None:
    assert mistakes(load(text).plain(), profile) == []


def test_every_setting_is_in_it_with_a_description() -> None:
    made = schema()["definitions"]
    for name, kind in (
        ("queue", QueueDefinition),
        ("topic", TopicDefinition),
        ("subscription", SubscriptionDefinition),
    ):
        properties = made[name]["properties"]["Properties"]["properties"]
        assert list(properties) == [setting.name for setting in settings_of(kind).values()]
        assert all(each["description"] for each in properties.values())


def test_it_has_the_limits_and_defaults_of_the_profile() -> None:
    def of(profile: str) -> Any:
        return schema(PROFILES[profile])["definitions"]["queue"]["properties"]["Properties"]["properties"]

    count = of("emulator")["MaxDeliveryCount"]
    assert (count["minimum"], count["maximum"], count["default"]) == (1, 10, 3)
    assert of("standard")["MaxDeliveryCount"]["maximum"] == 2**31 - 1
    assert of("standard")["LockDuration"]["description"].endswith("; from PT5S to PT5M")


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ([], "$"),
        ({}, "$"),
        ({"UserConfig": {"Namespaces": []}}, "$.UserConfig.Namespaces"),
        ({"UserConfig": {"Namespaces": [{}, {}]}}, "$.UserConfig.Namespaces"),
        ({"UserConfig": {"Namespaces": [{}], "Logging": {"Type": "Syslog"}}}, "$.UserConfig.Logging.Type"),
        (namespace(Quues=[]), "$.UserConfig.Namespaces[0]"),
        (namespace(Queues=[{}]), "$.UserConfig.Namespaces[0].Queues[0]"),
        (
            namespace(Queues=[{"Name": "q", "Properties": {"LockDuration": 60}}]),
            "$.UserConfig.Namespaces[0].Queues[0].Properties.LockDuration",
        ),
        (
            namespace(Queues=[{"Name": "q", "Properties": {"DeadLetteringOnFilterEvaluationExceptions": True}}]),
            "$.UserConfig.Namespaces[0].Queues[0].Properties",
        ),
        (
            namespace(Queues=[{"Name": "q", "Properties": {"Status": "Asleep"}}]),
            "$.UserConfig.Namespaces[0].Queues[0].Properties.Status",
        ),
        (namespace(AuthorizationRules=[]), "$.UserConfig.Namespaces[0].AuthorizationRules"),
    ],
)
def test_documents_with_a_wrong_shape_do_not_satisfy_it(document: object, place: str) -> None:
    assert place in mistakes(document)


@pytest.mark.parametrize(
    ("properties", "good"),
    [
        (
            {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "a = 1", "Parameters": {"a": {"Duration": "PT1S"}}}},
            True,
        ),
        ({"SqlFilter": {"SqlExpression": "a = 1"}}, True),
        ({"FilterType": "Sql"}, False),
        ({"FilterType": "Correlation", "SqlFilter": {"SqlExpression": "a = 1"}}, False),
        ({"FilterType": "SqlFilter", "SqlFilter": {"SqlExpression": "a = 1"}}, False),
        ({"CorrelationFilter": {}}, False),
        ({"CorrelationFilter": {"Properties": {"a": 1, "b": "x", "c": True}}}, True),
        ({"CorrelationFilter": {"Properties": {"a": [1]}}}, False),
        ({"FilterType": "True", "Action": {"SqlExpression": "SET a = 1"}}, True),
    ],
)
def test_rules_must_have_the_part_of_their_filter_type(properties: Any, good: bool) -> None:
    rule = {"Name": "r", "Properties": properties}
    document = namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}])
    assert (mistakes(document) == []) is good


def test_the_copy_names_its_dialect() -> None:
    assert json.loads(COPY.read_text("utf-8"))["$schema"] == "http://json-schema.org/draft-07/schema#"
