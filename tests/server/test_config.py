"""The configuration file: the emulator's JSON becomes definitions, mistakes name file, line and key."""

from __future__ import annotations

import json
import math
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from peeklock.entities.authorization import ALL_RIGHTS, DEFAULT_KEY, DEFAULT_KEY_NAME, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.durations import HOUR, MINUTE, SECOND
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition
from peeklock.entities.settings import PROFILES, settings_of
from peeklock.limits.http import MAX_CONFIG_BYTES
from peeklock.limits.server import Limits
from peeklock.server.config import ConfigError, default_namespace, load_config, load_configuration
from peeklock.server.config_reference import TABLES, page
from peeklock.server.config_server import ServerSettings
from peeklock.server.config_shape import MAX_SHOWN

STANDARD, EMULATOR = PROFILES["standard"], PROFILES["emulator"]
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "configuration.md"
SAMPLE = ROOT / "examples" / "config.json"

# The shape of the file that comes with the official emulator.
OFFICIAL = """{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "RequiresDuplicateDetection": false
            },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": {
                  "DeadLetteringOnMessageExpiration": false,
                  "DefaultMessageTimeToLive": "PT1H",
                  "LockDuration": "PT1M",
                  "MaxDeliveryCount": 3,
                  "ForwardDeadLetteredMessagesTo": "",
                  "ForwardTo": "",
                  "RequiresSession": false
                },
                "Rules": [
                  {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": { "ContentType": "application/text", "Properties": { "p": "v" } }
                    }
                  }
                ]
              },
              { "Name": "subscription.2" }
            ]
          }
        ]
      }
    ],
    "Logging": { "Type": "File" }
  }
}"""


def load_text(tmp_path: Path, text: str, profile: Any = STANDARD) -> NamespaceDefinition:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    return load_config(path, profile)


def namespace(**keys: Any) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [keys]}}, indent=1)


def refusal(tmp_path: Path, text: str, profile: Any = STANDARD) -> str:
    """Return the error message without the folder of the file."""
    with pytest.raises(ConfigError) as refused:
        load_text(tmp_path, text, profile)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(str(tmp_path) + os.sep)
    return message.removeprefix(str(tmp_path) + os.sep)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_official_emulators_file_is_read_under_every_profile(tmp_path: Path, profile: Any) -> None:
    found = load_text(tmp_path, OFFICIAL, profile)
    (queue,) = found.queues
    assert (queue.name, queue.lock_duration_ms, queue.max_delivery_count) == ("queue.1", MINUTE, 3)
    assert (queue.default_message_ttl_ms, queue.duplicate_detection_window_ms) == (HOUR, 20 * SECOND)
    assert queue.forward_to is None
    assert queue.forward_dead_lettered_messages_to is None
    (topic,) = found.topics
    first, second = topic.subscriptions
    assert first.rules == (
        RuleDefinition(
            name="app-prop-filter-1",
            filter_kind=FilterKind.CORRELATION,
            correlation=CorrelationFilter(content_type="application/text", properties={"p": "v"}),
        ),
    )
    assert second.rules == (RuleDefinition(),)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_the_sample_file_is_read_under_every_profile(profile: Any) -> None:
    found = load_config(SAMPLE, profile)
    assert [queue.name for queue in found.queues] == ["queue.1"]
    (topic,) = found.topics
    assert [(each.name, [rule.name for rule in each.rules]) for each in topic.subscriptions] == [
        ("subscription.1", ["app-prop-filter-1"]),
        ("subscription.2", ["user-prop-filter-1"]),
        ("subscription.3", ["$Default"]),
        ("subscription.4", ["sql-filter-1"]),
    ]
    (sql,) = topic.subscriptions[3].rules
    assert sql.sql_expression == "sys.MessageId = '123456' AND userProp1 = 'value1'"
    assert sql.action == "SET sys.To = 'Entity'"


@pytest.mark.parametrize("kind", ["File", "Console", "File,Console", "Console,File", "Console, File"])
def test_every_spelling_of_the_log_targets_is_accepted(tmp_path: Path, kind: str) -> None:
    assert load_text(tmp_path, OFFICIAL.replace('"Type": "File"', f'"Type": "{kind}"')).queues


def test_a_file_may_name_its_schema(tmp_path: Path) -> None:
    assert load_text(tmp_path, OFFICIAL.replace("{", '{ "$schema": "config.schema.json",', 1)).queues


