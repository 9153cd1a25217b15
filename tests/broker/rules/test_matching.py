"""The copies of a message that the rules of a topic's subscriptions produce."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewing import after, view

from peeklock.amqp.sections import APPLICATION_PROPERTIES, map_section
from peeklock.amqp.types import Int, Timestamp
from peeklock.broker.rules.matching import Copy, Matcher, check_rule
from peeklock.broker.rules.values import MISSING
from peeklock.broker.rules.view import View
from peeklock.entities.names import DefinitionError
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition

TRUE = RuleDefinition()
FALSE = RuleDefinition(name="never", filter_kind=FilterKind.FALSE)


def sql(text: str, name: str = "rule", **others: Any) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.SQL, sql_expression=text, **others)


def label(text: str, name: str = "rule", **others: Any) -> RuleDefinition:
    correlation = CorrelationFilter(label=text)
    return RuleDefinition(name=name, filter_kind=FilterKind.CORRELATION, correlation=correlation, **others)


def matcher(**subscriptions: RuleDefinition | list[RuleDefinition]) -> Matcher:
    made = Matcher()
    for name, rules in subscriptions.items():
        made.set(name, rules if isinstance(rules, list) else [rules])
    return made


def described(copies: list[Copy]) -> list[str]:
    """Format copies: `subscription`, `subscription/rule` if it has an action, `subscription!rule` for an error."""
    words = []
    for copy in copies:
        assert (copy.rule is None) == (copy.view is None and copy.error is None)
        mark = "" if copy.rule is None else f"/{copy.rule}" if copy.error is None else f"!{copy.rule}"
        words.append(f"{copy.subscription}{mark}")
    return words


# --- one subscription ---


def test_a_true_filter_matches_every_message_unchanged() -> None:
    assert matcher(s=TRUE).match(view()) == [Copy("s")]


@pytest.mark.parametrize("rules", [[], [FALSE]], ids=["none", "false"])
def test_no_rules_or_a_false_filter_match_no_message(rules: list[RuleDefinition]) -> None:
    assert matcher(s=rules).match(view()) == []


def test_a_sql_filter_matches_messages_for_which_it_is_true() -> None:
    made = matcher(s=sql("colour = 'red' AND sys.Label LIKE 'l%'"))
    assert described(made.match(view({"colour": "red"}, subject="label"))) == ["s"]
    assert described(made.match(view({"colour": "blue"}, subject="label"))) == []
    assert described(made.match(view({"colour": "red"}))) == []


def test_a_filter_and_an_action_use_their_parameters() -> None:
    rule = sql(
        "size > @least AND since <= @now",
        parameters={"least": 5, "now": datetime(2024, 1, 1, tzinfo=UTC)},
        action="SET size = @size",
        action_parameters={"size": 7},
    )
    made = matcher(s=rule)
    (copy,) = made.match(view({"size": Int(6), "since": Timestamp(1_704_067_200_000)}))
    assert copy.view is not None
    assert copy.view.user("size") == 7
    assert made.match(view({"size": Int(6), "since": Timestamp(1_704_067_200_001)})) == []
    assert made.match(view({"size": Int(5), "since": Timestamp(0)})) == []


def test_a_correlation_filter_matches_messages_that_meet_its_conditions() -> None:
    made = matcher(s=label("l"))
    assert described(made.match(view(subject="l"))) == ["s"]
    assert described(made.match(view(subject="m"))) == []


def test_all_rules_without_action_together_give_one_copy() -> None:
    made = matcher(s=[TRUE, sql("a = 1", "one"), label("l", "two"), sql("a < 2", "three")])
    assert made.match(view({"a": 1}, subject="l")) == [Copy("s")]


def test_each_rule_with_an_action_gives_a_copy_of_its_own() -> None:
    made = matcher(
        s=[
            sql("a = 1", "one", action="SET b = 1"),
            TRUE,
            label("l", "two", action="SET b = 2"),
            sql("a = 2", "three", action="SET b = 3"),
            RuleDefinition(name="four", action="SET b = a + 3"),
            sql("a = 1", "five"),
        ]
    )
    copies = made.match(view({"a": 1}, subject="l"))
    assert described(copies) == ["s", "s/one", "s/two", "s/four"]
    changed = [after(copy.view).application_properties for copy in copies if copy.view is not None]
    assert changed == [
        {"a": 1, "b": 1, "RuleName": "one"},
        {"a": 1, "b": 2, "RuleName": "two"},
        {"a": 1, "b": 4, "RuleName": "four"},
    ]


def test_the_message_itself_is_not_changed_by_actions() -> None:
    made = matcher(
        s=RuleDefinition(name="one", action="SET a = 5; SET sys.Label = 'x'; REMOVE b"),
        t=RuleDefinition(name="two", action="SET a = a + 1"),
    )
    seen = view({"a": 1, "b": 2}, subject="l")
    _, other = made.match(seen)
    assert other.view is not None
    assert other.view.user("a") == 2
    assert (seen.user("a"), seen.user("b"), seen.user("RuleName"), seen.system("Label")) == (1, 2, MISSING, "l")


def test_the_rule_name_replaces_a_property_of_that_name() -> None:
    made = matcher(s=RuleDefinition(name="5", action="SET rulename = 7"))
    (copy,) = made.match(view({"RULENAME": Int(3)}))
    assert copy.view is not None
    assert after(copy.view).application_properties == {"RuleName": "5"}


@pytest.mark.parametrize(
    ("text", "always"), [("1=1", True), (" 1 = 1 ", True), ("1=0", False), ("NOT 1=1", False), ("1=1 OR a=1", True)]
)
def test_sql_that_is_always_true_or_never_needs_no_view(text: str, always: bool) -> None:
    made = matcher(s=sql(text))
    assert not made.needs_view
    assert described(made.match(None)) == (["s"] if always else [])


# --- errors ---


def test_a_failing_filter_does_not_match_and_is_reported() -> None:
    made = matcher(s=[sql("1 / a = 1", "bad"), sql("a = 0", "good")], t=TRUE)
    plain, failed, other = made.match(view({"a": 0}))
    assert (plain, other) == (Copy("s"), Copy("t"))
    assert described([failed]) == ["s!bad"]
    assert failed.error is not None
    assert failed.error.endswith(".")
    assert "\n" not in failed.error


def test_a_failing_action_is_reported_and_other_actions_run() -> None:
    made = matcher(
        s=[
            RuleDefinition(name="bad", action="SET b = 1; SET sys.SessionId = long"),
            RuleDefinition(name="good", action="SET b = 1"),
        ]
    )
    bad, good = made.match(view({"long": "x" * 129}))
    assert (bad.rule, bad.view) == ("bad", None)
    assert bad.error == "The system property SessionId has at most 128 characters, not 129."
    assert (good.rule, good.error) == ("good", None)
    assert good.view is not None
    assert after(good.view).application_properties == {"long": "x" * 129, "b": 1, "RuleName": "good"}


def test_every_failing_rule_is_reported_in_order() -> None:
    made = matcher(
        s=[sql("1 / a = 1", "one"), sql("2 / a = 1", "two"), TRUE, sql("1 / a = 1", "three")], t=sql("1 / a = 1")
    )
    assert described(made.match(view({"a": 0}))) == ["s", "s!one", "s!two", "s!three", "t!rule"]


def test_an_unreadable_message_is_copied_to_subscriptions_that_do_not_read_it() -> None:
    payload = map_section(APPLICATION_PROPERTIES, [b"\xa1\x01a"])
    broken = View(payload, None, ttl_ms=None, enqueued_at=0, sequence_number=1)
    tested = CorrelationFilter(properties={"a": 1})
    made = matcher(
        s=sql("a = 1"),
        t=TRUE,
        u=RuleDefinition(name="c", filter_kind=FilterKind.CORRELATION, correlation=tested),
        v=RuleDefinition(name="action", action="SET a = 1"),
    )
    assert described(made.match(broken)) == ["s!rule", "t", "u!c", "v!action"]


# --- many subscriptions ---


def test_copies_are_in_the_order_in_which_subscriptions_were_set() -> None:
    made = matcher(d=label("l"), c=TRUE, b=sql("a = 1"), a=RuleDefinition(name="r", action="SET b = 1"))
    assert described(made.match(view({"a": 1}, subject="l"))) == ["d", "c", "b", "a/r"]


def test_a_subscription_that_is_set_again_keeps_its_place_and_not_its_rules() -> None:
    made = matcher(a=TRUE, b=sql("a = 1"), c=label("l"), d=TRUE)
    made.set("a", [sql("a = 2")])
    made.set("b", [TRUE])
    made.set("c", [label("m")])
    assert described(made.match(view({"a": 1}, subject="l"))) == ["b", "d"]
    assert described(made.match(view({"a": 2}, subject="m"))) == ["a", "b", "c", "d"]


def test_a_removed_subscription_gets_nothing_and_is_last_when_added_again() -> None:
    made = matcher(a=[TRUE, sql("a = 1", "one"), label("l", "two"), FALSE], b=sql("a = 1"), c=label("l"))
    assert described(made.match(view({"a": 1}, subject="l"))) == ["a", "b", "c"]
    made.remove("a")
    made.remove("unknown")
    assert described(made.match(view({"a": 1}, subject="l"))) == ["b", "c"]
    made.set("a", [TRUE])
    assert described(made.match(view())) == ["a"]
    assert described(made.match(view({"a": 1}, subject="l"))) == ["b", "c", "a"]


def test_a_matcher_without_rules_that_read_messages_needs_no_view() -> None:
    made = Matcher()
    assert not made.needs_view
    assert made.match(None) == []
    made.set("true", [TRUE, FALSE])
    for rule in (sql("a = 1"), label("l"), RuleDefinition(action="SET a = 1")):
        made.set("s", [rule, rule])
        assert made.needs_view
        made.set("s", [TRUE])
        assert not made.needs_view
        made.set("s", [rule])
        made.remove("s")
        assert not made.needs_view
        assert described(made.match(None)) == ["true"]


def test_without_a_view_rules_that_read_the_message_are_not_evaluated() -> None:
    with pytest.raises(AssertionError):
        matcher(s=sql("a = 1")).match(None)


def test_the_returned_copies_may_be_kept_and_changed_by_the_caller() -> None:
    made = matcher(s=TRUE)
    made.match(None).clear()
    made.match(view()).clear()
    assert described(made.match(None)) == ["s"]


def test_one_text_is_evaluated_once_for_all_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    made = Matcher()
    for number in range(1000):
        made.set(
            number, [sql("colour = 'red'", f"rule-{number}"), sql("colour = @c", "other", parameters={"c": "red"})]
        )
    read = View.user
    monkeypatch.setattr(View, "user", lambda seen, name: (asked.append(name), read(seen, name))[1])
    assert [copy.subscription for copy in made.match(view({"colour": "red"}))] == list(range(1000))
    assert asked == ["colour", "colour"]


@pytest.mark.parametrize(("first", "second"), [(1, True), (0, False), (1, "1")])
def test_parameters_that_are_equal_but_of_other_types_make_other_filters(first: Any, second: Any) -> None:
    made = matcher(a=sql("a = @p", parameters={"p": first}), b=sql("a = @p", parameters={"p": second}))
    assert described(made.match(view({"a": first}))) == ["a"]
    assert described(made.match(view({"a": second}))) == ["b"]


# --- rules that are wrong ---


@pytest.mark.parametrize(
    ("rule", "setting"),
    [(sql("a = = 1"), "SqlFilter"), (RuleDefinition(action="SET a = = 1"), "Action")],
    ids=["filter", "action"],
)
def test_a_rule_with_invalid_sql_is_refused_with_a_caret_and_changes_nothing(
    rule: RuleDefinition, setting: str
) -> None:
    made = matcher(s=sql("a = 1"))
    for refuse in (
        lambda: check_rule(rule),
        lambda: made.set("s", [TRUE, rule]),
        lambda: made.set("t", [TRUE, rule]),
    ):
        with pytest.raises(DefinitionError) as raised:
            refuse()
        assert raised.value.setting == setting
        line, caret = raised.value.rule.splitlines()[-2:]
        assert line[caret.index("^") :] == "= 1"
    assert described(made.match(view({"a": 1}))) == ["s"]
    assert described(made.match(view({"a": 2}))) == []


def test_a_rule_that_is_right_passes_the_check() -> None:
    for rule in (TRUE, FALSE, sql("a = 1"), label("l"), RuleDefinition(action="SET a = 1")):
        check_rule(rule)


# --- against the words of the documentation ---

FILTERS = {
    "true": lambda name, action: RuleDefinition(name=name, action=action),
    "false": lambda name, action: RuleDefinition(name=name, filter_kind=FilterKind.FALSE, action=action),
    "sql yes": lambda name, action: sql("a = 1", name, action=action),
    "sql no": lambda name, action: sql("a = 2", name, action=action),
    "sql error": lambda name, action: sql("1 / (a - 1) = 1", name, action=action),
    "label yes": lambda name, action: label("l", name, action=action),
    "label no": lambda name, action: label("m", name, action=action),
}
ACTIONS = {"none": None, "good": "SET b = 1", "bad": "SET b = 1 / (a - 1)"}
RULES = st.lists(st.tuples(st.sampled_from(sorted(FILTERS)), st.sampled_from(sorted(ACTIONS))), max_size=4)


@given(st.lists(RULES, max_size=4), st.lists(st.integers(0, 3)))
def test_any_rules_give_the_copies_that_are_documented(
    subscriptions: list[list[tuple[str, str]]], removed: list[int]
) -> None:
    made = Matcher()
    expected = []
    for number, rules in enumerate(subscriptions):
        definitions = [FILTERS[f](f"r{i}", ACTIONS[a]) for i, (f, a) in enumerate(rules)]
        made.set(number, [TRUE])
        made.set(number, definitions)
        if number in removed:
            made.remove(number)
            continue
        matching = [(i, a) for i, (f, a) in enumerate(rules) if f in ("true", "sql yes", "label yes")]
        failing = {i for i, (f, _) in enumerate(rules) if f == "sql error"} | {i for i, a in matching if a == "bad"}
        acting = {i for i, a in matching if a == "good"}
        expected += [f"{number}"] if any(a == "none" for _, a in matching) else []
        expected += [f"{number}{'!' if i in failing else '/'}r{i}" for i in sorted(failing | acting)]
    assert described(made.match(view({"a": 1}, subject="l"))) == expected
