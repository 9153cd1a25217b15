"""Parses an expression with its grammar (`sql.lark`, or `selector.lark` for JMS selectors), with readable errors.

The nodes of the syntax tree have the names of the grammar's rules and their positions in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Literal

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from peeklock.broker.rules.errors import SqlError, shown
from peeklock.limits.broker import MAX_TEXT

_SURROGATE = re.compile("[\ud800-\udfff]")


Kind = Literal["filter", "action", "selector"]


def parse(text: str, kind: Kind) -> Tree[Token]:
    """Parse a text. Raise SqlError, with the position of the error and what is expected there, if it is invalid."""
    if len(text) > MAX_TEXT:
        problem = f"The expression has {len(text)} characters, more than the {MAX_TEXT} allowed"
        raise SqlError(text, MAX_TEXT, problem)
    if not text.strip():
        raise SqlError(text, 0, "The expression is empty")
    half = _SURROGATE.search(text)
    if half:
        raise SqlError(text, half.start(), "Half a surrogate pair is not a character")
    try:
        grammar = (
            _grammar("selector.lark", "selector") if kind == "selector" else _grammar("sql.lark", "filter", "action")
        )
        return grammar.parse(text, start=kind)
    except UnexpectedInput as error:
        raise _explained(text, kind, error) from None


@cache
def _grammar(file: str, *starts: Kind) -> Lark:
    # Loaded when the first expression is parsed, because it takes as long as parsing some hundred expressions.
    return Lark.open(
        file,
        rel_to=__file__,
        parser="lalr",
        lexer="contextual",
        start=list(starts),
        propagate_positions=True,
        maybe_placeholders=True,
    )


_GRAMMARS: dict[Kind, Callable[[], Lark]] = {
    "filter": lambda: _grammar("sql.lark", "filter", "action"),
    "action": lambda: _grammar("sql.lark", "filter", "action"),
    "selector": lambda: _grammar("selector.lark", "selector"),
}


# --- error texts

_CHARACTERS = {
    "'": "The text that begins with this quote has no closing quote",
    '"': "The name that begins with this quote has no closing quote",
    "[": "The name that begins with this bracket has no closing bracket",
    "@": "A parameter is written as @ and a name",
    "_": "A name begins with a letter; other names are written in brackets, as in [_name]",
    "$": "A name begins with a letter; other names are written in brackets, as in [$name]",
    "!": "The operator is written != or <>",
}
"""Error messages for characters with which no terminal of the grammar begins."""
_IN_SELECTORS = "'\"!"
"""The characters of `_CHARACTERS` whose messages also apply to selectors."""

_VALUE = frozenset(
    {
        "STRING",
        "INTEGER",
        "HEXADECIMAL",
        "DECIMAL",
        "TRUE",
        "FALSE",
        "NULL",
        "PARAMETER",
        "SIGN",
        "OPEN",
        "NAME",
        "BRACKETED",
        "QUOTED",
    }
)
_EXPECTED: tuple[tuple[frozenset[str], frozenset[str], str], ...] = (
    (frozenset({"STRING", "NOT"}), _VALUE | {"NOT", "EXISTS"}, "a condition"),
    (frozenset({"STRING"}), _VALUE, "a value"),
    (frozenset({"NAME"}), frozenset({"NAME", "BRACKETED", "QUOTED"}), "the name of a property"),
    (
        frozenset({"COMPARISON"}),
        frozenset({"COMPARISON", "ASSIGN", "IS", "IN", "LIKE", "BETWEEN", "NOT", "SIGN", "FACTOR"}),
        "an operator",
    ),
    (frozenset({"FACTOR"}), frozenset({"FACTOR", "SIGN"}), "an arithmetic operator"),
    # Terminals that could follow a name if it were a scope or a function.
    (frozenset({"DOT"}), frozenset({"DOT", "OPEN"}), ""),
)
"""Groups of terminals: the terminals that identify the group, the terminals that belong to it, and its name."""

_TERMINALS = {
    "SET": "SET",
    "REMOVE": "REMOVE",
    "NULL": "NULL",
    "NOT": "NOT",
    "LIKE": "LIKE",
    "IN": "IN",
    "BETWEEN": "BETWEEN",
    "_ESCAPE": "ESCAPE",
    "_AND": "AND",
    "_OR": "OR",
    "ASSIGN": '"="',
    "OPEN": '"("',
    "COMMA": '","',
    "SEMICOLON": '";"',
    "RPAR": '")"',
    "$END": "the end",
}
"""The names of other terminals, in the order in which an error message lists them."""

_RESERVED = frozenset(
    {"_AND", "_OR", "_ESCAPE", "NOT", "IS", "IN", "LIKE", "BETWEEN", "EXISTS", "NULL", "TRUE", "FALSE"},
)


def _explained(text: str, kind: Kind, error: UnexpectedInput) -> SqlError:
    position = error.pos_in_stream or 0
    if isinstance(error, UnexpectedCharacters):
        character = text[position]
        problem = f'The character "{shown(character)}" has no meaning here'
        if kind != "selector" or character in _IN_SELECTORS:
            problem = _CHARACTERS.get(character, problem)
        return SqlError(text, position, problem)
    assert isinstance(error, UnexpectedToken)
    token: Token = error.token
    accepted: set[str] = set(error.accepts or ())
    expected = f"expected {_listed(accepted)}"
    if token.type == "$END":
        return SqlError(text, len(text.rstrip()), f"The expression ends too early; {expected}")
    problem = f'"{shown(token)}" cannot be here; {expected}'
    if token.type in _RESERVED and "NAME" in accepted:
        opening, closing = '""' if kind == "selector" else "[]"
        problem += f" (a property of this name is written {opening}{shown(token)}{closing})"
    return SqlError(text, position, problem)


def _listed(accepted: set[str]) -> str:
    left, words = set(accepted), []
    for known_by, made_of, word in _EXPECTED:
        if known_by <= left:
            left -= made_of
            words += [word] if word else []
    words += [word for terminal, word in _TERMINALS.items() if terminal in left]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
