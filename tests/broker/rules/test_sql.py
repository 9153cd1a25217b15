"""The SQL language of filters and actions, by its case files (an expression, a message, a result), and its limits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from broker.rules.sql_cases import Properties, parametrize, values
from peeklock.amqp.types import Int
from peeklock.broker.rules.sql import (
    EvaluationError,
    SqlError,
    compile_action,
    compile_filter,
    matches_everything,
    matches_nothing,
)
from peeklock.limits.broker import MAX_RULE_DEPTH, MAX_STATEMENTS, MAX_TEXT, MAX_TEXT_MADE

FILTERS = ("comparison", "logic", "null", "in", "like", "arithmetic", "names", "documented")


def compiled(case: dict[str, Any]) -> Any:
    parameters = values(case.get("parameters", {}))
    if "filter" in case:
        return compile_filter(case["filter"], parameters)
    return compile_action(case["action"], parameters)


# --- the case files


@parametrize(*FILTERS, having="result")
def test_a_filter_gives_the_result_of_its_case(case: dict[str, Any]) -> None:
    # Unknown is no match, and stays so when it is negated.
    opposite = compiled(case | {"filter": f"NOT ({case['filter']})"})
    found = compiled(case)(Properties.of(case)), opposite(Properties.of(case))
    assert found == {True: (True, False), False: (False, True), "unknown": (False, False)}[case["result"]]


@parametrize(*FILTERS, having="fails")
def test_a_filter_that_cannot_be_evaluated_gives_the_reason(case: dict[str, Any]) -> None:
    matches = compiled(case)
    with pytest.raises(EvaluationError) as error:
        matches(Properties.of(case))
    assert str(error.value) == case["fails"]


@parametrize("actions", having="action")
def test_an_action_leaves_the_properties_of_its_case(case: dict[str, Any]) -> None:
    properties = Properties.of(case["before"])
    change = compiled(case)
    if "fails" in case:
        with pytest.raises(EvaluationError) as error:
            change(properties)
        assert str(error.value) == case["fails"]
    else:
        change(properties)
    assert typed(properties) == typed(Properties.of(case["after"]))


def typed(properties: Properties) -> list[dict[str, tuple[type, Any]]]:
    """Return the properties with the types of their values, because 1, 1.0 and True are equal."""
    both = (properties.users, properties.systems)
    return [{name: (type(value), value) for name, value in each.items()} for each in both]


@parametrize("errors", having="error")
def test_invalid_sql_is_refused_with_the_position(case: dict[str, Any]) -> None:
    text = case.get("filter", case.get("action"))
    with pytest.raises(SqlError) as error:
        compiled(case)
    assert error.value.reason.rpartition(" (line ")[0] == case["error"]
    assert error.value.position == case["at"]
    sentence, line, caret = str(error.value).splitlines() if text.strip() else [error.value.reason, "", "  ^"]
    assert sentence == error.value.reason
    if error.value.position < len(text.rstrip()):
        assert line[caret.index("^")] == (text[case["at"]] if text[case["at"]].isprintable() else "?")
    assert caret.strip() == "^"


# --- how errors look


def error_of(text: str) -> SqlError:
    with pytest.raises(SqlError) as error:
        compile_filter(text)
    return error.value


def test_an_error_shows_the_line_with_a_caret_under_the_place() -> None:
    error = error_of("color = 'red'\n  AND\tquantity >> 3\n  AND b = 1")
    assert str(error) == (
        '">" cannot be here; expected a value (line 2, column 17)\n    AND quantity >> 3\n                  ^'
    )
    assert error.reason == '">" cannot be here; expected a value (line 2, column 17)'
    assert error.position == 30


def test_a_long_line_is_cut_to_the_neighbourhood_of_the_place() -> None:
    error = error_of("a = '" + "x" * 200 + "' & b = '" + "y" * 200 + "'")
    _, line, caret = str(error).splitlines()
    assert line == "  ..." + "x" * 48 + "' & b = '" + "y" * 43 + "..."
    assert line[caret.index("^")] == "&"


def test_characters_that_cannot_be_printed_stay_out_of_the_error() -> None:
    assert str(error_of("a = '\x1b[31m\ud800' \x07")).isascii()
    assert "\x1b" not in str(error_of("a = '\x1b[31m' \x07"))
    assert "\x07" not in str(error_of("[\x07] = 1 \x07"))


def test_half_a_surrogate_pair_is_refused() -> None:
    error = error_of("a = 'x\ud83d'")
    assert (error.position, "surrogate" in error.reason) == (6, True)


# --- limits


def test_a_text_may_have_as_many_characters_as_the_service_allows() -> None:
    longest = "a = '" + "x" * (MAX_TEXT - 6) + "'"
    assert compile_filter(longest)(Properties({"a": "x" * (MAX_TEXT - 6)}))
    error = error_of(longest + " ")
    assert error.position == MAX_TEXT
    assert f"{MAX_TEXT + 1} characters" in error.reason


@pytest.mark.parametrize(
    ("opening", "inside", "closing"),
    [
        ("(", "a = 1", ")"),
        ("NOT ", "a = 1", ""),
        ("NOT (", "a = 1", ")"),
        ("- ", "a = 1", ""),
        ("(", "a", ") = 1"),
        ("x OR y AND (", "a = 1", ")"),
        ("1+2*(", "a", ")"),
        ("p(", "a", ")"),
    ],
)
def test_the_error_for_deep_nesting_has_the_limit(opening: str, inside: str, closing: str) -> None:
    levels = opening.count("(") + opening.count("NOT") + opening.count("-")

    def nested(times: int) -> str:
        text = opening * times + inside + closing.replace(" = 1", "") * times
        return text if "=" in text else text + " = 1"

    compile_filter(nested(MAX_RULE_DEPTH // levels))
    assert "nested more than 64 levels deep" in error_of(nested(MAX_RULE_DEPTH // levels + 1)).reason


def test_as_many_brackets_as_a_text_can_hold_are_refused_and_no_crash() -> None:
    for text in (
        "(" * MAX_TEXT,
        "(" * 500 + "a=1" + ")" * 500,
        "NOT " * 255 + "a",
        "-" * 1020 + "a=1",
        "p(" * 340 + "a",
    ):
        assert error_of(text).position <= MAX_TEXT


@pytest.mark.parametrize(
    "text",
    ["a" + "+a" * 509 + "=510", "a" + "*a" * 509 + "=1", "a=1" + " AND a=1" * 127, "a=2" + " OR a=2" * 100 + " OR a=1"],
)
def test_a_long_row_of_operators_is_no_nesting(text: str) -> None:
    assert compile_filter(text)(Properties({"a": 1}))


def test_operands_in_sequence_do_not_count_as_nesting() -> None:
    text = " OR ".join(["(a=1)"] * (MAX_RULE_DEPTH + 1))
    assert compile_filter(text)(Properties({"a": 1}))


def test_an_action_has_a_limit_of_statements() -> None:
    change = compile_action(";".join(f"SET a{number}=1" for number in range(MAX_STATEMENTS)))
    properties = Properties()
    change(properties)
    assert len(properties.users) == MAX_STATEMENTS == 32
    with pytest.raises(SqlError, match="at most 32 statements") as error:
        compile_action(";".join(["SET a=1"] * 33) + ";")
    assert error.value.position == 32 * 8


def test_a_text_that_doubles_with_every_statement_is_stopped() -> None:
    change = compile_action(";".join(["SET a=a+a"] * 32))
    properties = Properties({"a": "x"})
    with pytest.raises(EvaluationError, match=f"more than {MAX_TEXT_MADE} characters"):
        change(properties)
    assert len(properties.users["a"]) <= MAX_TEXT_MADE


# --- what others build on


def test_a_filter_that_is_the_same_for_all_messages_can_be_known_by_it() -> None:
    for text in ("1=1", "TRUE", "NOT 1=0", "1=1 OR a=1", "'abc' LIKE 'a%'", "2 IN (1, 2)", "NULL IS NULL"):
        assert compile_filter(text) is matches_everything
    for text in ("1=0", "FALSE", "a=1 AND 1=0", "NULL = 1", "a = NULL", "NULL"):
        assert compile_filter(text) is matches_nothing
    assert compile_filter("@p = 1", {"p": 1}) is matches_everything
    assert compile_filter("a = 1") not in (matches_everything, matches_nothing)


def test_the_same_text_with_other_parameters_is_another_filter() -> None:
    properties = Properties({"a": 1})
    found = [compile_filter("a = @p", {"p": value})(properties) for value in (1, True, 1.0, 2, "1")]
    assert found == [True, False, True, False, False]
    moments = [datetime(2024, 5, day, tzinfo=UTC) for day in (1, 2)]
    actions = [compile_action("SET a = @p", {"p": moment}) for moment in moments]
    for action, moment in zip(actions, moments, strict=True):
        action(properties)
        assert properties.users["a"] == moment


def test_a_parameter_of_an_amqp_type_is_used_by_its_value() -> None:
    assert compile_filter("a = @p", {"p": Int(1)})(Properties({"a": 1}))
    properties = Properties()
    compile_action("SET a = @p", {"p": Int(1)})(properties)
    assert type(properties.users["a"]) is int


def test_every_evaluation_has_a_new_id_of_its_own() -> None:
    change = compile_action("SET a = newid(); SET b = newid()")
    first, second = Properties(), Properties()
    change(first)
    change(second)
    assert len({*first.users.values(), *second.users.values()}) == 4
