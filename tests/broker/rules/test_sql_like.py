"""LIKE, compared with a reference that follows the definition, and its cost."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from peeklock.broker.rules.errors import EvaluationError
from peeklock.broker.rules.like import PatternError, compile_pattern
from peeklock.limits.broker import MAX_PATTERN, MAX_PATTERN_WORK

Element = str | None
"""An element of a pattern: a character, "" for `%`, or None for `_`."""


def elements(pattern: str, escape: str | None) -> list[Element]:
    found: list[Element] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            found.append(next(characters))
        else:
            found.append({"%": "", "_": None}.get(character, character))
    return found


def is_like(text: str, pattern: str, escape: str | None = None) -> bool:
    """Match a pattern by the definition, trying all texts that a wildcard could stand for."""
    wanted = elements(pattern, escape)

    @cache
    def rest_is_like(at: int, index: int) -> bool:
        if index == len(wanted):
            return at == len(text)
        if wanted[index] == "":
            return rest_is_like(at, index + 1) or (at < len(text) and rest_is_like(at + 1, index))
        return at < len(text) and wanted[index] in (None, text[at]) and rest_is_like(at + 1, index + 1)

    return rest_is_like(0, 0)


@settings(max_examples=1000)
@given(st.text("ab", max_size=10), st.text("ab%_", max_size=8))
@example("aab", "%ab")
@example("ab", "%___%")
@example("aXbab", "a%_b")
def test_like_follows_its_definition(text: str, pattern: str) -> None:
    assert compile_pattern(pattern)(text) == is_like(text, pattern)


@settings(max_examples=500)
@given(st.text("a%_!", max_size=8), st.text("a%_!", max_size=8), st.sampled_from("!%_a"))
def test_like_with_an_escape_character_follows_its_definition(text: str, pattern: str, escape: str) -> None:
    try:
        expected = is_like(text, pattern, escape)
    except StopIteration:  # The escape character stands last.
        with pytest.raises(PatternError):
            compile_pattern(pattern, escape)
    else:
        assert compile_pattern(pattern, escape)(text) == expected


@given(st.text(max_size=20), st.text(max_size=20))
def test_like_accepts_any_characters(text: str, pattern: str) -> None:
    assert compile_pattern(pattern)(text) == is_like(text, pattern)


def test_a_text_is_scanned_once_for_any_pattern() -> None:
    # By trying everything, these would take longer than anybody waits.
    text = "a" * 50_000
    assert not compile_pattern("%a" * 500 + "%b")(text)
    assert not compile_pattern("%a%" + "a%" * 500 + "b%")(text)
    assert compile_pattern("%a" * 500 + "%")(text)
    assert not compile_pattern("%" + "_" * 1000 + "b")(text)
    assert compile_pattern("%" + "_" * 1000 + "%")(text)


def test_a_search_that_needs_too_much_work_is_stopped() -> None:
    matches = compile_pattern("%" + "a_" * 32 + "b%")
    assert not matches("a" * (MAX_PATTERN_WORK // 65))
    with pytest.raises(EvaluationError, match="too long"):
        matches("a" * (MAX_PATTERN_WORK // 65 + 1))


def test_a_pattern_has_a_limit_of_characters() -> None:
    assert compile_pattern("x" * MAX_PATTERN)("x" * MAX_PATTERN)
    with pytest.raises(PatternError, match=f"{MAX_PATTERN + 1} characters"):
        compile_pattern("x" * (MAX_PATTERN + 1))