@pytest.mark.parametrize("rules", [{}, {"Rules": []}])
def test_a_subscription_without_rules_gets_every_message(tmp_path: Path, rules: Any) -> None:
    text = namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", **rules}]}])
    assert load_text(tmp_path, text).topics[0].subscriptions[0].rules == (RuleDefinition(),)


def test_without_rules_on_the_namespace_the_emulators_key_has_all_rights(tmp_path: Path) -> None:
    (rule,) = load_text(tmp_path, OFFICIAL).authorization_rules
    assert (rule.name, rule.primary_key, rule.rights) == (DEFAULT_KEY_NAME, DEFAULT_KEY, ALL_RIGHTS)


def test_keys_are_read_on_the_namespace_and_on_entities_and_replace_the_emulators(tmp_path: Path) -> None:
    sender = {"Name": "s", "Rights": ["Send"], "PrimaryKey": "k1", "SecondaryKey": "k2"}
    found = load_text(
        tmp_path,
        namespace(
            AuthorizationRules=[{"Name": "root", "Rights": ["Manage"], "PrimaryKey": "r"}],
            Queues=[{"Name": "q", "AuthorizationRules": [sender]}],
            Topics=[{"Name": "t", "AuthorizationRules": [sender]}],
        ),
    )
    assert [(rule.name, rule.rights) for rule in found.authorization_rules] == [("root", ALL_RIGHTS)]
    (rule,) = found.queues[0].authorization_rules
    assert (rule.keys, rule.rights) == (("k1", "k2"), frozenset({Right.SEND}))
    assert found.topics[0].authorization_rules == (rule,)


def test_missing_settings_have_the_profiles_defaults(tmp_path: Path) -> None:
    text = namespace(Queues=[{"Name": "q"}])
    assert load_text(tmp_path, text, STANDARD).queues == (QueueDefinition(name="q"),)
    assert load_text(tmp_path, text, EMULATOR).queues[0].max_delivery_count == 3


def test_the_longest_duration_means_no_limit(tmp_path: Path) -> None:
    properties = {"DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S", "AutoDeleteOnIdle": "P20000000D"}
    (queue,) = load_text(tmp_path, namespace(Queues=[{"Name": "q", "Properties": properties}])).queues
    assert queue.default_message_ttl_ms is None
    assert queue.auto_delete_on_idle_ms is None


def test_forwarding_is_read_in_any_order_and_case(tmp_path: Path) -> None:
    text = namespace(
        Queues=[{"Name": "a", "Properties": {"ForwardTo": "T"}}],
        Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "A"}}]}],
    )
    assert load_text(tmp_path, text).queues[0].forward_to == "T"


def test_a_byte_order_mark_and_comments_are_allowed(tmp_path: Path) -> None:
    text = "\ufeff// mine\n" + namespace(Queues=[{"Name": "q"}])
    assert [queue.name for queue in load_text(tmp_path, text).queues] == ["q"]


def test_a_missing_filter_type_follows_from_the_given_filter(tmp_path: Path) -> None:
    rule = {"Name": "r", "Properties": {"SqlFilter": {"SqlExpression": "a = 1"}, "CorrelationFilter": None}}
    text = namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}])
    (found,) = load_text(tmp_path, text).topics[0].subscriptions[0].rules
    assert found == RuleDefinition(name="r", filter_kind=FilterKind.SQL, sql_expression="a = 1")


def in_a_rule(**properties: Any) -> str:
    rule = {"Name": "r", "Properties": properties}
    return namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}])


