"""SQL filters: expressions that are slow, deeply nested, or make messages grow."""

from __future__ import annotations

import time
from itertools import count
from typing import Any, Final
from xml.sax.saxutils import escape

from peeklock.amqp.message import Message
from peeklock.amqp.performatives import Accepted
from peeklock.atom.markup import ATOM, INSTANCE, SERVICE_BUS
from tools.hostile.attack import attack, require
from tools.hostile.attacks.transfers import sealed_bombs
from tools.hostile.victim import CLOSE, SUBSCRIPTION, TOPIC, Requests, Victim, outcomes, transfer

MESSAGES: Final = 50
"""Messages that each expression is evaluated for."""
_numbers = count()


def _entry(filter_text: str, action: str | None = None) -> bytes:
    act = (
        ""
        if action is None
        else f'<Action i:type="SqlRuleAction"><SqlExpression>{escape(action)}</SqlExpression></Action>'
    )
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml"><RuleDescription xmlns="{SERVICE_BUS}" '
        f'xmlns:i="{INSTANCE}">'
        f'<Filter i:type="SqlFilter"><SqlExpression>{escape(filter_text)}</SqlExpression></Filter>{act}'
        "</RuleDescription></content></entry>"
    ).encode()


def _rule(victim: Victim, filter_text: str, action: str | None = None) -> tuple[int, str]:
    """Create a rule; returns the status and the rule's path."""
    path = f"/{TOPIC}/Subscriptions/{SUBSCRIPTION}/Rules/r{next(_numbers)}?api-version=2021-05"
    return victim.ask(victim.request("PUT", path, _entry(filter_text, action), Connection="close"))[0], path


def _refused(victim: Victim, *expressions: str) -> None:
    for expression in expressions:
        status, _ = _rule(victim, expression)
        require(status == 400, f"the filter {expression[:60]!r} was answered with {status}")
        status, _ = _rule(victim, "1=1", expression)
        require(status == 400, f"the action {expression[:60]!r} was answered with {status}")


def _made_rules(victim: Victim, *rules: tuple[str, str | None]) -> list[str]:
    """Create rules; returns their paths."""
    paths = []
    for filter_text, action in rules:
        status, path = _rule(victim, filter_text, action)
        require(status == 201, f"the filter {filter_text[:60]!r} was answered with {status}")
        paths.append(path)
    return paths


def _meets_messages(victim: Victim, text: str, *rules: tuple[str, str | None]) -> float:
    """Return the seconds that messages with this text in their properties take with these rules."""
    paths = _made_rules(victim, *rules)
    body = Message(application_properties={"a": text, "b": text[::-1], "n": 1 << 62}, data=[b"x"]).encode()
    with victim.sending(TOPIC) as line:
        before = time.monotonic()
        line.send(*[transfer(number, body) for number in range(MESSAGES)])
        require(all(isinstance(each, Accepted) for each in outcomes(line, MESSAGES)), "a message was not accepted")
        seconds = time.monotonic() - before
        line.send(CLOSE)
        line.answer()
    _clear(victim, paths)
    return seconds


def _clear(victim: Victim, paths: list[str]) -> None:
    """Delete the rules and the messages."""
    for path in paths:
        status, _ = victim.ask(victim.request("DELETE", path, Connection="close"))
        require(status == 200, f"the removal of a rule was answered with {status}")
    victim.drain(f"{TOPIC}/Subscriptions/{SUBSCRIPTION}")
    victim.drain(f"{TOPIC}/Subscriptions/{SUBSCRIPTION}/$deadletterqueue")


def _is_bounded(victim: Victim, text: str, *rules: tuple[str, str | None]) -> None:
    """Check that a slow filter takes milliseconds per message, not seconds."""
    seconds = _meets_messages(victim, text, *rules)
    require(seconds < MESSAGES * 0.2, f"{MESSAGES} messages took {seconds:.1f} s with {rules[0][0][:60]!r}")


@attack(answer="reads a text once, or stops after a million steps", log="connection closed")
def slow_patterns(victim: Victim) -> None:
    """LIKE with hundreds of wildcards, on texts of 60,000 characters that almost match."""
    text = "a" * 60_000
    for pattern in (
        "%a" * 400 + "b",
        "%" + "_" * 500 + "b%",
        "%a_" * 250 + "%b",
        "%" * 900,
        ("a" * 400) + "%b%" + "a" * 400,
    ):
        _is_bounded(victim, text, (f"a LIKE '{pattern}'", None))


