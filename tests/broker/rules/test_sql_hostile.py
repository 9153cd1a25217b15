"""Any text with any message gives SqlError, EvaluationError or a result, and no other exception."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.rules.sql_cases import Properties
from peeklock.broker.rules.sql import EvaluationError, SqlError, compile_action, compile_filter

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.integers(-2, 2),
    st.floats(),
    st.text("ab%_!", max_size=6),
    st.text(max_size=6),
    st.datetimes(timezones=st.just(UTC)),
    st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), timedelta.min, timedelta.max]),
    st.timedeltas(),
    st.uuids(),
    st.binary(max_size=4),
)
MESSAGES = st.builds(
    Properties,
    st.dictionaries(st.sampled_from("abc"), VALUES),
    st.dictionaries(st.sampled_from(["Label", "Size", "TimeToLive", "EnqueuedTimeUtc"]), VALUES),
)
PARAMETERS = st.fixed_dictionaries({"p": VALUES})

ATOMS = """
    a b user.c [a] "b" sys.Label sys.Size sys.TimeToLive sys.EnqueuedTimeUtc @p newid() p('a') property(b)
    1 0 -1 2.5 9223372036854775807 1e300 'a%' '_' '' '!' TRUE FALSE NULL
"""
SUMS = st.recursive(
    st.sampled_from(ATOMS.split()),
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from("+-*/%"), inner),
        st.builds("{}{}".format, st.sampled_from("+-"), inner),
        st.builds("({})".format, inner),
        st.builds("p({})".format, inner),
    ),
    max_leaves=5,
)
CONDITIONS = st.recursive(
    st.one_of(
        st.builds("{} {} {}".format, SUMS, st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="]), SUMS),
        st.builds("{} IS {}NULL".format, SUMS, st.sampled_from(["", "NOT "])),
        st.builds("{} {}IN ({}, {})".format, SUMS, st.sampled_from(["", "NOT "]), SUMS, SUMS),
        st.builds("{} {}LIKE {}".format, SUMS, st.sampled_from(["", "NOT "]), SUMS),
        st.builds("{} LIKE {} ESCAPE {}".format, SUMS, SUMS, SUMS),
        st.sampled_from(["EXISTS(a)", "EXISTS(sys.Label)", "EXISTS(p('b'))", "a", "TRUE"]),
    ),
    lambda inner: st.one_of(
        st.builds("{} {} {}".format, inner, st.sampled_from(["AND", "OR"]), inner),
        st.builds("NOT {}".format, inner),
        st.builds("({})".format, inner),
    ),
    max_leaves=5,
)
ACTIONS = st.lists(
    st.one_of(
        st.builds("SET {} = {}".format, st.sampled_from(["a", "b", "sys.Label"]), SUMS),
        st.builds("REMOVE {}".format, st.sampled_from(["a", "b", "sys.Label"])),
    ),
    min_size=1,
    max_size=4,
).map(";".join)

TOKENS = """
    AND or NOT IS NULL IN LIKE ESCAPE EXISTS TRUE SET REMOVE sys. user. @p a b p( newid() ( ) , ; . = <> ! < + - * / %
    1 1. e5 ' 'x' " "a" [ ] [a] ² ſ İ _ $ 😀
"""
PIECES = st.sampled_from([*TOKENS.split(), "\n", "\t", "\x00"])
TEXTS = st.one_of(
    st.text(),
    st.text(st.characters(), max_size=20),
    st.lists(PIECES, max_size=30).map(" ".join),
    st.lists(PIECES, max_size=30).map("".join),
    st.builds(
        lambda piece, times: piece * times, st.lists(PIECES, min_size=1, max_size=3).map(" ".join), st.integers(1, 500)
    ),
)


def outcome(compiling: Any, text: str, parameters: dict[str, Any], message: Properties) -> object:
    """Return the result or the expected error. Other exceptions are raised."""
    try:
        return compiling(text, parameters)(message)
    except (SqlError, EvaluationError) as error:
        return error


@settings(max_examples=500)
@given(TEXTS, PARAMETERS, MESSAGES)
def test_any_text_is_compiled_or_refused_with_its_position(
    text: str, parameters: dict[str, Any], message: Properties
) -> None:
    for compiling in (compile_filter, compile_action):
        found = outcome(compiling, text, parameters, message)
        if isinstance(found, SqlError):
            assert 0 <= found.position <= len(text)
            assert str(found).startswith(found.reason + "\n")


@settings(max_examples=1000)
@given(CONDITIONS, PARAMETERS, MESSAGES)
def test_every_filter_of_the_grammar_gives_a_result_or_an_error(
    text: str, parameters: dict[str, Any], message: Properties
) -> None:
    found = outcome(compile_filter, text, parameters, message)
    assert isinstance(found, bool | SqlError | EvaluationError)
    if isinstance(found, bool):
        opposite = outcome(compile_filter, f"NOT ({text})", parameters, message)
        assert not (found and opposite is True) or "newid" in text


@settings(max_examples=300)
@given(ACTIONS, PARAMETERS, MESSAGES)
def test_every_action_of_the_grammar_is_applied_or_gives_an_error(
    text: str, parameters: dict[str, Any], message: Properties
) -> None:
    assert isinstance(outcome(compile_action, text, parameters, message), SqlError | EvaluationError | None)
