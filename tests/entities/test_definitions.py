"""Definitions: settings are checked when made, by profile when asked, and survive the store."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.entities.authorization import ALL_RIGHTS, DEFAULT_KEY, DEFAULT_KEY_NAME, AuthorizationRule, Right
from peeklock.entities.base import EntityDefinition
from peeklock.entities.definitions import (
    LOCK_DURATION,
    REQUIRES_SESSION,
    QueueDefinition,
    SubscriptionDefinition,
    TopicDefinition,
)
from peeklock.entities.durations import (
    DAY,
    HOUR,
    MAX_DURATION_MS,
    MAX_DURATION_TEXT,
    MINUTE,
    SECOND,
    format_duration,
    parse_duration,
)
from peeklock.entities.names import (
    DefinitionError,
    check_entity_name,
    check_rule_name,
    check_subscription_name,
    client_scoped_name,
    fold,
)
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition
from peeklock.entities.settings import PROFILES, Form, Status, settings_of

STANDARD, PREMIUM, EMULATOR, UNLIMITED = (PROFILES[name] for name in ("standard", "premium", "emulator", "unlimited"))
SEND = frozenset({Right.SEND})


# --- durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT0S", 0),
        ("PT30S", 30 * SECOND),
        ("PT1M", MINUTE),
        ("P1M", 30 * DAY),
        ("PT1H30M", 90 * MINUTE),
        ("P1DT12H", 36 * HOUR),
        ("P2W", 14 * DAY),
        ("P1Y", 365 * DAY),
        ("PT1.5S", 1500),
        ("PT0.0019S", 1),
        ("PT90M", 90 * MINUTE),
        ("P14D", 14 * DAY),
        (MAX_DURATION_TEXT, None),
        ("P10675199DT2H48M5.477S", None),
        ("P10675199DT2H48M5.476S", MAX_DURATION_MS - 1),
        ("P99999999D", None),
    ],
)
def test_a_duration_is_read_in_milliseconds(text: str, ms: int | None) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1M", "pt1m", "PT1", "-PT1M", "PT1M ", "PT1,5S", "PT.5S", "P1H", "PT١S"]
)
def test_an_invalid_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not an ISO 8601 duration"):
        parse_duration(text)


def test_a_very_long_duration_text_is_refused_without_being_repeated_whole() -> None:
    with pytest.raises(ValueError) as refused:
        parse_duration("P" + "9" * 100_000 + "D")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "PT0S"),
        (MINUTE, "PT1M"),
        (1500, "PT1.5S"),
        (1, "PT0.001S"),
        (7 * DAY, "P7D"),
        (DAY + SECOND, "P1DT1S"),
        (None, MAX_DURATION_TEXT),
    ],
)
def test_a_duration_is_written_in_its_shortest_form(ms: int | None, text: str) -> None:
    assert format_duration(ms) == text


@given(st.one_of(st.none(), st.integers(0, MAX_DURATION_MS - 1)))
def test_a_duration_survives_being_written_and_read(ms: int | None) -> None:
    assert parse_duration(format_duration(ms)) == ms


# --- names


@pytest.mark.parametrize(
    "name",
    ["q", "Q1", "a/b/c", "a-b_c.d~e", "x" * 260, "subscriptions", "subscriptions/a", "a/mysubscriptions"],
)
def test_a_name_of_letters_digits_and_a_few_signs_is_an_entity_name(name: str) -> None:
    check_entity_name(name)
    assert QueueDefinition(name=name).name == name


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("", "1 to 260 characters"),
        ("x" * 261, "not 261"),
        ("-a", "first and last"),
        ("a/", "first and last"),
        ("/a", "first and last"),
        ("a b", "letters, digits"),
        ("a\n", "letters, digits"),
        ("é", "letters, digits"),
        ("q/$deadletterqueue", "letters, digits"),
        ("$cbs", "letters, digits"),
        ("a//b", "two slashes in a row"),
        ("a/../b", "consists of dots"),
        ("t/Subscriptions/s", "the address of a subscription"),
        ("t/subscriptions", "the address of a subscription"),
        (7, "must be text"),
    ],
)
def test_a_name_that_could_not_be_addressed_is_refused(name: Any, rule: str) -> None:
    with pytest.raises(DefinitionError, match=rule) as refused:
        check_entity_name(name)
    assert refused.value.setting == "Name"


@pytest.mark.parametrize("name", ["s" * 51, "a/b", "", "-a", "$Default"])
def test_a_subscription_has_a_short_name_of_one_segment(name: str) -> None:
    with pytest.raises(DefinitionError, match=r"^Name "):
        check_subscription_name(name)
    with pytest.raises(DefinitionError, match=r"^Name "):
        SubscriptionDefinition(name=name)


@pytest.mark.parametrize(
    ("name", "client", "durable", "made"),
    [
        ("orders", "billing", True, "orders$billing$D"),
        ("orders", "", True, "orders$$D"),
        ("orders", "billing", False, "orders$billing$ND"),
        ("a/b c", "ID:é~$", True, "a~2fb~20c$ID~3a~c3~a9~7e~24$D"),
    ],
)
def test_a_subscription_of_jms_is_called_by_its_name_and_its_client(
    name: str, client: str, durable: bool, made: str
) -> None:
    assert client_scoped_name(name, client, durable=durable) == made
    assert SubscriptionDefinition(name=made, temporary=not durable).name == made


@pytest.mark.parametrize(
    "name", ["a$b$ND", "a$b", "a$b$X", "$b$D", "a$b$c$D", "a/b$$D", f"{'s' * 129}$$D", f"s${'c' * 129}$D"]
)
def test_a_name_that_is_nearly_one_of_jms_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=r"^Name "):
        SubscriptionDefinition(name=name)


def test_rules_have_wider_names_than_subscriptions() -> None:
    check_rule_name("$Default")
    check_rule_name("only the large ones")
    for name in ("a/b", "a?b", " a", "a\x00b", "r" * 51, ""):
        with pytest.raises(DefinitionError, match=r"^Name "):
            check_rule_name(name)


def test_names_are_compared_without_case() -> None:
    assert fold("Orders/EU") == fold("orders/eu")
    assert fold("orders") != fold("order")


# --- settings


def test_a_queue_begins_with_the_defaults_of_the_service() -> None:
    queue = QueueDefinition(name="q")
    assert queue.lock_duration_ms == 60_000
    assert queue.max_delivery_count == 10
    assert queue.max_size_in_megabytes == 1024
    assert queue.duplicate_detection_window_ms == 600_000
    assert queue.default_message_ttl_ms is None
    assert queue.auto_delete_on_idle_ms is None
    assert queue.status is Status.ACTIVE
    assert queue.enable_batched_operations
    assert not queue.requires_session
    assert queue.authorization_rules == ()


def test_a_definition_cannot_be_changed() -> None:
    queue = QueueDefinition(name="q")
    with pytest.raises(FrozenInstanceError):
        queue.max_delivery_count = 3  # type: ignore[misc]


@pytest.mark.parametrize("kind", [QueueDefinition, TopicDefinition, SubscriptionDefinition])
def test_every_field_with_a_default_but_the_parts_is_a_declared_setting(kind: type[EntityDefinition]) -> None:
    fields = set(kind(name="x").to_json())
    assert fields - set(settings_of(kind)) <= {"name", "authorization_rules", "subscriptions", "rules"}
    assert len({setting.name for setting in settings_of(kind).values()}) == len(settings_of(kind))


def test_sessions_cannot_be_switched_later_and_locks_can() -> None:
    assert not REQUIRES_SESSION.changeable
    assert LOCK_DURATION.changeable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lock_duration_ms": 0}, "LockDuration PT0S: must be from PT0.001S to P7D"),
        ({"lock_duration_ms": -1}, "LockDuration -1 ms: must be from PT0.001S to P7D"),
        ({"lock_duration_ms": None}, f"LockDuration {MAX_DURATION_TEXT}: must be from PT0.001S to P7D"),
        ({"lock_duration_ms": 60.0}, "LockDuration 60.0: must be a whole number"),
        ({"max_delivery_count": True}, "MaxDeliveryCount True: must be a whole number"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount 0: must be from 1 to 2147483647"),
        ({"requires_session": 1}, "RequiresSession 1: must be true or false"),
        (
            {"status": "Deleting"},
            "Status Deleting: must be one of Active, Disabled, SendDisabled, ReceiveDisabled",
        ),
        ({"user_metadata": 5}, "UserMetadata 5: must be text of at most 1024 characters"),
        ({"forward_to": "a//b"}, "ForwardTo a//b: must not have two slashes in a row"),
    ],
)
def test_a_refused_setting_is_named_with_its_value_and_its_rule(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        QueueDefinition(name="q", **settings)
    assert str(refused.value) == message


def test_a_long_value_is_shown_cut() -> None:
    with pytest.raises(DefinitionError) as refused:
        QueueDefinition(name="q", user_metadata="x" * 100_000)
    assert len(str(refused.value)) < 200


def test_a_status_given_as_text_becomes_a_status() -> None:
    assert QueueDefinition(name="q", status="SendDisabled").status is Status.SEND_DISABLED  # type: ignore[arg-type]


# --- profiles


def test_the_profiles_have_the_message_sizes_of_their_tiers() -> None:
    assert {name: profile.max_message_bytes for name, profile in PROFILES.items()} == {
        "standard": 262_144,
        "premium": 104_857_600,
        "emulator": 262_144,
        "unlimited": 104_857_600,
    }


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("kind", [QueueDefinition, TopicDefinition, SubscriptionDefinition])
def test_a_profile_allows_its_own_defaults(profile: Any, kind: type[EntityDefinition]) -> None:
    kind(name="x", **profile.defaults_for(kind)).check(profile)


def test_the_emulator_has_defaults_of_its_own() -> None:
    queue = QueueDefinition(name="q", **EMULATOR.defaults_for(QueueDefinition))
    assert queue.max_delivery_count == 3
    assert queue.duplicate_detection_window_ms == 20_000
    assert STANDARD.defaults_for(QueueDefinition) == PREMIUM.defaults_for(QueueDefinition) == {}


@pytest.mark.parametrize("kind", [QueueDefinition, TopicDefinition, SubscriptionDefinition])
def test_every_number_has_a_range_in_every_profile_that_lies_within_the_unlimited_one(kind: type) -> None:
    for setting in settings_of(kind).values():
        assert bool(setting.ranges) == (setting.form in (Form.COUNT, Form.DURATION)), setting.name
        if setting.ranges:
            assert set(setting.ranges) == set(PROFILES)
            laxest_low, laxest_high = setting.ranges[UNLIMITED.name]
            assert all(laxest_low <= low <= high <= laxest_high for low, high in setting.ranges.values()), setting.name
            assert set(setting.profile_defaults) <= set(PROFILES)


@pytest.mark.parametrize(
    ("settings", "refusing"),
    [
        ({"lock_duration_ms": 5 * MINUTE}, set()),
        ({"lock_duration_ms": 5 * MINUTE + 1}, {"standard", "premium", "emulator"}),
        ({"lock_duration_ms": 5 * SECOND - 1}, {"standard", "premium", "emulator"}),
        ({"max_size_in_megabytes": 81_920}, {"standard", "emulator"}),
        ({"max_message_size_in_kilobytes": 2048}, {"standard", "emulator"}),
        ({"max_message_size_in_kilobytes": 256}, {"premium"}),
        ({"duplicate_detection_window_ms": 8 * DAY}, {"standard", "premium", "emulator"}),
        ({"default_message_ttl_ms": None}, {"emulator"}),
        ({"default_message_ttl_ms": MINUTE}, {"emulator"}),
        ({"max_delivery_count": 11}, {"emulator"}),
        ({"max_delivery_count": 2001}, {"emulator"}),
        ({"auto_delete_on_idle_ms": MINUTE}, {"standard", "premium", "emulator"}),
        ({"auto_delete_on_idle_ms": None}, set()),
    ],
)
def test_a_profile_refuses_the_settings_that_its_tier_refuses(settings: dict[str, Any], refusing: set[str]) -> None:
    for name, profile in PROFILES.items():
        queue = QueueDefinition(name="q", **profile.defaults_for(QueueDefinition) | settings)
        if name in refusing:
            with pytest.raises(DefinitionError, match=f"in the {name} profile"):
                queue.check(profile)
        else:
            queue.check(profile)


# --- keys


def test_manage_implies_the_other_rights() -> None:
    rule = AuthorizationRule(name="root", primary_key="k", rights=frozenset({Right.MANAGE}))
    assert rule.rights == ALL_RIGHTS
    assert AuthorizationRule(name="s", primary_key="k", rights=SEND).rights == SEND


def test_a_rule_never_shows_its_keys() -> None:
    rule = AuthorizationRule(name="n", primary_key="first-secret", secondary_key="other-secret", rights=SEND)
    assert "secret" not in repr(rule)
    assert rule.keys == ("first-secret", "other-secret")
    with pytest.raises(DefinitionError) as refused:
        replace(rule, primary_key="bad secret;")
    assert "secret" not in str(refused.value)
    assert refused.value.setting == "PrimaryKey"


@pytest.mark.parametrize("rights", [[], ["Sned"], ["Send", "listen"]])
def test_rights_must_be_some_and_known(rights: list[Any]) -> None:
    with pytest.raises(DefinitionError, match="must be one or more of Send, Listen, Manage"):
        AuthorizationRule(name="n", primary_key="k", rights=frozenset(rights))


def test_an_entity_has_at_most_twelve_rules_of_different_names() -> None:
    rules = tuple(AuthorizationRule(name=f"r{n}", primary_key="k", rights=SEND) for n in range(13))
    assert len(QueueDefinition(name="q", authorization_rules=rules[:12]).authorization_rules) == 12
    with pytest.raises(DefinitionError, match=r"AuthorizationRules .*at most 12"):
        QueueDefinition(name="q", authorization_rules=rules)
    with pytest.raises(DefinitionError, match="AuthorizationRules R0: must not occur twice"):
        QueueDefinition(name="q", authorization_rules=(rules[0], replace(rules[0], name="R0")))


# --- rules of subscriptions


def test_a_new_subscription_has_the_rule_that_matches_every_message() -> None:
    assert SubscriptionDefinition(name="s").rules == (RuleDefinition(),)
    assert RuleDefinition() == RuleDefinition(name="$Default", filter_kind=FilterKind.TRUE)
    assert SubscriptionDefinition(name="s", rules=()).rules == ()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RuleDefinition(filter_kind=FilterKind.SQL), r"SqlFilter \(none\): must be given when"),
        (lambda: RuleDefinition(sql_expression="1=1"), "SqlFilter 1=1: must be given when"),
        (
            lambda: RuleDefinition(filter_kind=FilterKind.CORRELATION),
            r"CorrelationFilter \(none\): must be given",
        ),
        (
            lambda: RuleDefinition(correlation=CorrelationFilter(to="x")),
            r"CorrelationFilter \(given\): must be",
        ),
        (lambda: RuleDefinition(filter_kind="SqlFilter"), "FilterType SqlFilter: must be one of Sql"),
        (lambda: RuleDefinition(action="x" * 1025), "Action .*: must be 1 to 1024 characters"),
        (lambda: CorrelationFilter(), "CorrelationFilter {}: must test at least one property"),
        (lambda: CorrelationFilter(properties={"a": None}), "Properties.a None: must be text"),
        (lambda: CorrelationFilter(label=3), "label 3: must be text"),
    ],
)
def test_a_rule_must_be_whole(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()


# --- the store


def full_topic() -> TopicDefinition:
    filtered = RuleDefinition(
        name="large",
        filter_kind=FilterKind.CORRELATION,
        correlation=CorrelationFilter(label="x", properties={"n": 1, "on": True, "f": 0.5}),
        action="SET a = 1",
    )
    sql = RuleDefinition(name="sql", filter_kind=FilterKind.SQL, sql_expression="a > 1")
    subscription = SubscriptionDefinition(
        name="s", rules=(filtered, sql), forward_to="q", status=Status.DISABLED, default_message_ttl_ms=5000
    )
    key = AuthorizationRule(name="n", primary_key="k", secondary_key="l", rights=SEND)
    return TopicDefinition(name="t", subscriptions=(subscription,), authorization_rules=(key,))


@pytest.mark.parametrize(
    "definition",
    [
        QueueDefinition(name="q"),
        QueueDefinition(
            name="Orders/eu",
            lock_duration_ms=30_000,
            status=Status.RECEIVE_DISABLED,
            forward_dead_lettered_messages_to="dead",
            auto_delete_on_idle_ms=HOUR,
            user_metadata="é",
            max_message_size_in_kilobytes=2048,
            authorization_rules=(AuthorizationRule(name="n", primary_key="k", rights=SEND),),
        ),
        SubscriptionDefinition(name="s", rules=()),
        full_topic(),
    ],
    ids=lambda definition: definition.name,
)
def test_a_definition_survives_the_store(definition: EntityDefinition) -> None:
    stored = json.loads(json.dumps(definition.to_json()))
    assert type(definition).from_json(stored) == definition


def test_definitions_of_a_later_version_are_read_without_unknown_settings() -> None:
    stored = full_topic().to_json() | {"colour": "blue"}
    stored["subscriptions"][0]["rules"][0]["correlation"]["depth"] = 3
    stored["authorization_rules"][0]["created_at"] = 1
    assert TopicDefinition.from_json(stored) == full_topic()


def test_definitions_of_an_earlier_version_get_defaults() -> None:
    assert QueueDefinition.from_json({"name": "q"}) == QueueDefinition(name="q")


def test_definitions_of_one_profile_are_read_under_any_profile() -> None:
    lax = QueueDefinition(name="q", lock_duration_ms=DAY, max_delivery_count=50_000)
    assert QueueDefinition.from_json(lax.to_json()) == lax


def test_a_stored_value_that_no_broker_could_use_is_refused() -> None:
    with pytest.raises(DefinitionError, match="MaxDeliveryCount"):
        QueueDefinition.from_json({"name": "q", "max_delivery_count": "many"})


# --- namespaces


def test_a_namespace_has_the_emulators_name_and_key() -> None:
    namespace = NamespaceDefinition()
    assert namespace.name == "sbemulatorns"
    (rule,) = namespace.authorization_rules
    assert (rule.name, rule.primary_key, rule.rights) == (DEFAULT_KEY_NAME, DEFAULT_KEY, ALL_RIGHTS)


def test_queues_and_topics_share_one_set_of_names() -> None:
    with pytest.raises(DefinitionError, match="A: must not occur twice"):
        NamespaceDefinition(queues=(QueueDefinition(name="a"),), topics=(TopicDefinition(name="A"),))
    with pytest.raises(DefinitionError, match="Subscriptions S: must not occur twice"):
        TopicDefinition(name="t", subscriptions=(SubscriptionDefinition(name="s"), SubscriptionDefinition(name="S")))


def test_forwarding_goes_to_an_entity_of_the_namespace() -> None:
    source = QueueDefinition(name="a", forward_to="B")
    assert NamespaceDefinition(queues=(source, QueueDefinition(name="b"))).queues[0] is source
    with pytest.raises(DefinitionError, match="ForwardTo B: must name a queue or topic of the namespace"):
        NamespaceDefinition(queues=(source,))
    with pytest.raises(DefinitionError, match="ForwardTo q: must name a queue or topic"):
        NamespaceDefinition(topics=(full_topic(),))
