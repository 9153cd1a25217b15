"""Every limit is declared in `peeklock.limits`, and the page of limits has them all."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

from peeklock.limits import amqp, broker, http, server
from peeklock.limits.server import Limits, configured_limits
from peeklock.server.config_reference import page
from peeklock.server.limits_reference import TABLES, limits_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "limits.md"
MODULES = (amqp, broker, http, server)
ELSEWHERE = {
    "amqp": "decoding of what no client sends",
    "client": "the client's own",
    "cli": "the command line's own",
    "store": "the disk format's",
}
"""Packages whose constants are no limits of the broker."""
INTERNAL = {
    "ABANDONED_MS": "of the pipelines",
    "ALIKE_MS": "lines of the log",
    "ALIKE_SECONDS": "lines of the log",
    "AT_ONCE_MS": "a default of a request",
    "BUSY_RETRY_MS": "housekeeping",
    "CACHE_SECONDS": "of the health check",
    "CHECK_EVERY_MS": "housekeeping",
    "CHECK_SECONDS": "of replicated nodes",
    "CLAIM_RETRY_MS": "housekeeping",
    "CLOSING_SECONDS": "of replicated nodes",
    "CONNECT_SECONDS": "of replicated nodes",
    "COUNTED_SECONDS": "of replicated nodes",
    "DEFAULT_TIMEOUT_MS": "a default of a request",
    "DEFAULT_WAIT_MS": "a default of a request",
    "EXPIRY_GRACE_MS": "added to the life of a token",
    "HTTP_GRACE_MS": "added to the life of a token",
    "INTERVAL_MS": "housekeeping",
    "KEEP_MS": "of the pipelines",
    "LEAST_LEASE_SECONDS": "the least value of an option",
    "LOGIN_WINDOW_MS": "the minute of `max_failed_logins`",
    "LONG_MS": "housekeeping",
    "MAX_ALIKE": "lines of the log",
    "MAX_BATCH_SIZE": "the name of a property",
    "MAX_BYTES": "of the data source",
    "MAX_CANCELLED": "housekeeping",
    "MAX_COUNT": "of numbers in the configuration file",
    "MAX_DELIVERY_COUNT": "a setting",
    "MAX_DESCRIPTION": "the length of a text that the broker writes",
    "MAX_DURATION_MS": "the service's value for no limit",
    "MAX_DURATION_TEXT": "the service's value for no limit",
    "MAX_IDLE_RULES": "housekeeping",
    "MAX_INTEGER": "of the language of rules",
    "MAX_IN_FLIGHT": "of the data source",
    "MAX_IN_FLIGHT_BYTES": "of the data source",
    "MAX_MESSAGE_SIZE": "a setting",
    "MAX_NAMED": "lines of the log",
    "MAX_NUMBER": "of a protocol",
    "MAX_PROBE_MESSAGES": "of the health check",
    "MAX_REMEMBERED": "of the data source",
    "MAX_RETURNS": "housekeeping",
    "MAX_SHOWN": "lines of the log",
    "MAX_SIZE": "a setting",
    "MAX_SKIP": "of a protocol",
    "MAX_UNDER_WAY": "housekeeping",
    "MIN_IDLE_TIME_OUT_MS": "the least value of a protocol",
    "POLL_SECONDS": "of replicated nodes",
    "RELEASE_SECONDS": "of replicated nodes",
    "RETRY_MS": "housekeeping",
    "RETRY_SECONDS": "of replicated nodes",
    "SESSIONS_GONE_SECONDS": "of replicated nodes",
    "TICK_SECONDS": "of replicated nodes",
    "TIDY_MS": "housekeeping",
    "TIMEOUT_SECONDS": "of the health check",
}
"""Public constants with such a name that no client meets as a limit."""

LIMIT = re.compile(r"^(MAX_[A-Z_]+|[A-Z][A-Z_]*_(?:MS|SECONDS)|CHANNEL_MAX|HANDLE_MAX)\b.*=", re.MULTILINE)
"""A declaration of a constant with the name of a limit."""


def names(module: ModuleType) -> set[str]:
    if module is server:
        return set(Limits.__dataclass_fields__)
    return {name for name in vars(module) if name.isupper() and name not in ("KIB", "MIB")}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_limit_says_what_it_bounds_and_what_happens_beyond_it(module: ModuleType) -> None:
    assert {limit.name for limit in limits_of(module)} == names(module)


def test_the_tables_in_the_documentation_are_those_of_the_code() -> None:
    """If not: python -m peeklock.server.config_reference docs/limits.md"""
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall("<!-- made: (.*?) -->", text) == list(TABLES)
    assert page(text) == text


def test_a_limit_that_the_file_sets_is_shown_with_its_key() -> None:
    keys = {limit.name: limit.set_by for limit in limits_of(server)}
    assert {name: keys[name] for name in configured_limits()} == {
        name: f"`{configured.key}`" for name, configured in configured_limits().items()
    }


def test_a_declaration_without_its_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "some.py"
    path.write_text('MAX_THINGS = 3\n"""Things of a thing."""\n')
    module = ModuleType("some")
    module.__file__ = str(path)
    with pytest.raises(ValueError, match="MAX_THINGS: the docstring must say what happens beyond"):
        list(limits_of(module))


def test_no_limit_is_declared_elsewhere() -> None:
    source = ROOT / "src" / "peeklock"
    found = {
        name
        for path in source.rglob("*.py")
        if path.relative_to(source).parts[0] not in {"limits", *ELSEWHERE}
        for name in LIMIT.findall(path.read_text("utf-8"))
    }
    assert found - set(INTERNAL) == set()
