"""The index of correlation filters finds the same filters as evaluating each of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewing import view

from peeklock.amqp.sections import APPLICATION_PROPERTIES, map_section
from peeklock.amqp.types import Byte, Described, Float, Int, Symbol, Timestamp, UInt, ULong
from peeklock.broker.rules.conversion import DATETIME_OFFSET, TIMESPAN
from peeklock.broker.rules.correlation import CorrelationIndex
from peeklock.broker.rules.view import View
from peeklock.entities.rules import CORRELATION_FIELDS, CorrelationFilter, PropertyValue

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_704_067_200_000
WIRE_FIELDS = {
    "correlation_id": "correlation_id",
    "message_id": "message_id",
    "to": "to",
    "reply_to": "reply_to",
    "label": "subject",
    "session_id": "group_id",
    "reply_to_session_id": "reply_to_group_id",
    "content_type": "content_type",
}


def met(seen: View, *filters: CorrelationFilter) -> list[int]:
    """Return the indexes of the filters that match the message."""
    index: CorrelationIndex[int] = CorrelationIndex()
    for number, correlation in enumerate(filters):
        index.add(correlation, number)
    hits: list[int] = []
    failures: list[tuple[int, str]] = []
    index.find(seen, hits, failures)
    assert failures == []
    return sorted(hits)


def properties(**tested: PropertyValue) -> CorrelationFilter:
    return CorrelationFilter(properties=tested)


@pytest.mark.parametrize("name", CORRELATION_FIELDS.values())
def test_a_system_property_is_compared_as_it_is_written(name: str) -> None:
    seen = view(**{WIRE_FIELDS[name]: "Value"})
    filters = [CorrelationFilter(**{name: text}) for text in ("Value", "value", "Value ")]
    assert met(seen, *filters) == [0]
    assert met(view(message_id="other"), *filters) == []


@pytest.mark.parametrize(("identity", "text"), [(ULong(5), "5"), (GUID, str(GUID)), (b"\x0a\x0b", "0a0b")])
def test_ids_are_compared_by_their_text(identity: Any, text: str) -> None:
    seen = view(message_id=identity, correlation_id=identity)
    assert met(seen, CorrelationFilter(message_id=text), CorrelationFilter(correlation_id=text)) == [0, 1]


def test_all_conditions_must_hold() -> None:
    both = CorrelationFilter(label="l", to="t", properties={"a": 1, "b": "x"})
    assert met(view({"a": 1, "b": "x", "c": 3}, subject="l", to="t"), both) == [0]
    assert met(view({"a": 1, "b": "y"}, subject="l", to="t"), both) == []
    assert met(view({"a": 1}, subject="l", to="t"), both) == []
    assert met(view({"a": 1, "b": "x"}, subject="l"), both) == []


def test_filters_of_all_forms_are_evaluated() -> None:
    filters = [CorrelationFilter(label="l"), CorrelationFilter(to="t"), properties(a=1), properties(b=1)]
    assert met(view({"a": 1}, subject="l", to="t"), *filters) == [0, 1, 2]


@pytest.mark.parametrize(
    ("expected", "wire"),
    [
        (1, Int(1)),
        (1, Byte(1)),
        (1, UInt(1)),
        (1, 1.0),
        (1.0, 1),
        (0.5, Float(0.5)),
        (2**63 - 1, ULong(2**63 - 1)),
        (True, True),
        ("red", "red"),
        ("red", Symbol("red")),
        ("", ""),
        (NEW_YEAR, Timestamp(NEW_YEAR_MS)),
        (NEW_YEAR.astimezone(timezone(timedelta(hours=5))), Timestamp(NEW_YEAR_MS)),
        (NEW_YEAR.replace(tzinfo=None), Timestamp(NEW_YEAR_MS)),
        (NEW_YEAR + timedelta(microseconds=999), Timestamp(NEW_YEAR_MS)),
        (NEW_YEAR, Described(DATETIME_OFFSET, 638_396_640_000_000_000)),
        (timedelta(seconds=1), Described(TIMESPAN, 10_000_000)),
    ],
)
def test_equal_values_of_types_that_go_together_match(expected: PropertyValue, wire: Any) -> None:
    assert met(view({"a": wire}), properties(a=expected)) == [0]


@pytest.mark.parametrize(
    ("expected", "wire"),
    [
        (1, True),
        (True, Int(1)),
        (True, 1.0),
        (False, 0),
        (1, "1"),
        ("1", 1),
        ("true", True),
        (1, 2),
        ("red", "Red"),
        (2**53 + 1, float(2**53)),
        (str(GUID), GUID),
        ("x", b"x"),
        (NEW_YEAR, NEW_YEAR_MS),
        (NEW_YEAR_MS, Timestamp(NEW_YEAR_MS)),
        (NEW_YEAR, Timestamp(NEW_YEAR_MS + 1)),
        (10_000_000, Described(TIMESPAN, 10_000_000)),
        ("None", None),
        (0, None),
        ("[1]", [1]),
    ],
)
def test_values_of_other_types_do_not_match(expected: PropertyValue, wire: Any) -> None:
    assert met(view({"a": wire}), properties(a=expected)) == []


def test_a_moment_before_the_calendar_of_utc_begins_is_no_error() -> None:
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))
    assert met(view({"a": Timestamp(NEW_YEAR_MS)}), properties(a=early)) == []


def test_names_of_user_properties_match_in_any_case() -> None:
    assert met(view({"Colour": "red"}), properties(colour="red"), properties(COLOUR="red")) == [0, 1]


def test_an_unreadable_section_fails_only_the_filters_that_read_it() -> None:
    broken = View(
        b"\x00\x53\x73\xc0\x04\x01\xa1\x01m" + map_section(APPLICATION_PROPERTIES, [b"\xa1\x01a"]),
        None,
        ttl_ms=None,
        enqueued_at=0,
        sequence_number=1,
    )
    index: CorrelationIndex[str] = CorrelationIndex()
    index.add(properties(a=1), "one")
    index.add(properties(a=2), "two")
    index.add(CorrelationFilter(message_id="m"), "three")
    hits: list[str] = []
    failures: list[tuple[str, str]] = []
    index.find(broken, hits, failures)
    assert hits == ["three"]
    assert [owner for owner, _ in failures] == ["one", "two"]
    assert all("could not be decoded" in sentence for _, sentence in failures)


def test_a_discarded_filter_does_not_match() -> None:
    index: CorrelationIndex[str] = CorrelationIndex()
    first, second = CorrelationFilter(label="l"), CorrelationFilter(label="m")
    for correlation, owner in ((first, "a"), (first, "b"), (second, "c")):
        index.add(correlation, owner)
    index.discard(first, "a")
    hits: list[str] = []
    index.find(view(subject="l"), hits, [])
    assert hits == ["b"]
    index.discard(first, "b")
    assert index
    index.discard(second, "c")
    assert not index


class Counting(View):
    """A view that counts its lookups."""

    def __init__(self, seen: View) -> None:
        for name in View.__slots__:
            setattr(self, name, getattr(seen, name))
        self.asked = 0

    def user(self, name: str) -> Any:
        self.asked += 1
        return super().user(name)


def test_correlation_filters_cost_one_lookup_for_each_form() -> None:
    index: CorrelationIndex[int] = CorrelationIndex()
    for number in range(1000):
        index.add(properties(number=number), number)
        # The order in which a filter names its properties makes no difference.
        names = {"number": number, "colour": "red"} if number % 2 else {"colour": "red", "number": number}
        index.add(CorrelationFilter(properties=names), number)
    seen = Counting(view({"number": 500, "colour": "blue"}))
    hits: list[int] = []
    index.find(seen, hits, [])
    assert hits == [500]
    assert seen.asked == 3


# --- against asking one after the other ---

TEXTS = st.sampled_from(["", "a", "A", "1"])
NAMES = st.sampled_from(["p", "q", "r"])
EXPECTED = st.one_of(
    TEXTS,
    st.booleans(),
    st.integers(0, 2),
    st.sampled_from([0.0, 1.0, 1.5]),
    st.sampled_from([NEW_YEAR, NEW_YEAR + timedelta(days=1)]),
    st.sampled_from([timedelta(0), timedelta(seconds=1)]),
)
WIRE = st.one_of(
    EXPECTED.filter(lambda value: not isinstance(value, datetime | timedelta)),
    st.sampled_from([Int(0), UInt(1), Float(1.5), Symbol("a"), None, [1], b"a", GUID]),
    st.sampled_from([Timestamp(NEW_YEAR_MS), Timestamp(NEW_YEAR_MS + 86_400_000)]),
    st.sampled_from([Described(TIMESPAN, 0), Described(TIMESPAN, 10_000_000)]),
)
FILTERS = st.builds(
    lambda fields, tested: CorrelationFilter(**fields, properties=tested),
    st.dictionaries(st.sampled_from(sorted(WIRE_FIELDS)), TEXTS, max_size=2),
    st.dictionaries(NAMES, EXPECTED, min_size=1, max_size=2),
)


def kind(value: object) -> object:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


def naively_met(seen: View, correlation: CorrelationFilter) -> bool:
    for name, field in CORRELATION_FIELDS.items():
        expected = getattr(correlation, field)
        if expected is not None and seen.system(name) != expected:
            return False
    values = ((seen.user(name), expected) for name, expected in correlation.properties.items())
    return all(kind(value) == kind(expected) and value == expected for value, expected in values)


@given(
    filters=st.lists(FILTERS, max_size=12),
    user=st.dictionaries(NAMES, WIRE, max_size=3),
    fields=st.dictionaries(st.sampled_from(sorted(WIRE_FIELDS.values())), TEXTS),
)
def test_the_index_gives_the_same_result_as_evaluating_each_filter(
    filters: list[CorrelationFilter], user: dict[str, Any], fields: dict[str, str]
) -> None:
    seen = view(user, **fields)
    expected = [number for number, each in enumerate(filters) if naively_met(seen, each)]
    assert met(seen, *filters) == expected
