"""Options: what each takes, where it may be used, and errors that name the option, the value and the rule."""

from __future__ import annotations

import pickle

import pytest

from peeklock.spark.options import OPTIONS, OptionError, Options, Use, check, redact
from peeklock.spark.reference import table

KEY = "c2VjcmV0LWtleS1vZi10ZXN0cw=="
WHERE = f"Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def parse(use: Use = "read", **given: object) -> Options:
    values = {"connectionString": WHERE, **{name: str(value) for name, value in given.items()}}
    return Options.parse({name.lower(): value for name, value in values.items() if value != "None"}, use=use)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({"queue": "orders"}, "orders"),
        ({"queue": "a/b"}, "a/b"),
        ({"topic": "t", "subscription": "s"}, "t/Subscriptions/s"),
        ({"queue": "q", "subQueue": "deadletter"}, "q/$DeadLetterQueue"),
        (
            {"topic": "t", "subscription": "s", "subQueue": "transferDeadLetter"},
            "t/Subscriptions/s/$Transfer/$DeadLetterQueue",
        ),
        ({"connectionString": f"{WHERE};EntityPath=from-the-string"}, "from-the-string"),
    ],
)
def test_the_address_is_made_of_the_entity_and_its_sub_queue(given: dict[str, str], address: str) -> None:
    assert parse(**given).address == address


def test_the_names_of_options_have_no_case() -> None:
    given = {"CONNECTIONSTRING": WHERE, "Queue": "q", "numpartitions": "7", "subQUEUE": "DEADLETTER"}
    options = Options.parse(given, use="read")
    assert (options.num_partitions, options.sub_queue) == (7, "deadLetter")


@pytest.mark.parametrize(
    ("mode", "messages", "size"),
    [("claim", 100_000, 256 << 20), ("peek", 100_000, None), ("receiveAndDelete", 10_000, None)],
)
def test_the_default_limits_of_a_micro_batch_follow_the_mode(mode: str, messages: int, size: int | None) -> None:
    options = Options.parse({"connectionString": WHERE, "queue": "q", "mode": mode}, use="readStream")
    assert (options.max_messages_per_trigger, options.max_bytes_per_trigger) == (messages, size)


def test_the_default_of_the_mode_follows_the_use() -> None:
    assert parse("read", queue="q").mode == "peek"
    assert parse("readStream", queue="q").mode == "claim"


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("maxBytesPerTrigger", "1000", "max_bytes_per_trigger", 1000),
        ("maxBytesPerTrigger", "16m", "max_bytes_per_trigger", 16 << 20),
        ("maxBytesPerTrigger", "2 kb", "max_bytes_per_trigger", 2048),
        ("maxWait", "500ms", "max_wait_s", 0.5),
        ("maxWait", "2 minutes", "max_wait_s", 120.0),
        ("pollInterval", "1s", "poll_interval_s", 1.0),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("applicationProperties", "JSON", "application_properties", "json"),
        ("maxMessagesPerTrigger", "5", "max_messages_per_trigger", 5),
    ],
)
def test_a_value_is_read_in_its_own_way(option: str, text: str, field: str, value: object) -> None:
    assert getattr(parse("readStream", queue="q", **{option: text}), field) == value


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:00:02.5", 2500),
        ("1234567890123", 1234567890123),
    ],
)
def test_a_moment_is_in_utc_unless_it_names_a_zone(text: str, ms: int) -> None:
    assert parse(queue="q", startingEnqueuedTime=text).starting_enqueued_time_ms == ms


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("numPartitions", "0"),
        ("numPartitions", "many"),
        ("startingSequenceNumber", "-1"),
        ("endingSequenceNumber", str(1 << 63)),
        ("startingEnqueuedTime", "yesterday"),
        ("maxBytesPerTrigger", "10 parsecs"),
        ("maxBytesPerTrigger", "0"),
        ("maxWait", "-1s"),
        ("maxWait", "5"),
        ("pollInterval", "1ms"),
        ("failOnDataLoss", "perhaps"),
        ("subQueue", "archive"),
        ("mode", "take"),
        ("queue", "  "),
        ("queue", "q/$DeadLetterQueue"),
        ("applicationProperties", "xml"),
        ("onBadMessage", "shrug"),
        ("onBadMessage", "path:"),
    ],
)
def test_an_error_names_the_option_its_value_and_the_rule(option: str, text: str) -> None:
    rule = next(each.rule for each in OPTIONS.values() if each.name == option)
    with pytest.raises(OptionError) as error:
        check({option.lower(): text})
    assert str(error.value) == f"option '{option}' is '{text}', but must be {rule}"