def test_values_without_a_json_form_are_objects_with_their_type(tmp_path: Path) -> None:
    text = in_a_rule(
        SqlFilter={
            "SqlExpression": "a > @a AND b < @b",
            "Parameters": {"a": {"DateTime": "2026-01-31T12:00:00+01:00"}, "@b": {"Duration": "-PT1.5S"}},
        },
        Action={"SqlExpression": "SET c = @c", "Parameters": {"c": {"Double": "-inf"}}},
    )
    (rule,) = load_text(tmp_path, text).topics[0].subscriptions[0].rules
    assert rule.parameters == {
        "a": datetime(2026, 1, 31, 11, tzinfo=UTC),
        "b": -timedelta(seconds=1.5),
    }
    assert rule.action_parameters == {"c": -math.inf}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"DateTime": "2026-01-31T12:00:00"}, "must be a moment with its time zone, such as"),
        ({"DateTime": 5}, "must be a moment with its time zone, such as"),
        ({"Duration": "soon"}, "must be an ISO 8601 duration such as"),
        ({"Double": "many"}, "must be a number in text, such as"),
        ({"Moment": "2026"}, "must be text, a number, true, false or one of"),
        ({"Double": "1", "Duration": "PT1S"}, "must be text, a number, true, false or one of"),
        (None, "must be text, a number, true, false or one of"),
    ],
)
def test_an_invalid_value_is_refused(tmp_path: Path, value: Any, problem: str) -> None:
    message = refusal(tmp_path, in_a_rule(CorrelationFilter={"Properties": {"p": value}}))
    assert f"Rules[0].Properties.CorrelationFilter.Properties.p: {problem}" in message


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"SqlFilter": {"SqlExpression": "price > > 5"}}, "SqlFilter"),
        ({"FilterType": "True", "Action": {"SqlExpression": "price > > 5"}}, "Action"),
    ],
)
def test_invalid_sql_in_the_file_is_shown_with_a_caret_under_the_position(
    tmp_path: Path, properties: Any, key: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(tmp_path, in_a_rule(**properties))
    sentence, expression, caret = str(refused.value).splitlines()
    (line,) = [number for number, text in enumerate(in_a_rule(**properties).splitlines(), 1) if "SqlExpression" in text]
    assert f"config.json:{line}: " in sentence
    assert f"Rules[0].Properties.{key}.SqlExpression: " in sentence
    assert expression.strip() == "price > > 5"
    assert caret.strip() == "^"


def test_a_value_for_no_parameter_of_the_sql_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="@limit"):
        load_text(tmp_path, in_a_rule(SqlFilter={"SqlExpression": "price > @limit"}))


def test_a_parameter_has_one_value(tmp_path: Path) -> None:
    message = refusal(tmp_path, in_a_rule(SqlFilter={"SqlExpression": "a > @a", "Parameters": {"a": 1, "@a": 2}}))
    assert "SqlFilter.Parameters: must not name a parameter both with @ and without" in message


def test_every_element_with_a_mistake_is_reported(tmp_path: Path) -> None:
    text = namespace(
        Queues=[{"Name": "a b"}, {"Name": "fine"}, {"Name": "c", "Properties": {"Status": "Asleep"}}],
        Topics=[{"Name": "t", "Subscriptions": [{"Name": "s"}, {"Nmae": "u"}]}],
    )
    with pytest.raises(ConfigError) as refused:
        load_text(tmp_path, text)
    places = [problem.removeprefix(str(tmp_path)).split(": ")[1] for problem in refused.value.problems]
    assert places == [
        "Namespaces[0].Queues[0].Name",
        "Namespaces[0].Queues[2].Properties.Status",
        "Namespaces[0].Topics[0].Subscriptions[1].Nmae",
    ]
    assert str(refused.value) == "\n".join(refused.value.problems)


