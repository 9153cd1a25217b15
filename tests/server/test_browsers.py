"""The accepted values of `Host` and `Origin`: programs can connect, web pages cannot."""

from __future__ import annotations

import pytest

from peeklock.server.browsers import BrowserGuard, is_own_machine

LOCAL = BrowserGuard("127.0.0.1")
OPEN = BrowserGuard("0.0.0.0")
KNOWN_KEY = BrowserGuard("0.0.0.0", insecure_default_key=True)
NAMED = BrowserGuard("0.0.0.0", allowed_hosts=["Bus.Example.com"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:5672", "localhost.:80", "127.0.0.1", "127.0.0.1:5672", "127.9.9.9", "[::1]", "[::1]:5672"],
)
@pytest.mark.parametrize("guard", [LOCAL, OPEN, KNOWN_KEY, NAMED], ids=["local", "open", "known-key", "named"])
def test_the_names_of_loopback_are_always_accepted(guard: BrowserGuard, host: str) -> None:
    assert guard.refusal(host, None) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:5672",
        "here",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "192.0.2.7",
        "0.0.0.0",
        "",
        ":5672",
        "user@localhost",
        "localhost/x",
        "localhost#",
        "localhost:x",
        "localhost:99999",
        "local\thost",
        "[::1",
    ],
)
def test_on_loopback_any_other_host_is_refused(host: str) -> None:
    assert LOCAL.refusal(host, None) is not None


def test_a_refusal_names_the_host_and_the_option() -> None:
    assert LOCAL.refusal("bus.internal:5672", None) == (
        "The host name 'bus.internal:5672' is not allowed: add it with --allowed-host."
    )


def test_a_configured_name_is_accepted_in_any_case_and_with_any_port() -> None:
    guard = BrowserGuard("127.0.0.1", allowed_hosts=["Bus.Example.com"])
    assert guard.refusal("bus.example.COM:443", None) is None
    assert guard.refusal("other.example.com", None) is not None
    assert BrowserGuard("127.0.0.1", allowed_hosts=["*"]).refusal("other.example.com", None) is None


@pytest.mark.parametrize(
    "host", ["peeklock", "peeklock.default.svc.cluster.local:5672", "192.0.2.7", "[2001:db8::1]:80"]
)
def test_a_broker_on_a_network_accepts_names_and_addresses(host: str) -> None:
    assert OPEN.refusal(host, None) is None


def test_with_the_well_known_key_on_a_network_names_with_a_dot_must_be_configured() -> None:
    assert KNOWN_KEY.refusal("emulator:5672", None) is None
    assert KNOWN_KEY.refusal("192.0.2.7:5672", None) is None
    assert KNOWN_KEY.refusal("evil.example:5672", None) is not None


def test_with_configured_names_a_broker_on_a_network_accepts_only_these_and_addresses() -> None:
    assert NAMED.refusal("bus.example.com", None) is None
    assert NAMED.refusal("192.0.2.7", None) is None
    assert NAMED.refusal("peeklock", None) is not None
    assert BrowserGuard("bus.local", allowed_hosts=["other"]).refusal("bus.local:80", None) is None


def test_a_request_of_an_old_client_without_a_host_is_accepted() -> None:
    assert LOCAL.refusal(None, None) is None


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:5672", "http://127.0.0.1:5672"),
        ("localhost:5672", "https://LOCALHOST:5672"),
        ("[::1]:5672", "http://[::1]:5672"),
        ("localhost", "http://localhost"),
        ("localhost", "https://localhost:443"),
        ("localhost:443", "https://localhost"),
    ],
)
def test_the_origin_of_the_address_connected_to_is_accepted(host: str, origin: str) -> None:
    assert LOCAL.refusal(host, origin) is None


@pytest.mark.parametrize("guard", [LOCAL, OPEN, KNOWN_KEY, NAMED], ids=["local", "open", "known-key", "named"])
@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1",
        "http://127.0.0.1:5672.evil.example",
        "http://127.0.0.1:5672@evil.example",
        "file://",
        "null",
        "",
        "http://[",
        "http://localhost:x",
        "chrome-extension://127.0.0.1:5672",
    ],
)
def test_any_other_origin_is_refused(guard: BrowserGuard, origin: str) -> None:
    assert guard.refusal("127.0.0.1:5672", origin) is not None


def test_a_configured_origin_is_accepted() -> None:
    guard = BrowserGuard("127.0.0.1", allowed_origins=["https://App.example/", "http://localhost:3000"])
    assert guard.refusal("localhost:5672", "https://app.example") is None
    assert guard.refusal("localhost:5672", "http://localhost:3000") is None
    assert guard.refusal("localhost:5672", "http://app.example") is not None
    assert guard.refusal("evil.example", "https://app.example") is not None
    assert BrowserGuard("127.0.0.1", allowed_origins=["*"]).refusal("localhost", "null") is None


def test_a_missing_host_and_names_of_loopback_are_the_own_machine() -> None:
    assert is_own_machine("localhost:5672")
    assert is_own_machine(None)
    assert not is_own_machine("evil.example:5672")
    assert not is_own_machine("[::1")