def test_an_unknown_option_comes_with_the_one_that_was_meant() -> None:
    with pytest.raises(OptionError, match="'maxMesagesPerTrigger' is not known; did you mean 'maxMessagesPerTrigger'"):
        check({"maxMesagesPerTrigger": "5"})
    with pytest.raises(OptionError, match="'colour' is not known; use one of connectionString, queue"):
        check({"colour": "red"})


def test_options_of_spark_itself_are_passed_over() -> None:
    check({"path": "/x", "checkpointlocation": "/y", "queryName": "q", "spark.sql.thing": "1", "__internal": "z"})


@pytest.mark.parametrize(
    ("use", "given", "problem"),
    [
        ("read", {"connectionString": None, "queue": "q"}, "'connectionString' is required"),
        ("read", {}, "'queue' or 'topic' is required"),
        ("read", {"queue": "q", "topic": "t", "subscription": "s"}, "'queue' cannot be combined"),
        ("read", {"topic": "t"}, "'topic' requires 'subscription'"),
        ("read", {"subscription": "s"}, "'subscription' requires 'topic'"),
        ("read", {"queue": "q", "mode": "claim"}, "'mode' is 'claim', but for read it must be peek"),
        ("read", {"queue": "q", "maxWait": "5s"}, "'maxWait' is not for read; it is for readStream"),
        ("write", {"queue": "q", "mode": "peek"}, "'mode' is not for write; it is for read and readStream"),
        ("write", {"topic": "t", "subscription": "s"}, "'subscription' is not for write"),
        ("read", {"queue": "q", "startingSequenceNumber": 9, "endingSequenceNumber": 8}, "'endingSequenceNumber' is 8"),
        ("readStream", {"queue": "q", "startingSequenceNumber": 9}, "'startingSequenceNumber' is for mode=peek only"),
        ("readStream", {"queue": "q", "mode": "peek", "claimName": "n"}, "'claimName' is for mode=claim only"),
        ("readStream", {"queue": "q", "mode": "peek", "maxBytesPerTrigger": 9}, "'maxBytesPerTrigger' is not for mode"),
        ("read", {"queue": "q", "onBadMessage": "drop"}, "for read it must be fail or raw"),
        ("write", {"queue": "q", "onBadMessage": "raw"}, "for write it must be fail or drop or path:<folder>"),
    ],
)
def test_options_that_do_not_go_together_are_named(use: Use, given: dict[str, object], problem: str) -> None:
    with pytest.raises(OptionError, match=problem.replace("(", "\\(")):
        parse(use, **given)


def test_a_writer_may_leave_the_entity_to_the_rows() -> None:
    options = parse("write")
    assert options.entity is None
    assert parse("write", topic="t").address == "t"
    assert parse("write", queue="q", onBadMessage="path:/bad").on_bad_message == "path:/bad"


def test_the_key_is_in_no_representation() -> None:
    options = parse(queue="q")
    assert KEY not in repr(options)
    assert KEY not in str(options)


@pytest.mark.parametrize(
    "wrong",
    [
        f"Endpoint=sb://localhost;SharedAccessKeyName=Root;SharedAccessKey={KEY};Colour=red",
        f"SharedAccessKeyName=Root;SharedAccessKey={KEY}",
        f"Endpoint=sb://localhost:port;SharedAccessKeyName=Root;SharedAccessKey={KEY}",
        f"amqp://user:{KEY}@localhost:port",
        f"SharedAccessKey={KEY}",
    ],
)
def test_the_key_is_in_no_error(wrong: str) -> None:
    with pytest.raises(OptionError, match="option 'connectionString' must be") as error:
        check({"connectionString": wrong})
    assert KEY not in str(error.value)


def test_any_secret_is_redacted_from_text() -> None:
    signature = "SharedAccessSignature sr=x&sig=abc%3d&se=1"
    for string, secret in (
        (WHERE, KEY),
        (f"Endpoint=sb://h;SharedAccessSignature={signature}", signature),
        ("amqp://me:pass-word@host", "pass-word"),
    ):
        assert redact(f"before {secret} after", string) == "before *** after"


def test_options_go_to_other_processes() -> None:
    options = parse("readStream", queue="q", maxWait="3s")
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_table_has_every_option_once() -> None:
    rows = list(table())
    assert [row[0] for row in rows] == [option.name for option in OPTIONS.values()]
    assert all(all(cell for cell in row) for row in rows)
    assert {row[0]: row[2] for row in rows}["numPartitions"] == "`4`"