def test_the_first_of_very_many_mistakes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        load_text(tmp_path, namespace(Queues=[{"Name": "a b"} for _ in range(MAX_SHOWN + 7)]))
    lines = str(refused.value).splitlines()
    assert (len(lines), lines[-1]) == (MAX_SHOWN + 1, "... and 7 more")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"LockDuration": "PT1M",\n              "MaxDeliveryCount": 3',
            '"LockDuration": "PT10M"',
            "config.json:15: Namespaces[0].Queues[0].Properties.LockDuration: "
            "PT10M must be from PT5S to PT5M in the standard profile",
        ),
        (
            '"LockDuration": "PT1M",\n              "MaxDeliveryCount": 3',
            '"LockDuration": "1 minute"',
            "config.json:15: Namespaces[0].Queues[0].Properties.LockDuration: "
            "1 minute must be an ISO 8601 duration such as PT30S, PT5M or P1DT12H",
        ),
        (
            '"LockDuration": "PT1M",\n              "MaxDeliveryCount": 3',
            '"LockDuration": 60',
            "config.json:15: Namespaces[0].Queues[0].Properties.LockDuration: "
            '60 must be an ISO 8601 duration such as "PT1M"',
        ),
        (
            '"MaxDeliveryCount": 3,\n              "RequiresDup',
            '"maxdeliverycount": 3,\n              "RequiresDup',
            "config.json:16: Namespaces[0].Queues[0].Properties.maxdeliverycount: "
            "is not a known key; did you mean MaxDeliveryCount?",
        ),
        (
            '"MaxDeliveryCount": 3,\n              "RequiresDup',
            '"MaxDeliveryCount": "3",\n              "RequiresDup',
            "config.json:16: Namespaces[0].Queues[0].Properties.MaxDeliveryCount: '3' must be a whole number",
        ),
        (
            '"RequiresSession": false\n            }',
            '"RequiresSession": "no"\n            }',
            "config.json:18: Namespaces[0].Queues[0].Properties.RequiresSession: 'no' must be true or false",
        ),
        (
            '"Name": "queue.1"',
            '"Name": "queue 1"',
            "config.json:8: Namespaces[0].Queues[0].Name: queue 1 must be letters, digits and / - _ . ~, "
            "with a letter or digit first and last",
        ),
        (
            '"Name": "subscription.2"',
            '"Name": "Subscription.1"',
            "config.json:52: Namespaces[0].Topics[0].Subscriptions[1].Name: "
            "Subscription.1 is the name of another in the list already (case aside)",
        ),
        (
            '"Name": "topic.1"',
            '"Name": "QUEUE.1"',
            "config.json:24: Namespaces[0].Topics[0].Name: there is a queue with the name QUEUE.1 already",
        ),
        (
            '"FilterType": "Correlation"',
            '"FilterType": "CorrelationFilter"',
            "config.json:46: Namespaces[0].Topics[0].Subscriptions[0].Rules[0].Properties.FilterType: "
            "CorrelationFilter must be one of Sql, Correlation, True, False",
        ),
        (
            '"FilterType": "Correlation"',
            '"FilterType": "Sql"',
            "config.json:43: Namespaces[0].Topics[0].Subscriptions[0].Rules[0]: "
            "SqlFilter (none) must be given when FilterType is Sql, and only then",
        ),
        (
            '"ContentType": "application/text", "Properties": { "p": "v" }',
            "",
            "config.json:47: Namespaces[0].Topics[0].Subscriptions[0].Rules[0].Properties.CorrelationFilter: "
            "{} must test at least one property",
        ),
        (
            '"p": "v"',
            '"p": ["v"]',
            "config.json:47: Namespaces[0].Topics[0].Subscriptions[0].Rules[0].Properties.CorrelationFilter"
            '.Properties.p: must be text, a number, true, false or one of {"DateTime": ...}, {"Duration": ...}, '
            '{"Guid": ...}, {"Double": ...}',
        ),
        (
            '"ForwardTo": "",\n              "LockDuration"',
            '"ForwardTo": "nowhere",\n              "LockDuration"',
            "config.json:14: Namespaces[0].Queues[0].Properties.ForwardTo: "
            "nowhere must be a queue or topic of the namespace",
        ),
        (
            '"Logging"',
            '"Loging"',
            "config.json:58: Loging: is not a known key; did you mean Logging?",
        ),
        (
            '"Type": "File"',
            '"Type": "Syslog"',
            'config.json:58: Logging.Type: Syslog must be Console or File, or both as in "Console,File"',
        ),
        (
            '"Logging": { "Type": "File" }',
            '"Logging": {}',
            "config.json:58: Logging: must have the key Type",
        ),
        (
            '"Name": "queue.1",',
            "",
            "config.json:7: Namespaces[0].Queues[0]: must have the key Name",
        ),
        (
            '"Name": "queue.1",',
            '"Name": "queue.1" ',
            'config.json:9:13: expected "," or "}"',
        ),
    ],
)
def test_a_mistake_is_reported_with_file_line_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert OFFICIAL.count(old) == 1
    assert refusal(tmp_path, OFFICIAL.replace(old, new)) == message


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", "config.json:1: the file: must be an object, in braces"),
        ("{}", "config.json:1: the file: must have the key UserConfig"),
        (
            '{"Userconfig": {}}',
            "config.json:1: Userconfig: is not a known key; did you mean UserC",
        ),
        ('{"UserConfig": {}}', "config.json:1: UserConfig: must have the key Namespaces"),
        ('{"UserConfig": {"Namespaces": {}}}', "config.json:1: Namespaces: must be a list, in brackets"),
        (
            '{"UserConfig": {"Namespaces": []}}',
            "config.json:1: Namespaces: must hold exactly one namespace, not 0",
        ),
        (
            '{"UserConfig": {"Namespaces": [{}, {}]}}',
            "config.json:1: Namespaces: must hold exactly one namespace, not 2",
        ),
        (namespace(Name="a b"), "config.json:5: Namespaces[0].Name: a b must be letters"),
        (namespace(Name=None), "config.json:5: Namespaces[0].Name: must be text, in double quotes"),
        (namespace(Xyzzy=1), "Xyzzy: is not a known key; known keys are Name, Queues, Topics, Auth"),
        (
            namespace(AuthorizationRules=[]),
            "config.json:5: Namespaces[0].AuthorizationRules: must hold a rule; leave the key out",
        ),
        (
            namespace(AuthorizationRules=[{"Name": "n", "Rights": ["Send", "Sned"], "PrimaryKey": "k"}]),
            "config.json:10: Namespaces[0].AuthorizationRules[0].Rights[1]: Sned must be one of Send, Listen",
        ),
        (
            namespace(AuthorizationRules=[{"Name": "n", "Rights": [], "PrimaryKey": "k"}]),
            "config.json:8: Namespaces[0].AuthorizationRules[0].Rights: [] must be one or more of Send",
        ),
        (
            namespace(Queues=[{"Name": "q"}, {"Name": "Q"}]),
            "config.json:10: Namespaces[0].Queues[1].Name: Q is the name of another in the list already",
        ),
        (
            namespace(Topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [{"Name": "r"}]}]}]),
            "Subscriptions[0].Rules[0]: must have the key Properties",
        ),
    ],
)
def test_a_file_of_the_wrong_shape_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refusal(tmp_path, text)


