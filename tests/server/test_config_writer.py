"""A namespace that is written as a file is read back as the same namespace."""

from __future__ import annotations

import json
import math
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CORRELATION_FIELDS, CorrelationFilter, FilterKind, RuleDefinition
from peeklock.entities.settings import PROFILES, Form, Setting, Status, settings_of
from peeklock.server.config import load_config
from peeklock.server.config_values import format_value
from peeklock.server.config_writer import format_config

UNLIMITED, STANDARD, EMULATOR = (PROFILES[name] for name in ("unlimited", "standard", "emulator"))
KEY = AuthorizationRule(name="k", primary_key="first", secondary_key="second", rights=frozenset({Right.SEND}))


def read_back(text: str, profile: Any = UNLIMITED) -> NamespaceDefinition:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(text, encoding="utf-8")
        return load_config(path, profile)


# --- whatever it is ---


def values_of(setting: Setting[Any]) -> st.SearchStrategy[Any]:
    match setting.form:
        case Form.FLAG:
            return st.booleans()
        case Form.STATUS:
            return st.sampled_from(list(Status))
        case Form.TEXT:
            return st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
        case Form.ENTITY:
            return st.none()
        case _:
            low, high = setting.ranges[UNLIMITED.name]
            # The upper end of a duration means that there is no limit, which is None.
            numbers = st.integers(low, high - 1)
            return numbers | st.none() if setting.optional else numbers


def definitions(kind: type, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    each = {field: values_of(setting) for field, setting in settings_of(kind).items()}
    each["name"] = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)
    return st.fixed_dictionaries(each | parts).map(lambda values: kind(**possible(values)))


def possible(values: dict[str, Any]) -> dict[str, Any]:
    """Without the pair of settings that exclude each other."""
    excluded = {"order_by_priority": False} if values.get("requires_session") else {}
    return {field: value for field, value in (values | excluded).items() if field in values}


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
VALUES = st.dictionaries(
    TEXTS,
    st.one_of(
        TEXTS,
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.datetimes(timezones=st.just(UTC)),
        st.timedeltas(min_value=timedelta(days=-10_000), max_value=timedelta(days=10_000)),
    ),
    max_size=3,
)
CORRELATIONS = st.builds(
    CorrelationFilter,
    label=TEXTS,
    properties=VALUES,
    **{name: st.none() | TEXTS for name in CORRELATION_FIELDS.values() if name != "label"},
)
NAMES = st.from_regex(r"[a-z$][a-z]{0,8}", fullmatch=True)
RULES = st.one_of(
    st.builds(RuleDefinition, name=NAMES, filter_kind=st.sampled_from([FilterKind.TRUE, FilterKind.FALSE])),
    st.builds(
        RuleDefinition,
        name=NAMES,
        filter_kind=st.just(FilterKind.SQL),
        sql_expression=st.just("price > @p"),
        parameters=st.fixed_dictionaries({"p": st.integers(-5, 5)}),
    ),
    st.builds(
        RuleDefinition,
        name=NAMES,
        filter_kind=st.just(FilterKind.CORRELATION),
        correlation=CORRELATIONS,
        action=st.none() | st.just("SET a = 1; REMOVE b"),
    ),
)
SUBSCRIPTIONS = definitions(
    SubscriptionDefinition,
    rules=st.lists(RULES, min_size=1, max_size=3, unique_by=lambda rule: rule.name).map(tuple),
)
TOPICS = definitions(
    TopicDefinition,
    authorization_rules=st.sampled_from([(), (KEY,)]),
    subscriptions=st.lists(SUBSCRIPTIONS, max_size=2, unique_by=lambda each: each.name).map(tuple),
)
QUEUES = definitions(QueueDefinition, authorization_rules=st.sampled_from([(), (KEY,)]))


@given(
    st.lists(QUEUES, max_size=2),
    st.lists(TOPICS, max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_any_namespace_is_written_and_read_unchanged(queues: list[Any], topics: list[Any]) -> None:
    names = [entity.name for entity in (*queues, *topics)]
    if len(set(names)) < len(names):
        return
    namespace = NamespaceDefinition(name="mine", queues=tuple(queues), topics=tuple(topics), authorization_rules=(KEY,))
    assert read_back(format_config(namespace, with_keys=True)) == namespace


def test_a_moment_without_a_time_zone_is_written_in_utc() -> None:
    """The file requires a time zone; to the rule there is no difference."""
    assert format_value(datetime(2020, 1, 2, 3, 4, 5)) == {"DateTime": "2020-01-02T03:04:05Z"}


# --- what is in the file ---


def written(**parts: Any) -> Any:
    return json.loads(format_config(NamespaceDefinition(**parts)))["UserConfig"]["Namespaces"][0]


def test_default_settings_of_every_profile_are_omitted() -> None:
    (queue,) = written(queues=(QueueDefinition(name="q", requires_session=True),))["Queues"]
    assert queue["Properties"] == {
        "MaxSizeInMegabytes": 1024,
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
        "RequiresSession": True,
        "DefaultMessageTimeToLive": "P10675199DT2H48M5.4775807S",
        "MaxDeliveryCount": 10,
    }


def test_the_defaults_of_one_profile_are_kept_under_another() -> None:
    made = QueueDefinition(name="q", **{**EMULATOR.defaults_for(QueueDefinition), "max_size_in_megabytes": 1024})
    text = format_config(NamespaceDefinition(queues=(made,)))
    assert read_back(text, STANDARD).queues == (made,)


def test_keys_are_written_only_on_request() -> None:
    namespace = NamespaceDefinition(
        queues=(QueueDefinition(name="q", authorization_rules=(KEY,)),),
        topics=(TopicDefinition(name="t", authorization_rules=(KEY,)),),
        authorization_rules=(KEY,),
    )
    assert "first" not in format_config(namespace)
    assert format_config(namespace, with_keys=True).count("first") == 3


def test_a_subscription_that_gets_nothing_still_gets_nothing() -> None:
    topic = TopicDefinition(name="t", subscriptions=(SubscriptionDefinition(name="s", rules=()),))
    (read,) = read_back(format_config(NamespaceDefinition(topics=(topic,)))).topics[0].subscriptions
    assert [rule.filter_kind for rule in read.rules] == [FilterKind.FALSE]


def test_forwarding_is_written() -> None:
    queues = (
        QueueDefinition(name="a", forward_to="b"),
        QueueDefinition(name="b", forward_dead_lettered_messages_to="a"),
    )
    assert read_back(format_config(NamespaceDefinition(queues=queues))).queues == queues


@pytest.mark.parametrize("value", [math.inf, -math.inf, datetime(2026, 1, 31, 12, 0, 0, 1, UTC), timedelta(0, -1, 1)])
def test_values_of_every_type_are_written(value: Any) -> None:
    rule = RuleDefinition(
        filter_kind=FilterKind.CORRELATION, correlation=CorrelationFilter(properties={"p": value, "q": 1.0, "r": 1})
    )
    topic = TopicDefinition(name="t", subscriptions=(SubscriptionDefinition(name="s", rules=(rule,)),))
    (read,) = read_back(format_config(NamespaceDefinition(topics=(topic,)))).topics[0].subscriptions[0].rules
    assert read == rule
    assert read.correlation is not None
    assert [type(each) for each in read.correlation.properties.values()] == [type(value), float, int]
