"""The properties of a message that rules read, and the message after an action."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from viewing import NOW, after, annotations_of, view

from peeklock.amqp.codec import encode_value
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.sections import APPLICATION_PROPERTIES, PROPERTIES, list_section, map_section
from peeklock.amqp.types import Described, Int, Symbol, Timestamp, UInt, ULong
from peeklock.broker.annex import Annex
from peeklock.broker.bare_message import split
from peeklock.broker.rules.conversion import FOREVER, TIMESPAN
from peeklock.broker.rules.errors import EvaluationError
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES, ChangeableProperties
from peeklock.broker.rules.values import MISSING, Value
from peeklock.broker.rules.view import Changed, View

GUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)
NEW_YEAR_MS = 1_704_067_200_000
NOW_MOMENT = datetime.fromtimestamp(NOW / 1000, UTC)
FULL = {
    "message_id": "m",
    "user_id": b"u",
    "to": "t",
    "subject": "l",
    "reply_to": "r",
    "correlation_id": "c",
    "content_type": "text/plain",
    "group_id": "s",
    "reply_to_group_id": "rs",
}


def bare_view(payload: bytes, annex: bytes | None = None) -> View:
    return View(payload, annex, ttl_ms=None, enqueued_at=NOW, sequence_number=1)


# --- looking ---


def test_a_view_is_what_actions_work_on() -> None:
    properties: ChangeableProperties = view()
    assert properties.system("MessageId") == "id-1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MessageId", "m"),
        ("CorrelationId", "c"),
        ("Label", "l"),
        ("To", "t"),
        ("ReplyTo", "r"),
        ("SessionId", "s"),
        ("ReplyToSessionId", "rs"),
        ("ContentType", "text/plain"),
        ("PartitionKey", "p"),
        ("ViaPartitionKey", "v"),
        ("TimeToLive", timedelta(minutes=1)),
        ("ScheduledEnqueueTimeUtc", NEW_YEAR),
        ("EnqueuedTimeUtc", NOW_MOMENT),
        ("ExpiresAtUtc", NOW_MOMENT + timedelta(minutes=1)),
        ("LockedUntilUtc", None),
        ("SequenceNumber", 7),
        ("EnqueuedSequenceNumber", 7),
        ("DeliveryCount", 0),
        ("DeadLetterSource", None),
        ("ForcePersistence", False),
        ("State", 0),
    ],
)
def test_system_properties_are_read_from_their_sections(name: str, value: Value) -> None:
    annotations = {
        "x-opt-partition-key": "p",
        "x-opt-via-partition-key": "v",
        "x-opt-scheduled-enqueue-time": Timestamp(NEW_YEAR_MS),
    }
    seen = view(None, annotations, 60_000, **FULL).system(name)
    assert seen == value
    assert type(seen) is type(value)


@pytest.mark.parametrize("name", SYSTEM_PROPERTIES)
def test_every_system_property_can_be_read_from_a_message_that_has_none(name: str) -> None:
    payload = Message(data=[b"body"]).encode()
    known = {
        "EnqueuedTimeUtc": NOW_MOMENT,
        "SequenceNumber": 1,
        "EnqueuedSequenceNumber": 1,
        "DeliveryCount": 0,
        "Size": len(payload),
        "ForcePersistence": False,
        "State": 0,
    }
    assert bare_view(payload).system(name) == known.get(name)


@pytest.mark.parametrize(
    ("identity", "text"),
    [
        ("text", "text"),
        (ULong(5), "5"),
        (GUID, "00112233-4455-6677-8899-aabbccddeeff"),
        (b"\x00\xff", "00ff"),
    ],
)
def test_ids_of_any_type_are_seen_as_text(identity: Any, text: str) -> None:
    seen = view(message_id=identity, correlation_id=identity)
    assert (seen.system("MessageId"), seen.system("CorrelationId")) == (text, text)
    assert type(seen.system("MessageId")) is str


def test_a_view_has_the_values_that_the_broker_stored_with_the_message() -> None:
    annex = Annex(dead_letter_source="queue", enqueued_number=3).encode()
    seen = bare_view(Message(data=[b""]).encode(), annex)
    assert (seen.system("DeadLetterSource"), seen.system("EnqueuedSequenceNumber")) == ("queue", 3)


def test_a_schedule_that_is_not_in_the_annotations_is_seen() -> None:
    assert view(scheduled_at=NEW_YEAR_MS).system("ScheduledEnqueueTimeUtc") == NEW_YEAR


def test_a_time_to_live_beyond_all_spans_is_the_longest() -> None:
    seen = View(b"", None, ttl_ms=2**64, enqueued_at=NOW, sequence_number=1)
    assert seen.system("TimeToLive") == FOREVER - FOREVER % timedelta(milliseconds=1)
    assert seen.system("ExpiresAtUtc") == datetime.max.replace(tzinfo=UTC)


def test_the_size_may_be_that_of_more_than_the_view_was_given() -> None:
    seen = View(b"", None, ttl_ms=None, enqueued_at=NOW, sequence_number=1, size=500)
    assert seen.system("Size") == 500


def test_names_of_user_properties_are_case_insensitive() -> None:
    seen = view({"Colour": "red"})
    assert [seen.user(name) for name in ("Colour", "colour", "COLOUR")] == ["red"] * 3


def test_of_two_that_differ_in_case_the_one_that_is_spelt_alike_is_seen_or_else_the_first() -> None:
    seen = view({"Colour": "red", "colour": "blue"})
    assert [seen.user(name) for name in ("Colour", "colour", "COLOUR")] == ["red", "blue", "red"]


def test_a_property_that_is_null_is_not_one_that_is_missing() -> None:
    seen = view({"null": None})
    assert seen.user("null") is None
    assert seen.user("none") is MISSING
    assert view().user("none") is MISSING


def test_names_that_are_symbols_are_names() -> None:
    assert view({Symbol("colour"): Symbol("red")}).user("colour") == "red"


def test_the_body_may_be_cut_off() -> None:
    whole = Message(properties=Properties(**FULL), application_properties={"a": Int(1)}, data=[b"x" * 100]).encode()
    front, _ = split(whole)
    seen = bare_view(front)
    assert (seen.system("SessionId"), seen.user("a")) == ("s", 1)


def test_sections_may_have_long_descriptors() -> None:
    properties = b"\x00\x80" + (0x73).to_bytes(8, "big") + list_section(PROPERTIES, [b"\xa1\x01m"])[3:]
    seen = bare_view(properties + Message(data=[b"body"]).encode())
    assert seen.system("MessageId") == "m"
    seen.set_system("MessageId", "n")
    changed = after(seen)
    assert changed.properties is not None
    assert (changed.properties.message_id, changed.body) == ("n", b"body")


def test_reading_an_invalid_section_is_an_evaluation_error() -> None:
    broken = map_section(APPLICATION_PROPERTIES, [b"\xa1\x01a"])
    seen = bare_view(list_section(PROPERTIES, [b"\xa1\x01m"]) + broken)
    assert seen.system("MessageId") == "m"
    for act in (lambda: seen.user("a"), lambda: seen.set_user("a", 1), lambda: seen.remove_user("a")):
        with pytest.raises(
            EvaluationError, match=r"^The application properties of the message could not be decoded: .*\.$"
        ):
            act()


def test_reading_invalid_properties_is_an_evaluation_error() -> None:
    broken = list_section(PROPERTIES, [b"\xa1\x01\xff", b"\x40", b"\xa1\x01t"])
    seen = bare_view(broken + map_section(APPLICATION_PROPERTIES, [encode_value("a"), encode_value(1)]))
    assert (seen.user("a"), seen.system("To")) == (1, "t")
    with pytest.raises(EvaluationError, match="The property 'MessageId' of the message could not be decoded"):
        seen.system("MessageId")


def test_an_unreadable_section_is_kept_unchanged() -> None:
    broken = b"\x00\x53\x73\xc0\x02\x05\x40"
    changed = bare_view(broken + Message(data=[b"body"]).encode())
    changed.set_user("a", 1)
    section = map_section(APPLICATION_PROPERTIES, [encode_value("a"), encode_value(1)])
    assert changed.result() == Changed(broken + section + Message(data=[b"body"]).encode(), None, None, None)


@given(st.binary(max_size=60))
def test_no_bytes_make_anything_but_an_evaluation_error(data: bytes) -> None:
    payloads = (data, list_section(PROPERTIES, [data]), map_section(APPLICATION_PROPERTIES, [encode_value("a"), data]))
    for payload in payloads:
        for act in (
            lambda seen: [seen.system(name) for name in SYSTEM_PROPERTIES],
            lambda seen: seen.user("a"),
            lambda seen: seen.set_user("a", "text"),
            lambda seen: seen.set_system("Label", "text"),
            lambda seen: (seen.set_user("b", 1), seen.set_system("To", "b"), seen.result()),
        ):
            with suppress(EvaluationError):
                act(bare_view(payload))


# --- changing ---


def test_a_view_that_was_not_changed_gives_the_very_bytes_back() -> None:
    seen = view({"a": 1}, {"x-opt-partition-key": "p"}, 1000, **FULL)
    seen.user("a")
    seen.system("PartitionKey")
    copied = seen.copy().result()
    assert copied == Changed(seen._payload, seen._annex, "s", 1000)


def test_changing_one_property_leaves_the_bytes_of_all_others() -> None:
    # A long and a string that nobody needs to write so long.
    odd = [encode_value("odd"), b"\x81" + bytes(7) + b"\x05", b"\xb1\x00\x00\x00\x01a", encode_value(Int(1))]
    body = b"\x00\x53\x75\xb0\x00\x00\x00\x02hi"
    seen = bare_view(list_section(PROPERTIES, [b"\xb1\x00\x00\x00\x01m"]) + map_section(0x74, odd) + body)
    seen.set_user("new", "x")
    seen.set_user("A", 2)
    odd[3] = encode_value(Int(2))
    expected = map_section(0x74, [*odd, encode_value("new"), encode_value("x")])
    assert seen.result().payload == list_section(PROPERTIES, [b"\xb1\x00\x00\x00\x01m"]) + expected + body


def test_changes_to_a_copy_are_not_seen_in_the_other() -> None:
    seen = view({"a": 1}, {"x-opt-partition-key": "p"}, 1000, subject="old")
    assert (seen.user("a"), seen.system("Label"), seen.system("PartitionKey")) == (1, "old", "p")
    before = seen.copy().result()
    changed = seen.copy()
    changed.set_user("a", 2)
    changed.set_user("b", 3)
    changed.set_system("Label", "new")
    changed.set_system("PartitionKey", "q")
    changed.set_system("TimeToLive", timedelta(seconds=5))
    assert (changed.user("a"), changed.user("b"), changed.system("Label")) == (2, 3, "new")
    assert (changed.system("PartitionKey"), changed.system("TimeToLive")) == ("q", timedelta(seconds=5))
    assert (seen.user("a"), seen.user("b"), seen.system("Label")) == (1, MISSING, "old")
    assert (seen.system("PartitionKey"), seen.system("TimeToLive")) == ("p", timedelta(seconds=1))
    assert seen.result() == before
    other = seen.copy()
    other.set_user("c", 4)
    other.set_system("CorrelationId", "c")
    other.set_system("ViaPartitionKey", "v")
    message = after(other)
    assert message.properties == Properties(message_id="id-1", subject="old", correlation_id="c")
    assert message.application_properties == {"a": 1, "c": 4}
    assert annotations_of(other)["x-opt-partition-key"] == "p"


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("MessageId", "message_id"),
        ("CorrelationId", "correlation_id"),
        ("Label", "subject"),
        ("To", "to"),
        ("ReplyTo", "reply_to"),
        ("SessionId", "group_id"),
        ("ReplyToSessionId", "reply_to_group_id"),
        ("ContentType", "content_type"),
    ],
)
@pytest.mark.parametrize("before", [FULL, {}], ids=["full", "empty"])
def test_a_text_property_can_be_set_and_removed(name: str, field: str, before: dict[str, Any]) -> None:
    changed = view(**before)
    changed.set_system(name, "new")
    assert changed.system(name) == "new"
    message = after(changed)
    assert message.properties is not None
    assert getattr(message.properties, field) == "new"
    others = {each: value for each, value in {"message_id": "id-1", **before}.items() if each != field}
    assert {each: getattr(message.properties, each) for each in others} == others
    assert message.body == b"the body"
    if name != "MessageId":
        changed.remove_system(name)
        assert changed.system(name) is None
        assert getattr(after(changed).properties, field) is None


def test_a_content_type_is_a_symbol_if_it_can_be() -> None:
    changed = view()
    changed.set_system("ContentType", "a/b")
    assert b"\xa3\x03a/b" in changed.result().payload
    changed.set_system("ContentType", "ä/b")
    assert changed.system("ContentType") == "ä/b"


def test_a_message_never_loses_its_id() -> None:
    changed = view(message_id="old")
    changed.remove_system("MessageId")
    identity = changed.system("MessageId")
    assert isinstance(identity, str)
    assert identity != "old"
    assert len(identity) == 32
    assert after(changed).properties == Properties(message_id=identity)


def test_a_message_without_properties_gets_them() -> None:
    changed = bare_view(Message(application_properties={"a": Int(1)}, data=[b"body"]).encode())
    changed.set_system("Label", "new")
    changed.set_user("a", 2)
    message = after(changed)
    assert message.properties == Properties(subject="new")
    assert (message.application_properties, message.body) == ({"a": 2}, b"body")


def test_setting_the_session_id_moves_the_message_to_the_session() -> None:
    changed = view()
    assert changed.copy().result().session_id is None
    changed.set_system("SessionId", "s2")
    assert changed.result().session_id == "s2"


def test_a_guid_is_text_for_a_system_property() -> None:
    changed = view()
    changed.set_system("MessageId", GUID)
    assert changed.system("MessageId") == str(GUID)


@pytest.mark.parametrize("name", ["PartitionKey", "ViaPartitionKey"])
def test_partition_keys_are_set_in_the_annotations(name: str) -> None:
    key = {"PartitionKey": "x-opt-partition-key", "ViaPartitionKey": "x-opt-via-partition-key"}[name]
    changed = view(None, {"x-opt-other": 5, key: "old"})
    changed.set_system(name, "new")
    assert changed.system(name) == "new"
    assert {each: annotations_of(changed)[each] for each in ("x-opt-other", key)} == {"x-opt-other": 5, key: "new"}
    changed.remove_system(name)
    assert changed.system(name) is None
    assert key not in annotations_of(changed)
    assert annotations_of(changed)["x-opt-other"] == 5


def test_annotations_can_be_added_to_a_message_without_any_and_removed() -> None:
    changed = view()
    changed.set_system("PartitionKey", "new")
    assert annotations_of(changed)["x-opt-partition-key"] == "new"
    changed.remove_system("PartitionKey")
    assert changed.result().annex is None


def test_a_priority_survives_a_change_of_annotations() -> None:
    changed = bare_view(Message(data=[b""]).encode(), Annex(priority=9).encode())
    changed.set_system("PartitionKey", "p")
    assert Annex.decode(changed.result().annex).priority == 9


def test_the_scheduled_time_can_be_set_and_removed() -> None:
    changed = view(scheduled_at=NOW)
    changed.set_system("ScheduledEnqueueTimeUtc", NEW_YEAR)
    assert changed.system("ScheduledEnqueueTimeUtc") == NEW_YEAR
    assert annotations_of(changed)["x-opt-scheduled-enqueue-time"] == NEW_YEAR_MS
    changed.remove_system("ScheduledEnqueueTimeUtc")
    assert changed.system("ScheduledEnqueueTimeUtc") is None


def test_the_time_to_live_can_be_set_and_removed() -> None:
    changed = view(ttl_ms=1000)
    changed.set_system("TimeToLive", timedelta(minutes=2))
    assert changed.system("ExpiresAtUtc") == NOW_MOMENT + timedelta(minutes=2)
    assert changed.result().ttl_ms == 120_000
    changed.remove_system("TimeToLive")
    assert (changed.system("TimeToLive"), changed.system("ExpiresAtUtc")) == (None, None)
    assert changed.result().ttl_ms is None
    changed.set_system("TimeToLive", FOREVER)
    assert changed.result().ttl_ms is None


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("Label", 5, "The system property Label requires text, not a number."),
        ("To", True, "The system property To requires text, not a boolean."),
        ("ReplyTo", NEW_YEAR, "The system property ReplyTo requires text, not a time."),
        ("PartitionKey", 1.5, "The system property PartitionKey requires text, not a number."),
        *(
            (name, "x" * 129, f"The system property {name} has at most 128 characters, not 129.")
            for name in ("SessionId", "ReplyToSessionId", "MessageId", "PartitionKey", "ViaPartitionKey")
        ),
        ("TimeToLive", 5, "The system property TimeToLive requires a duration, not a number."),
        ("TimeToLive", timedelta(0), "The system property TimeToLive must be at least a millisecond."),
        ("ScheduledEnqueueTimeUtc", "soon", "The system property ScheduledEnqueueTimeUtc requires a time, not text."),
        ("SequenceNumber", 5, "The system property SequenceNumber cannot be changed."),
    ],
)
def test_a_value_that_a_system_property_cannot_have_is_an_evaluation_error(
    name: str, value: Value, sentence: str
) -> None:
    changed = view(subject="old")
    before = changed.copy().result()
    with pytest.raises(EvaluationError) as raised:
        changed.set_system(name, value)
    assert str(raised.value) == sentence
    assert changed.result() == before


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (True, True),
        (5, 5),
        (1.5, 1.5),
        ("text", "text"),
        (NEW_YEAR, Timestamp(NEW_YEAR_MS)),
        (timedelta(seconds=1), Described(TIMESPAN, 10_000_000)),
        (GUID, GUID),
        (b"\x01", b"\x01"),
        (None, None),
    ],
)
def test_a_user_property_of_any_type_can_be_added(value: Value, wire: Any) -> None:
    changed = view({"other": Int(1)})
    changed.set_user("new", value)
    assert changed.user("NEW") == value
    properties = after(changed).application_properties
    assert properties == {"other": 1, "new": wire}
    assert type(properties["new"]) is type(wire)


def test_the_first_user_property_is_written_between_properties_and_body() -> None:
    changed = view()
    payload = changed.result().payload
    body = payload.index(b"\x00\x53\x75")
    changed.set_user("a", 1)
    section = map_section(APPLICATION_PROPERTIES, [encode_value("a"), encode_value(1)])
    assert changed.result().payload == payload[:body] + section + payload[body:]


def test_a_user_property_keeps_its_spelling_and_its_type() -> None:
    changed = view({"Count": UInt(1), "b": 1})
    changed.set_user("count", 2)
    properties = after(changed).application_properties
    assert properties == {"Count": 2, "b": 1}
    assert type(properties["Count"]) is UInt


def test_the_name_of_an_added_property_is_case_insensitive() -> None:
    changed = view({"a": 1})
    assert changed.user("New") is MISSING
    changed.set_user("new", 1)
    changed.set_user("NEW", 2)
    assert changed.user("New") == 2
    assert after(changed).application_properties == {"a": 1, "new": 2}


def test_removing_a_user_property_removes_all_that_differ_in_case() -> None:
    changed = view({"a": 1, "A": 2, "b": 3})
    changed.remove_user("a")
    assert changed.user("A") is MISSING
    assert after(changed).application_properties == {"b": 3}


def test_a_removed_property_can_be_set_again_with_another_type() -> None:
    changed = view({"a": Int(1), "b": 2})
    changed.remove_user("a")
    changed.set_user("a", "5")
    changed.set_user("c", 3)
    changed.remove_user("c")
    assert changed.user("a") == "5"
    assert after(changed).application_properties == {"a": "5", "b": 2}


def test_removing_a_missing_property_has_no_effect() -> None:
    changed = view({"a": 1})
    before = changed.copy().result()
    changed.remove_user("b")
    assert changed.result() == before


def test_removing_the_last_user_property_removes_the_section() -> None:
    changed = view({"a": 1})
    changed.remove_user("a")
    message = after(changed)
    assert (message.application_properties, message.body) == (None, b"the body")
    assert message.properties == Properties(message_id="id-1")


def test_a_property_that_cannot_be_written_is_an_evaluation_error() -> None:
    changed = view()
    with pytest.raises(EvaluationError, match=r"The property 'a' cannot be encoded: .* surrogates not allowed"):
        changed.set_user("a", "\ud800")
    with pytest.raises(EvaluationError, match=r"The property 'Label' cannot be encoded: .* surrogates not allowed"):
        changed.set_system("Label", "\ud800")


def test_many_changes_make_long_sections() -> None:
    changed = view()
    for number in range(300):
        changed.set_user(f"property-{number}", number)
    assert after(changed).application_properties == {f"property-{number}": number for number in range(300)}


@given(
    user=st.dictionaries(st.text(max_size=3), st.one_of(st.integers(-(2**63), 2**63 - 1), st.text()), max_size=6),
    changes=st.lists(st.tuples(st.text(max_size=3), st.one_of(st.none(), st.text(), st.booleans())), max_size=6),
)
def test_a_changed_view_has_the_values_that_a_receiver_gets(
    user: dict[str, Any], changes: list[tuple[str, Value]]
) -> None:
    changed = view(user)
    for name, value in changes:
        if value is None:
            changed.remove_user(name)
        else:
            changed.set_user(name, value)
    properties = after(changed).application_properties or {}
    again = bare_view(changed.result().payload)
    for name in {*user, *properties, *(name for name, _ in changes)}:
        assert changed.user(name) == again.user(name)
    for name, value in properties.items():
        assert changed.user(name) == value
