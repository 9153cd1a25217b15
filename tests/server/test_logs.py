"""Logs: one line per event, with any content, and no secrets."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peeklock.server.logs import FloodFilter, LogfmtFormatter, configure_logging, event, redact
from raw_client import eventually

SIGNATURE = "abcDEF123%2Bxyz%3D"
KEY = "c2VjcmV0LWtleS12YWx1ZQ+/=="


def formatted(name: str, *, exc: BaseException | None = None, **fields: object) -> str:
    """Return the line of an event, without its time."""
    exc_info = (type(exc), exc, exc.__traceback__) if exc else None
    record = logging.LogRecord("peeklock.server", logging.INFO, "", 0, name, (), exc_info)
    record.fields = fields
    line = LogfmtFormatter().format(record)
    assert "\n" not in line
    return line.partition(" ")[2]


@pytest.fixture
def clean_logging() -> Iterator[None]:
    """Restore the loggers after the test."""
    root, own = logging.getLogger(), logging.getLogger("peeklock")
    handlers, levels = list(root.handlers), (root.level, own.level)
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


def test_an_event_is_a_line_with_time_level_logger_name_and_fields() -> None:
    record = logging.LogRecord("peeklock.server", logging.INFO, "", 0, "listening", (), None)
    record.created = 1767225600.0074
    record.fields = {"host": "127.0.0.1", "port": 5672}
    expected = "2026-01-01T00:00:00.007Z INFO  peeklock.server listening host=127.0.0.1 port=5672"
    assert LogfmtFormatter().format(record) == expected


def test_a_time_just_before_midnight_does_not_round_into_the_next_day() -> None:
    record = logging.LogRecord("peeklock", logging.INFO, "", 0, "x", (), None)
    record.created = 1767225599.9999
    assert LogfmtFormatter().format(record).startswith("2025-12-31T23:59:59.999Z ")


@pytest.mark.parametrize(
    ("level", "shown"),
    [(10, "DEBUG"), (20, "INFO "), (30, "WARN "), (40, "ERROR"), (50, "FATAL"), (35, "Level 35")],
)
def test_levels_are_aligned(level: int, shown: str) -> None:
    record = logging.LogRecord("peeklock", level, "", 0, "x", (), None)
    assert f"Z {shown} peeklock x" in LogfmtFormatter().format(record)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("orders/eu-1.x~y", "orders/eu-1.x~y"),
        ("two words", '"two words"'),
        ("", '""'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("line\nbreak\r\t", r'"line\nbreak\r\t"'),
        ("\x1b[31mred", r'"\x1b[31mred"'),
        ("a\u2028b", r'"a\u2028b"'),
        ("\U000e0001", r'"\U000e0001"'),
        ("é", "é"),
        (None, "null"),
        (True, "true"),
        (0, "0"),
        (1.5, "1.5"),
    ],
)
def test_a_value_is_bare_or_quoted_with_escapes(value: object, shown: str) -> None:
    assert formatted("x", value=value).endswith(f" x value={shown}")


@given(st.text(), st.text(), st.text())
def test_any_text_stays_on_one_printable_line(name: str, key: str, value: str) -> None:
    assert formatted(name.replace("%", ""), **{key: value}).isprintable()


def test_an_exception_is_folded_into_the_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line = formatted("failed", entity="q", exc=error)
    assert 'failed entity=q exc="Traceback (most recent call last):\\n' in line
    assert line.endswith('ValueError: two\\nlines"')


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (
            f"SharedAccessSignature sr=sb%3A%2F%2Fh%2Fq&sig={SIGNATURE}&se=17&skn=n",
            "SharedAccessSignature sr=sb%3A%2F%2Fh%2Fq&sig=***&se=17&skn=n",
        ),
        (
            f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={KEY};EntityPath=q",
            "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=***;EntityPath=q",
        ),
        (f"sharedaccesskey={KEY}", "sharedaccesskey=***"),
        (f"SIG={SIGNATURE}", "SIG=***"),
        (f"?sig%3D{SIGNATURE}", "?sig%3D***"),
        (f'{{"PrimaryKey": "{KEY}", "n": 1}}', '{"PrimaryKey": *** "n": 1}'),
        ("design=good signature=none", "design=good signature=none"),
        ("SharedAccessKeyName=RootManageSharedAccessKey", "SharedAccessKeyName=RootManageSharedAccessKey"),
    ],
)
def test_keys_and_signatures_are_masked_and_nothing_else(text: str, masked: str) -> None:
    assert redact(text) == masked


def test_secrets_are_masked_wherever_they_turn_up() -> None:
    secret = f"SharedAccessKey={KEY}"
    try:
        raise ValueError(secret)
    except ValueError as error:
        line = formatted(f"message {secret}", exc=error, field=secret, key=KEY, token="t-secret")
    assert KEY not in line
    assert "t-secret" not in line
    assert line.count("***") >= 5


@pytest.mark.usefixtures("clean_logging")
def test_events_go_to_standard_error_from_the_level_on(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("info")
    logger = logging.getLogger("peeklock.test")
    event(logger, logging.DEBUG, "quiet")
    event(logger, logging.INFO, "heard", name="a b", level=1, logger="l")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO  peeklock\.test heard name=\"a b\" level=1 logger=l",
        line,
    )


@pytest.mark.usefixtures("clean_logging")
def test_an_exception_of_an_event_is_logged_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("error")
    logger = logging.getLogger("peeklock.test")
    try:
        raise KeyError("gone")
    except KeyError as error:
        event(logger, logging.ERROR, "failed", exc=error)
    event(logger, logging.ERROR, "failed", exc="only text")
    first, second = capsys.readouterr().err.splitlines()
    assert "Traceback" in first
    assert first.endswith("KeyError: 'gone'\"")
    assert second.endswith('failed exc="only text"')


@pytest.mark.usefixtures("clean_logging")
def test_configuring_twice_does_not_log_twice(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    configure_logging("DEBUG")
    event(logging.getLogger("peeklock.test"), logging.DEBUG, "once")
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("clean_logging")
def test_lines_of_libraries_and_warnings_have_the_same_form(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging("debug")
    logging.getLogger("some.library").info("about itself")
    logging.getLogger("some.library").warning("worth %s", "knowing")
    warnings.warn_explicit("old\nthing", DeprecationWarning, "f.py", 1, source=sys)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("WARN  some.library worth knowing")
    assert "py.warnings" in lines[1]


def test_a_level_that_does_not_exist_is_refused() -> None:
    message = "the log level 'loud' is unknown: it must be one of debug, info, warning, error"
    with pytest.raises(ValueError, match=message):
        configure_logging("loud")


# --- floods ---


def flooding(most: int, seconds: float = 60.0) -> tuple[logging.Logger, list[logging.LogRecord]]:
    """Return a logger with a flood filter, and the list of records that pass it."""
    written: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = written.append  # type: ignore[method-assign]
    handler.addFilter(FloodFilter(most, seconds))
    logger = logging.getLogger(f"flooded.{id(written)}")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    return logger, written


def test_equal_lines_caused_by_clients_are_limited() -> None:
    logger, written = flooding(3)
    for port in range(10):
        event(logger, logging.WARNING, "refused", peer=f"10.0.0.1:{port}")
    assert len(written) == 3
    event(logger, logging.WARNING, "refused", peer="10.0.0.2:1")
    event(logger, logging.WARNING, "dropped", peer="10.0.0.1:1")
    assert len(written) == 5


def test_debug_lines_are_not_limited() -> None:
    logger, written = flooding(3)
    logger.setLevel(logging.DEBUG)
    for _ in range(10):
        event(logger, logging.DEBUG, "<- transfer", peer="10.0.0.1:1")
    assert len(written) == 10


def test_lines_without_a_client_are_not_limited() -> None:
    logger, written = flooding(3)
    for number in range(10):
        event(logger, logging.INFO, "queue created", entity=f"q{number}", by="somebody")
    assert len(written) == 10


def test_the_number_of_omitted_lines_is_logged_and_the_count_begins_again() -> None:
    logger, written = flooding(3, seconds=0.05)
    for port in range(10):
        event(logger, logging.WARNING, "refused", peer=f"10.0.0.1:{port}")
    eventually(lambda: len(written) == 4)
    assert written[-1].getMessage() == "refused: further lines were omitted"
    assert written[-1].fields == {"address": "10.0.0.1", "lines": 7}  # type: ignore[attr-defined]
    event(logger, logging.WARNING, "refused", peer="10.0.0.1:1")
    assert len(written) == 5


def test_rare_lines_are_never_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.server.logs.time", SimpleNamespace(monotonic=count(step=2).__next__))
    logger, written = flooding(1, seconds=1.0)
    for _ in range(5):
        event(logger, logging.WARNING, "refused", peer="10.0.0.1:1")
    assert len(written) == 5


def test_lines_of_very_many_addresses_share_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.server.logs._MAX_KINDS", 5)
    logger, written = flooding(2)
    for number in range(20):
        event(logger, logging.WARNING, "refused", peer=f"10.0.0.{number}:1")
    assert len(written) == 5 + 2
