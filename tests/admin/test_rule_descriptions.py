"""Rules as each SDK sends them, and as each of them reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest

from admin.atom import sent
from peeklock.admin.rule_descriptions import describe_rule, read_rule
from peeklock.atom.entries import description_of
from peeklock.atom.markup import INSTANCE, SERVICE_BUS, parse, to_text
from peeklock.entities.names import DefinitionError
from peeklock.entities.rules import CorrelationFilter, FilterKind, PropertyValue, RuleDefinition


def test_rules_from_the_python_sdk_are_read_with_the_types_of_their_values() -> None:
    rule = read_rule(description_of(parse(sent("python_rule"))), "named")
    assert rule == RuleDefinition(
        name="named",
        filter_kind=FilterKind.CORRELATION,
        correlation=CorrelationFilter(
            label="l",
            properties={
                "s": "x",
                "i": 1,
                "l": 1 << 40,
                "d": 1.5,
                "b": True,
                "t": datetime(2020, 1, 1),
                "u": timedelta(days=1, seconds=2),
            },
        ),
        action="SET a=@p",
        action_parameters={"p": 3},
    )
    assert rule.correlation is not None
    assert [type(value) for value in rule.correlation.properties.values()] == [
        str,
        int,
        int,
        float,
        bool,
        datetime,
        timedelta,
    ]


def test_descriptions_from_the_javascript_sdk_are_read() -> None:
    rule = read_rule(description_of(parse(sent("javascript_rule"))))
    moment = datetime(2020, 1, 2, 3, 4, 5, 678000, UTC)
    assert rule == RuleDefinition(
        name="r",
        filter_kind=FilterKind.SQL,
        sql_expression="stringValue = @text AND intValue = @number",
        parameters={"number": 1.0, "text": "b", "then": moment},
    )


def test_descriptions_from_the_dotnet_sdk_are_read() -> None:
    rule = read_rule(description_of(parse(sent("dotnet_rule"))))
    assert rule == RuleDefinition(
        name="r",
        filter_kind=FilterKind.CORRELATION,
        correlation=CorrelationFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="rt",
            label="l",
            session_id="s",
            reply_to_session_id="rs",
            content_type="ct",
            properties={"time": timedelta(seconds=1.5), "empty": ""},
        ),
        action="REMOVE x",
    )


START, END = f'<RuleDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">', "</RuleDescription>"


def described(inner: str) -> RuleDefinition:
    return read_rule(parse(f"{START}{inner}{END}".encode()))


def written(rule: RuleDefinition) -> str:
    """The elements of the description."""
    text = to_text(describe_rule(rule))
    assert text.startswith(START)
    return text.removeprefix(START).removesuffix(END)


def test_an_empty_description_is_the_default_rule() -> None:
    assert described("") == RuleDefinition(name="$Default", filter_kind=FilterKind.TRUE)


@pytest.mark.parametrize(("kind", "found"), [("TrueFilter", FilterKind.TRUE), ("FalseFilter", FilterKind.FALSE)])
def test_a_filter_that_is_always_or_never_true_has_a_type_of_its_own(kind: str, found: FilterKind) -> None:
    rule = described(f'<Filter i:type="{kind}"><SqlExpression>1=1</SqlExpression></Filter>')
    assert (rule.filter_kind, rule.sql_expression) == (found, None)


VALUE = (
    '<Filter i:type="CorrelationFilter"><Properties>'
    "<KeyValueOfstringanyType>{}</KeyValueOfstringanyType></Properties></Filter>"
)


@pytest.mark.parametrize(
    ("inner", "setting"),
    [
        ("<Filter/>", "Filter"),
        ('<Filter i:type="DateTimeFilter"/>', "Filter"),
        ('<Filter i:type="SqlFilter"/>', "SqlFilter"),
        ('<Filter i:type="CorrelationFilter"/>', "CorrelationFilter"),
        ('<Action i:type="ShellAction"/>', "Action"),
        ('<Action i:type="SqlRuleAction"/>', "Action"),
        (f"<Filter i:type='SqlFilter'><SqlExpression>{'x' * 1025}</SqlExpression></Filter>", "SqlFilter"),
        (VALUE.format("<Key>a</Key>"), "Properties"),
        (VALUE.format("<Value>a</Value>"), "Properties"),
        (VALUE.format('<Key>a</Key><Value i:type="x:int">one</Value>'), "Properties.a"),
        (VALUE.format(f'<Key>a</Key><Value i:type="x:long">{1 << 63}</Value>'), "Properties.a"),
        (VALUE.format('<Key>a</Key><Value i:type="x:boolean">maybe</Value>'), "Properties.a"),
        (VALUE.format('<Key>a</Key><Value i:type="x:dateTime">yesterday</Value>'), "Properties.a"),
        (VALUE.format('<Key>a</Key><Value i:type="x:duration">long</Value>'), "Properties.a"),
        (VALUE.format('<Key>a</Key><Value i:type="x:base64Binary">AA==</Value>'), "Properties.a"),
    ],
)
def test_the_error_of_an_invalid_rule_names_the_mistake(inner: str, setting: str) -> None:
    with pytest.raises(DefinitionError) as refusal:
        described(inner)
    assert refusal.value.setting == setting


def test_a_property_cannot_be_compared_twice() -> None:
    pair = "<KeyValueOfstringanyType><Key>a</Key><Value>1</Value></KeyValueOfstringanyType>"
    with pytest.raises(DefinitionError, match="twice"):
        described(f'<Filter i:type="CorrelationFilter"><Properties>{pair}{pair}</Properties></Filter>')


def test_a_rule_is_written_in_the_form_that_clients_look_for() -> None:
    rule = RuleDefinition(
        name="r",
        filter_kind=FilterKind.SQL,
        sql_expression="a < @p",
        parameters={"p": 1},
        action="SET b=1",
        created_at=1_767_225_600_000,
    )
    assert written(rule) == (
        '<Filter i:type="SqlFilter"><SqlExpression>a &lt; @p</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>'
        "<Parameters><KeyValueOfstringanyType><Key>@p</Key>"
        '<Value i:type="d6p1:int" xmlns:d6p1="http://www.w3.org/2001/XMLSchema">1</Value>'
        "</KeyValueOfstringanyType></Parameters></Filter>"
        '<Action i:type="SqlRuleAction"><SqlExpression>SET b=1</SqlExpression>'
        "<CompatibilityLevel>20</CompatibilityLevel></Action>"
        "<CreatedAt>2026-01-01T00:00:00Z</CreatedAt><Name>r</Name>"
    )


def test_a_rule_that_matches_every_message_is_written_with_its_expression() -> None:
    assert written(RuleDefinition()) == (
        '<Filter i:type="TrueFilter"><SqlExpression>1=1</SqlExpression>'
        "<CompatibilityLevel>20</CompatibilityLevel></Filter>"
        '<Action i:type="EmptyRuleAction" /><CreatedAt>0001-01-01T00:00:00Z</CreatedAt><Name>$Default</Name>'
    )
    assert "<SqlExpression>1=0</SqlExpression>" in written(RuleDefinition(filter_kind=FilterKind.FALSE))


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ("", "string", ""),
        ("a<b", "string", "a&lt;b"),
        (True, "boolean", "true"),
        (False, "boolean", "false"),
        (2147483647, "int", "2147483647"),
        (2147483648, "long", "2147483648"),
        (-2147483649, "long", "-2147483649"),
        (5.0, "double", "5.0"),
        (1e300, "double", "1e+300"),
        (float("inf"), "double", "INF"),
        (datetime(2020, 1, 2, 3, 4, 5, tzinfo=UTC), "dateTime", "2020-01-02T03:04:05Z"),
        (datetime(2020, 1, 2, 3, 4, 5), "dateTime", "2020-01-02T03:04:05"),
        (
            datetime(2020, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=1))),
            "dateTime",
            "2020-01-02T02:04:05.000006Z",
        ),
        (UUID(int=1), "guid", "00000000-0000-0000-0000-000000000001"),
        (timedelta(), "duration", "PT0S"),
        (timedelta(days=1), "duration", "P1D"),
        (timedelta(days=1, microseconds=1), "duration", "P1DT0.000001S"),
        (timedelta(minutes=1, milliseconds=500), "duration", "PT1M0.5S"),
        (timedelta(seconds=-90), "duration", "-PT1M30S"),
        (timedelta(seconds=-1.5), "duration", "-PT1.5S"),
    ],
)
def test_a_value_is_written_with_its_type_and_read_unchanged(value: PropertyValue, kind: str, text: str) -> None:
    before = RuleDefinition(
        name="r", filter_kind=FilterKind.CORRELATION, correlation=CorrelationFilter(properties={"p": value})
    )
    parts = written(before)
    start = f'<Value i:type="d6p1:{kind}" xmlns:d6p1="http://www.w3.org/2001/XMLSchema"'
    assert (f"{start}>{text}</Value>" if text else f"{start} />") in parts
    after = described(parts)
    assert after == before
    assert after.correlation is not None
    assert type(after.correlation.properties["p"]) is type(value)


@pytest.mark.parametrize("kind", ["short", "unsignedByte", "unsignedInt"])
def test_whole_numbers_of_every_width_are_numbers(kind: str) -> None:
    rule = described(VALUE.format(f'<Key>a</Key><Value i:type="x:{kind}"> 7 </Value>'))
    assert rule.correlation is not None
    assert rule.correlation.properties == {"a": 7}


def test_a_value_without_a_type_is_text() -> None:
    rule = described(VALUE.format("<Key>a</Key><Value> 7 </Value>"))
    assert rule.correlation is not None
    assert rule.correlation.properties == {"a": " 7 "}


def test_an_unlimited_time_is_written_as_the_longest_duration() -> None:
    rule = described(VALUE.format('<Key>a</Key><Value i:type="x:duration">P10675199DT2H48M5.4775807S</Value>'))
    assert rule.correlation is not None
    assert rule.correlation.properties["a"] == timedelta(seconds=922_337_203_685, microseconds=477_580)
