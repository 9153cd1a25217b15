"""JSON with comments: parsed as the standard library does, with lines, and otherwise strict."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.limits.http import MAX_CONFIG_BYTES, MAX_CONFIG_DEPTH
from peeklock.server.jsonc import JsonError, Node, load

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text("abc", max_size=3), children),
    max_leaves=12,
)


@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_plain_json_is_read_as_the_standard_library_reads_it(value: Any, indent: Any, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert load(text).plain() == json.loads(text)


def test_comments_and_a_last_comma_are_ignored() -> None:
    text = """
    // before
    { /* a */ "a" /* b */ : /* c */ [1, // one
        2, /* two
              lines */ 3,], // after
      "url": "http://not/a/comment /* nor this */",
    } // end"""
    assert load(text).plain() == {"a": [1, 2, 3], "url": "http://not/a/comment /* nor this */"}


def test_every_key_and_element_keeps_its_line_and_path() -> None:
    root = load('{\n "a": 1, /*\n*/ "b":\n   [\n    5,\r\n 6\r]\n}')

    def walk(node: Node) -> Any:
        yield node.path, node.line
        if isinstance(node.value, dict):
            for child in node.value.values():
                yield from walk(child)
        elif isinstance(node.value, list):
            for child in node.value:
                yield from walk(child)

    assert dict(walk(root)) == {(): 1, ("a",): 2, ("b",): 3, ("b", 0): 5, ("b", 1): 6}


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("", 1, 1, "ends where a value"),
        ("// only", 1, 8, "ends where a value"),
        ('{"a": 1\n "b": 2}', 2, 2, '"," or "}"'),
        ("[1 2]", 1, 4, '"," or "]"'),
        ("[1,,2]", 1, 4, "',' is not a JSON value"),
        ("[,]", 1, 2, "',' is not a JSON value"),
        ("{,}", 1, 2, "a key in double quotes"),
        ("{a: 1}", 1, 2, "a key in double quotes"),
        ("{'a': 1}", 1, 2, "a key in double quotes"),
        ('{"a" 1}', 1, 6, 'expected ":" after the key'),
        ('{"a":}', 1, 6, "'}' is not a JSON value"),
        ('{"a": 1,\n"b": 2,\n "a": 3}', 3, 2, "the key 'a' is already on line 1"),
        ('["a\nb"]', 1, 2, "not closed on its line"),
        ('["a', 1, 2, "not closed on its line"),
        (r'["\x"]', 1, 2, "an escape"),
        (r'["\u12"]', 1, 2, "an escape"),
        (r'["\ud800"]', 1, 2, "surrogate"),
        ("[/* no end", 1, 2, "comment is not closed"),
        ("[1] 2", 1, 5, "after the end"),
        ("[NaN]", 1, 2, "'NaN' is not"),
        ("[True]", 1, 2, "'True' is not"),
        ("[01]", 1, 2, "'01' is not"),
        ("[+1]", 1, 2, "'+1' is not"),
        ("[1.]", 1, 2, "'1.' is not"),
        ("[1e999]", 1, 2, "too large"),
        ("[" + "9" * 33 + "]", 1, 2, "more than 32 characters"),
        ("[", 1, 2, "ends where a value"),
        ("{", 1, 2, "a key in double quotes"),
        ("[1 / 2]", 1, 4, '"," or "]"'),
        ("[\u00a01]", 1, 2, "is not a JSON value"),
    ],
)
def test_a_mistake_is_reported_with_its_line_and_column(text: str, line: int, column: int, problem: str) -> None:
    with pytest.raises(JsonError) as refused:
        load(text)
    assert (refused.value.line, refused.value.column) == (line, column)
    assert problem in refused.value.problem
    assert str(refused.value).startswith(f"line {line}, column {column}: ")


def test_depth_is_limited() -> None:
    load("[" * MAX_CONFIG_DEPTH + "]" * MAX_CONFIG_DEPTH)
    with pytest.raises(JsonError, match=f"more than {MAX_CONFIG_DEPTH} levels"):
        load("[" * (MAX_CONFIG_DEPTH + 1) + "]" * (MAX_CONFIG_DEPTH + 1))


def test_size_is_limited() -> None:
    load(" " * (MAX_CONFIG_BYTES - 1) + "1")
    with pytest.raises(JsonError, match=f"more than the {MAX_CONFIG_BYTES} allowed"):
        load(" " * MAX_CONFIG_BYTES + "1")


@given(st.text('{}[]",:/*\\ \n01ae.-', max_size=40))
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    place = None
    try:
        load(text)
    except JsonError as error:
        place = error
    if place is not None:
        lines = text.split("\n")
        assert 1 <= place.line <= len(lines)
        assert 1 <= place.column <= len(lines[place.line - 1]) + 1