@attack(answer="400: nested more than 64 levels deep, or longer than 1024 characters", log="request refused.*400")
def deep_expressions(victim: Victim) -> None:
    """Hundreds of parentheses, NOTs, signs and functions, and expressions of 100,000 characters."""
    _refused(
        victim,
        "(" * 500 + "1=1" + ")" * 500,
        "NOT " * 250 + "1=1",
        "a = " + "-" * 1000 + "1",
        "a = " + "(" * 300,
        "a=1 OR " * 20_000 + "a=1",
        "a IN (" + "1," * 50_000 + "1)",
        "newid(" * 100 + ")" * 100,
    )


@attack(answer="400, with the position of the mistake", log="request refused.*400")
def invalid_expressions(victim: Victim) -> None:
    """Comments, other SQL statements, code, wide characters, huge numbers, and unclosed quotes."""
    _refused(
        victim,
        "'; DROP TABLE messages; --",
        "a = 1; DELETE",
        "a = 'b",
        '"a',
        "[a",
        "a = 1e99999",
        "a = " + "9" * 400,
        "a LIKE 'x' ESCAPE 'xy'",
        "a LIKE 'x' ESCAPE ''",
        "a = @",
        "sys. = 1",
        "/* comment */",
        "ａ ＝ １",
        "SELECT 1",
        "__import__('os').system('true')",
        "{0.__class__}",
    )


@attack(answer="accepts them and evaluates each once", log="connection closed")
def wide_expressions(victim: Victim) -> None:
    """As many alternatives, values and sums as fit into 1024 characters, and arithmetic that overflows."""
    _is_bounded(
        victim,
        "x" * 30_000,
        ("a=1 OR " * 140 + "a=2", None),
        ("n IN (" + "1," * 500 + "2)", None),
        ("n*n*n*n*n*n*n*n > 1", None),
        ("n" + "+n" * 400 + " > 1", None),
        ("n/0 = 1", None),
        ("a+a+a+a+a+a+a+a+a+a = b", None),
    )


@attack(answer="stops at a limit; the rule fails for that message", log="connection closed")
def growing_actions(victim: Victim) -> None:
    """Actions that double a text of 30,000 characters 31 times."""
    doubling = ";".join(["SET a=a+a"] * 31)
    _is_bounded(victim, "x" * 30_000, ("1=1", doubling), ("2=2", doubling.replace("a=a+a", "b=a+b+a")))


@attack(answer="evaluates them all", log="connection closed")
def many_rules(victim: Victim) -> None:
    """100 rules on one subscription, and messages that match them all."""
    rules = [(f"n <> {number}", None) for number in range(100)]
    seconds = _meets_messages(victim, "x", *rules)
    require(seconds < 60, f"{MESSAGES} messages took {seconds:.1f} s")


@attack(answer="treats the rule as failed for that message", log="connection closed")
def properties_that_are_bombs(victim: Victim) -> None:
    """Messages whose properties are bombs, for filters and actions that use these properties."""
    paths = _made_rules(victim, ("x = 1 OR a LIKE '%a%'", None), ("sys.MessageId <> 'x'", "SET y=x"))
    bombs = sealed_bombs()
    with victim.sending(TOPIC) as line:
        line.send(*[transfer(number, bomb) for number, bomb in enumerate(bombs)])
        outcomes(line, len(bombs))
        line.send(CLOSE)
        line.answer()
    _clear(victim, paths)


@attack(answer="refuses it with 400", log="connection closed")
def rules_over_amqp(victim: Victim) -> None:
    """The same expressions in `add-rule` of `$management`, and rules of wrong types."""
    with victim.begun() as line:
        requests = Requests(line, f"{TOPIC}/Subscriptions/{SUBSCRIPTION}/$management")
        descriptions: list[Any] = [
            None,
            "1=1",
            {},
            {"sql-filter": {}},
            {"sql-filter": {"expression": 7}},
            {"sql-filter": {"expression": "("}},
            {"sql-filter": {"expression": "(" * 500 + "1=1" + ")" * 500}},
            {"sql-filter": {"expression": "1=1"}, "sql-rule-action": {"expression": "SET " * 200}},
            {
                "correlation-filter": {"properties": {str(each): each for each in range(5000)}},
                "sql-filter": {"expression": "x"},
            },
        ]
        for description in descriptions:
            body = {"rule-name": f"amqp{next(_numbers)}", "rule-description": description}
            status = requests.ask({"operation": "com.microsoft:add-rule"}, body)
            require(400 <= status < 500, f"the rule {str(description)[:60]} was answered with {status}")
        line.send(CLOSE)
        line.answer()
