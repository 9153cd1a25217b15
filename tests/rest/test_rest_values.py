"""Values of properties in headers and in JSON."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.amqp.service_bus import END_OF_TIME
from peeklock.amqp.types import Char, Float, Int, Symbol, Timestamp, ULong
from peeklock.broker.errors import InvalidProperty
from peeklock.rest.headers import is_property
from peeklock.rest.values import (
    NotAProperty,
    format_header,
    format_http_date,
    parse_http_date,
    parse_moment,
    parse_seconds,
    parse_time_span,
    read_header,
    read_json,
)

MOMENT = Timestamp(784_111_777_000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"High"', "High"),
        ('"12345,ABC"', "12345,ABC"),
        ('""', ""),
        ('"5"', "5"),
        ('"say \\"hi\\""', 'say "hi"'),
        ('"C:\\dir"', "C:\\dir"),
        ('"\\u00e9\\\\"', "é\\"),
        ('"é"', "é"),
        ('"Sun, 06 Nov 1994 08:49:37 GMT"', MOMENT),
        ('"Sun, 36 Nov 1994 08:49:37 GMT"', "Sun, 36 Nov 1994 08:49:37 GMT"),
        ("5", Int(5)),
        ("-2147483649", -2147483649),
        ("1.5", 1.5),
        (".5e3", 500.0),
        ("true", True),
        ("False", False),
    ],
)
def test_a_header_has_a_value_of_its_type(text: str, value: Any) -> None:
    found = read_header("p", text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("text", ["High", '"', "", "NaN", "Infinity", "1_000", "0x10", "'x'", "null", "1" * 500, "٣"])
def test_a_header_without_quotes_that_is_no_number_is_no_property(text: str) -> None:
    with pytest.raises(NotAProperty):
        read_header("p", text)


def test_a_number_beyond_64_bits_is_refused() -> None:
    for read, value in ((read_header, str(2**63)), (read_header, "1" * 40), (read_json, 2**63)):
        with pytest.raises(InvalidProperty, match="'p' must fit into 64 bits"):
            read("p", value)


@pytest.mark.parametrize("value", [[], {}, ["x"]])
def test_a_value_in_json_is_a_simple_one(value: Any) -> None:
    with pytest.raises(InvalidProperty, match="must be a string, a number"):
        read_json("p", value)


@given(st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.integers(-(2**63), 2**63 - 1)))
def test_a_written_value_is_read_unchanged(value: Any) -> None:
    text = format_header(value)
    assert text is not None
    assert text.isascii()
    assert text.isprintable()
    if parse_http_date(str(value)) is None:
        assert read_header("p", text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Timestamp(784_111_777_999), '"Sun, 06 Nov 1994 08:49:37 GMT"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (Symbol("s"), '"s"'),
        (Char("c"), '"c"'),
        (ULong(2**64 - 1), str(2**64 - 1)),
        (Float(0.5), "0.5"),
        ("a\r\nSet-Cookie: b", '"a\\r\\nSet-Cookie: b"'),
        (float("nan"), None),
        (None, None),
        (b"x", None),
        ([1], None),
    ],
)
def test_a_value_is_written_in_one_line_or_not_at_all(value: Any, text: str | None) -> None:
    assert format_header(value) == text


@pytest.mark.parametrize("ms", [-(10**18), -1, 0, 784_111_777_000, END_OF_TIME, 10**18])
def test_any_moment_can_be_written(ms: int) -> None:
    written = format_http_date(ms)
    if 0 <= ms <= END_OF_TIME:
        assert parse_http_date(written) == ms // 1000 * 1000


@pytest.mark.parametrize(
    "text",
    ["Sun, 06 Nov 1994 08:49:37 GMT", "1994-11-06T08:49:37Z", "1994-11-06T08:49:37", " 1994-11-06T09:49:37+01:00"],
)
def test_a_moment_is_read_in_the_form_of_http_or_of_iso(text: str) -> None:
    assert parse_moment("ScheduledEnqueueTimeUtc", text) == MOMENT


@pytest.mark.parametrize("value", ["tomorrow", 5, "0001-01-01T00:00:00+23:00x", [], True])
def test_an_invalid_time_is_refused(value: Any) -> None:
    with pytest.raises(InvalidProperty, match="ScheduledEnqueueTimeUtc must be a date and time"):
        parse_moment("ScheduledEnqueueTimeUtc", value)


@pytest.mark.parametrize(
    ("value", "ms"),
    [(10, 10_000), (0.5, 500), ("40", 40_000), (0.0001, 1), (1e300, END_OF_TIME), (10**400, END_OF_TIME)],
)
def test_a_time_to_live_is_in_seconds(value: Any, ms: int) -> None:
    assert parse_seconds("TimeToLive", value) == ms


@pytest.mark.parametrize("value", [0, -1, "x", True, float("nan"), float("inf"), [], "1" * 100])
def test_an_invalid_time_to_live_is_refused(value: Any) -> None:
    with pytest.raises(InvalidProperty, match="TimeToLive must be a number of seconds above 0"):
        parse_seconds("TimeToLive", value)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0.00:00:40", 40_000),
        ("00:01:00", 60_000),
        ("00:01", 60_000),
        ("1.02:03:04.5", 93_784_500),
        ("10675199.02:48:05.4775807", END_OF_TIME),
    ],
)
def test_a_time_span_is_in_the_form_of_dotnet(value: str, ms: int) -> None:
    assert parse_time_span("TimeToLiveTimeSpan", value) == ms


@pytest.mark.parametrize("value", ["", "5", "PT5M", "0.00:00:00", 5, "-00:00:01", "1:2:3:4"])
def test_an_invalid_time_span_is_refused(value: Any) -> None:
    with pytest.raises(InvalidProperty, match="TimeToLiveTimeSpan must be a duration"):
        parse_time_span("TimeToLiveTimeSpan", value)


def test_headers_of_http_and_of_proxies_are_no_properties() -> None:
    for name in ("Host", "Content-Type", "BROKERPROPERTIES", "X-Forwarded-Port", "x-ms-retrypolicy", "Sec-Fetch-Mode"):
        assert not is_property(name)
    for name in ("not a token", "é", "", "a\r\nb", "x" * 257):
        assert not is_property(name)
    for name in ("Priority", "Customer", "x-count", "NServiceBus.MessageId"):
        assert is_property(name)