def test_a_key_that_is_refused_is_not_shown(tmp_path: Path) -> None:
    rule = {"Name": "n", "Rights": ["Send"], "PrimaryKey": "my secret"}
    message = refusal(tmp_path, namespace(AuthorizationRules=[rule]))
    assert "AuthorizationRules[0].PrimaryKey: " in message
    assert "secret" not in message


def test_more_entities_than_the_profile_has_room_for_are_refused(tmp_path: Path) -> None:
    fifty = [{"Name": f"q{n}"} for n in range(50)]
    assert len(load_text(tmp_path, namespace(Queues=fifty), EMULATOR).queues) == 50
    message = refusal(tmp_path, namespace(Queues=fifty, Topics=[{"Name": "t"}]), EMULATOR)
    assert message.endswith("must hold at most 50 queues and topics in the emulator profile, not 51")
    topic = {"Name": "t", "Subscriptions": [{"Name": f"s{n}"} for n in range(51)]}
    message = refusal(tmp_path, namespace(Topics=[topic]), EMULATOR)
    assert "Topics[0].Subscriptions: must hold at most 50 in the emulator profile, not 51" in message


@pytest.mark.parametrize(
    ("properties", "most", "what"),
    [
        ({"SqlFilter": {"SqlExpression": "a = 1"}}, 20, "SQL"),
        ({"CorrelationFilter": {"Label": "x"}}, 1000, "correlation"),
    ],
)
def test_more_filters_than_the_profile_allows_a_topic_are_refused(
    tmp_path: Path, properties: Any, most: int, what: str
) -> None:
    def text(number: int) -> str:
        rules = [{"Name": f"r{each}", "Properties": properties} for each in range(number)]
        halves = [{"Name": "s", "Rules": rules[::2]}, {"Name": "t", "Rules": rules[1::2]}]
        return namespace(Topics=[{"Name": "t", "Subscriptions": halves}])

    assert load_text(tmp_path, text(most), EMULATOR).topics
    message = refusal(tmp_path, text(most + 1), EMULATOR)
    assert f"Topics[0].Subscriptions: must hold at most {most} {what} filters in the emulator profile" in message


