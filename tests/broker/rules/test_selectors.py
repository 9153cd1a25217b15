"""JMS message selectors: which messages they match, their translation to rules, and errors of invalid ones."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from viewing import NOW

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Int, ULong
from peeklock.broker.incoming import read_incoming
from peeklock.broker.rules.errors import SqlError
from peeklock.broker.rules.jms import DEFAULT_PRIORITY
from peeklock.broker.rules.matching import check_rule
from peeklock.broker.rules.selectors import NAMES, Selector, compile_selector, rule_of
from peeklock.broker.rules.sql import matches_everything
from peeklock.entities.rules import FilterKind, RuleDefinition
from peeklock.limits.broker import MAX_TEXT
from peeklock.store.base import StoredMessage

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def stored(
    user: dict[Any, Any] | None = None,
    priority: int | None = None,
    delivery_count: int = 0,
    durable: bool = False,
    **properties: Any,
) -> StoredMessage:
    message = Message(
        header=Header(durable=durable, priority=DEFAULT_PRIORITY if priority is None else priority),
        properties=Properties(**{"message_id": "id-1", **properties}),
        application_properties=user,
        data=[b"the body"],
    )
    read = read_incoming(message.encode(), False)
    return StoredMessage(7, read.bare, NOW, delivery_count=delivery_count, annex=read.annex)


def is_selected(selector: str, message: StoredMessage) -> bool:
    return Selector(selector).matches(message)


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("color = 'red'", True),
        ("color <> 'red'", False),
        ("color IN ('blue', 'red')", True),
        ("color NOT IN ('blue', 'red')", False),
        ("color LIKE 'r_d'", True),
        ("color NOT LIKE 'r%'", False),
        ("color LIKE 're[d]'", False),
        ("rate LIKE '10!%' ESCAPE '!'", True),
        ("size BETWEEN 4 AND 6", True),
        ("size BETWEEN 6 AND 8", False),
        ("size NOT BETWEEN 6 AND 8", True),
        ("NOT size BETWEEN 6 AND 8", True),
        ("NOT size NOT BETWEEN 6 AND 8 AND color = 'red'", False),
        ("size + 1 BETWEEN 2 * 3 AND (6)", True),
        ("size BETWEEN -1 AND +9 AND color = 'red' OR color = 'blue'", True),
        ("absent BETWEEN 1 AND 2", False),
        ("absent IS NULL", True),
        ("color IS NOT NULL", True),
        ("ready", True),
        ("NOT ready", False),
        ("ready = TRUE and size = 5", True),
        ("size = 5L AND size = 0x5 AND size = 05", True),
        ("size = 5.0 AND size = 5d AND size = 0.5E1f", True),
        ("size < 010 AND size > 0X4l", True),
        ("_under = 1 AND $dollar = 2", True),
        ("com.example.name = 'x'", True),
        ('"with space" = 3 AND "size" = 5', True),
        ("'a' = 'it''s'", False),
        ("absent = 1 OR size = 5", True),
        ("size / 0 = 1", False),
        ("color > 3", False),
    ],
)
def test_a_selector_gives_the_result_that_jms_defines(selector: str, matches: bool) -> None:
    user = {
        "color": "red",
        "rate": "10%",
        "size": Int(5),
        "ready": True,
        "_under": 1,
        "$dollar": 2,
        "com.example.name": "x",
        "with space": 3,
    }
    assert is_selected(selector, stored(user)) is matches


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("JMSMessageID = 'ID:AMQP_NO_PREFIX:id-1'", stored()),
        ("JMSMessageID = 'ID:1'", stored(message_id="ID:1")),
        (f"JMSMessageID = 'ID:AMQP_UUID:{GUID}'", stored(message_id=GUID)),
        ("JMSMessageID = 'ID:AMQP_ULONG:9'", stored(message_id=ULong(9))),
        ("JMSMessageID = 'ID:AMQP_BINARY:00FF'", stored(message_id=b"\x00\xff")),
        ("JMSMessageID = 'ID:AMQP_STRING:ID:AMQP_ULONG:9'", stored(message_id="ID:AMQP_ULONG:9")),
        ("JMSCorrelationID = 'order 4'", stored(correlation_id="order 4")),
        ("JMSCorrelationID = 'ID:AMQP_ULONG:9'", stored(correlation_id=ULong(9))),
        ("JMSCorrelationID IS NULL", stored()),
        ("JMSType = 'car'", stored(subject="car")),
        ("JMSPriority = 7", stored(priority=7)),
        ("JMSPriority = 4", stored()),
        ("JMSTimestamp >= 1700000000000", stored(creation_time=1_700_000_000_001)),
        ("JMSTimestamp IS NULL", stored()),
        ("JMSExpiration = 0", stored()),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", stored()),
        ("JMSDeliveryMode = 'PERSISTENT'", stored(durable=True)),
        ("JMSDestination = 'q'", stored(to="q")),
        ("JMSReplyTo = 'answers'", stored(reply_to="answers")),
        ("JMSXGroupID = 'a' AND JMSXGroupSeq = 3", stored(group_id="a", group_sequence=3)),
        ("JMSXDeliveryCount = 3", stored(delivery_count=2)),
        ("JMSXUserID = 'guest'", stored(user_id=b"guest")),
        ("JMSXUserID = 'FF'", stored(user_id=b"\xff")),
        ("amqp.correlation_id = 'c' AND amqp.subject = 's'", stored(correlation_id="c", subject="s")),
        ("amqp.delivery_count = 2 AND amqp.priority = 4", stored(delivery_count=2)),
    ],
)
def test_jms_names_are_those_of_the_amqp_mapping(selector: str, message: StoredMessage) -> None:
    assert is_selected(selector, message)
    assert not is_selected(f"NOT ({selector})", message)


def test_every_name_can_be_read() -> None:
    for name in NAMES:
        assert is_selected(f"{name} IS NULL OR {name} IS NOT NULL", stored())
        assert not is_selected(f"{name} = 'no such value'", stored())


def test_a_name_of_jms_counts_in_its_case_and_others_are_application_properties() -> None:
    assert is_selected("jmstype = 'mine'", stored({"jmstype": "mine"}, subject="theirs"))
    assert is_selected("JMSXMine = 1", stored({"JMSXMine": 1}))


@pytest.mark.parametrize(
    ("selector", "rule"),
    [
        ("color='red' AND  JMSPriority>4", "[color] = 'red' AND sys.JMSPriority > 4"),
        ('a BETWEEN 1 AND 2 OR "b]" IS NULL', "([a] >= 1 AND [a] <= 2) OR [b]]] IS NULL"),
        ("JMSType LIKE 'a!_%' ESCAPE '!'", "sys.Label LIKE 'a!_%' ESCAPE '!'"),
        ("NOT (x in ('a') or - x = 0x10)", "NOT ([x] in ('a') OR -[x] = 16)"),
        ("n = -9223372036854775808", "[n] = -9223372036854775808"),
    ],
)
def test_a_selector_becomes_a_rule(selector: str, rule: str) -> None:
    assert rule_of(selector) == rule
    check_rule(RuleDefinition(filter_kind=FilterKind.SQL, sql_expression=rule))


def test_a_selector_that_is_always_true_costs_nothing() -> None:
    assert compile_selector("1 = 1") is matches_everything


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        ("", "The expression is empty (line 1, column 1)"),
        ("color = ", "The expression ends too early; expected a value (line 1, column 8)"),
        ("color == 'red'", '"=" cannot be here; expected a value (line 1, column 8)'),
        ("color = 'red", "The text that begins with this quote has no closing quote (line 1, column 9)"),
        ("color = @red", 'The character "@" has no meaning here (line 1, column 9)'),
        (
            "between = 1",
            '"between" cannot be here; expected a condition (a property of this name is written '
            '"between") (line 1, column 1)',
        ),
        ("color LIKE other", '"other" cannot be here; expected a value (line 1, column 12)'),
        ("a = 9223372036854775808", "The number is outside the range of 64-bit integers (line 1, column 7)"),
        ('"" = 1', "The name is empty (line 1, column 1)"),
        ("'text'", "A text is not a condition (line 1, column 1)"),
        ("color LIKE 'a' ESCAPE 'ab'", "ESCAPE requires a text of one character, not of 2 (line 1, column 25)"),
    ],
)
def test_an_invalid_selector_is_refused_with_the_position(selector: str, reason: str) -> None:
    with pytest.raises(SqlError) as error:
        rule_of(selector)
    assert error.value.reason == reason


def test_an_unknown_name_of_an_amqp_field_is_refused_with_the_known_names() -> None:
    with pytest.raises(SqlError, match=r"There is no amqp\.nothing; there are amqp\.message_id"):
        rule_of("amqp.nothing = 1")


@pytest.mark.parametrize(
    "selector",
    [
        f"color = '{'x' * MAX_TEXT}'",
        "(" * 500 + "a = 1" + ")" * 500,
        "NOT " * 250 + "a",
        "-" * 1000 + "1 = 1",
        "a" * 200 + " BETWEEN 1 AND 2 AND " + "b" * 200 + " BETWEEN 1 AND 2 AND " + "c" * 200 + " BETWEEN 1 AND 2",
        "(" * 30 + "aaaa" + " BETWEEN 1 AND 2)" * 30 + " = 1",
        f"a = {'9' * 1000}",
    ],
    ids=["long", "parentheses", "NOT", "signs", "long as a rule", "doubling", "digits"],
)
def test_a_selector_that_is_too_complex_is_refused(selector: str) -> None:
    with pytest.raises(SqlError):
        rule_of(selector)


def test_a_message_that_cannot_be_read_is_not_selected() -> None:
    torn = StoredMessage(1, b"\x00\x53\x74\xc1\x05\x02\xa1\x7fxyz", NOW)
    assert not is_selected("color = 'red' OR color IS NULL", torn)