def test_a_missing_or_unreadable_file_is_reported(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    with pytest.raises(ConfigError, match=re.escape(f"{missing}: the configuration file does not exist")):
        load_config(missing, STANDARD)
    with pytest.raises(ConfigError, match="the configuration file cannot be read: Is a directory"):
        load_config(tmp_path, STANDARD)


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{\n"a": "\xff"}')
    with pytest.raises(ConfigError, match=r"config\.json:2: the configuration file is not UTF-8 here"):
        load_config(path, STANDARD)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b" " * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(ConfigError, match="is larger than 33554432 bytes"):
        load_config(path, STANDARD)


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_without_a_file_there_is_something_of_every_kind(profile: Any) -> None:
    found = default_namespace(profile)
    assert [(queue.name, queue.requires_session) for queue in found.queues] == [
        ("queue", False),
        ("session-queue", True),
    ]
    (topic,) = found.topics
    assert topic.name == "topic"
    assert [each.name for each in topic.subscriptions] == ["subscription-1", "subscription-2"]
    for entity in (*found.queues, topic, *topic.subscriptions):
        entity.check(profile)
    assert found.authorization_rules[0].primary_key == DEFAULT_KEY
    assert found.only_if_empty


# --- the page


def test_the_example_in_the_documentation_is_read(tmp_path: Path) -> None:
    blocks = re.findall(r"```jsonc\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 1
    found = load_text(tmp_path, blocks[0])
    assert [queue.name for queue in found.queues] == ["orders", "failed", "carts"]
    assert found.queues[0].authorization_rules[0].keys == ("shop-key", "shop-key-2")
    assert found.queues[0].forward_dead_lettered_messages_to == "failed"
    assert [rule.name for rule in found.topics[0].subscriptions[1].rules] == ["large", "eu"]
    load_text(tmp_path, blocks[0], EMULATOR)


def test_the_tables_in_the_documentation_are_those_of_the_code() -> None:
    """If not: python -m peeklock.server.config_reference docs/configuration.md"""
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall("<!-- made: (.*?) -->", text) == list(TABLES)
    assert page(text) == text


def test_every_setting_has_a_description_and_a_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for kind in (QueueDefinition, TopicDefinition, SubscriptionDefinition):
        for setting in settings_of(kind).values():
            assert setting.note, setting.name
            (row,) = [line for line in text.splitlines() if line.startswith(f"| `{setting.name}` |")]
            assert row.endswith(f"| {setting.note} |")


def test_a_row_has_the_range_of_every_profile_and_the_defaults() -> None:
    (row,) = [line for line in TABLES["ranges"]().splitlines() if line.startswith("| `DefaultMessageTimeToLive` |")]
    cells = [cell.strip() for cell in row.strip("| ").split("|")]
    assert cells[1:7] == [
        "Q T S",
        "max (emulator PT1H)",
        "PT1S – max",
        "PT1S – max",
        "PT5M – PT1H",
        "PT0.001S – max",
    ]


# --- the server ---


def server_of(folder: Path, server: object) -> ServerSettings:
    path = folder / "config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{}], "Server": server}}))
    return load_configuration(path, STANDARD).server


def test_the_servers_settings_are_read(tmp_path: Path) -> None:
    found = server_of(
        tmp_path,
        {
            "AllowedHosts": ["a", "b"],
            "AllowedOrigins": ["https://c"],
            "RequireTls": True,
            "MtlsCa": "clients.pem",
            "Audit": "/var/log/audit.jsonl",
            "MaxConnections": 100,
            "ReservedConnections": 0,
            "MaxConnectionsPerAddress": 10,
            "MaxFailedLogins": 5,
            "FirstBytesSeconds": 3,
            "HandshakeSeconds": 4,
            "StopSeconds": 60,
            "UnsavedMegabytes": 64,
            "UnauthenticatedMegabytes": 8,
        },
    )
    assert found == ServerSettings(
        allowed_hosts=("a", "b"),
        allowed_origins=("https://c",),
        require_tls=True,
        mtls_ca=tmp_path / "clients.pem",
        audit=Path("/var/log/audit.jsonl"),
        limits=Limits(
            max_connections=100,
            reserved_connections=0,
            max_connections_per_address=10,
            max_failed_logins=5,
            first_bytes_seconds=3,
            handshake_seconds=4,
            stop_seconds=60,
            unsaved_total=64 << 20,
            unauthenticated_bytes=8 << 20,
        ),
    )
    assert server_of(tmp_path, {}) == ServerSettings()


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ([], "Server: must be an object"),
        ({"RequireTLS": True}, "did you mean RequireTls"),
        ({"RequireTls": "yes"}, "RequireTls: must be true or false"),
        ({"AllowedHosts": "a"}, "AllowedHosts: must be a list"),
        ({"AllowedHosts": [1]}, "must be text"),
        ({"Audit": 1}, "Audit: must be text"),
        ({"MaxConnections": 0}, "MaxConnections: must be a whole number from 1 to 1000000"),
        ({"MaxFailedLogins": True}, "MaxFailedLogins: must be a whole number from 0 to 1000000"),
        ({"ReservedConnections": 1.5}, "ReservedConnections: must be a whole number"),
    ],
)
def test_a_mistake_in_the_server_settings_is_reported(tmp_path: Path, server: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        server_of(tmp_path, server)
