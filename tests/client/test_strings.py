"""Addresses of both kinds, and what is wrong with bad ones."""

from __future__ import annotations

import pytest

from peeklock.client import Endpoint, parse_endpoint

KEYS = "SharedAccessKeyName=Root;SharedAccessKey=abc/d+e="


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("amqp://localhost", Endpoint(host="localhost", port=5672, tls=False)),
        ("amqps://broker.example", Endpoint(host="broker.example", port=5671, tls=True)),
        ("AMQP://127.0.0.1:15672", Endpoint(host="127.0.0.1", port=15672, tls=False)),
        ("amqp://[::1]:5000", Endpoint(host="::1", port=5000, tls=False)),
        (
            "amqp://us%40er:pass%20word@h:1/my/queue",
            Endpoint(host="h", port=1, tls=False, user="us@er", password="pass word", entity_path="my/queue"),
        ),
        (
            f"Endpoint=sb://ns.example/;{KEYS}",
            Endpoint(host="ns.example", port=5671, tls=True, key_name="Root", key="abc/d+e="),
        ),
        (
            f"endpoint=sb://localhost; {KEYS} ;USEDEVELOPMENTEMULATOR=True;",
            Endpoint(host="localhost", port=5672, tls=False, key_name="Root", key="abc/d+e="),
        ),
        (
            f"Endpoint=sb://127.0.0.1:5000;{KEYS};UseDevelopmentEmulator=true;EntityPath=q/1",
            Endpoint(host="127.0.0.1", port=5000, tls=False, key_name="Root", key="abc/d+e=", entity_path="q/1"),
        ),
        (
            "Endpoint=sb://ns/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y%3d&se=1",
            Endpoint(host="ns", port=5671, tls=True, token="SharedAccessSignature sr=x&sig=y%3d&se=1"),
        ),
        ("HostName=ns.example", Endpoint(host="ns.example", port=5671, tls=True)),
    ],
)
def test_an_address_is_read(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected a URL"),
        ("localhost:5672", "expected a URL"),
        ("amqp://", "the URL has no host"),
        ("amqp://h:99999", "port that is not a number"),
        ("amqp://h:port", "port that is not a number"),
        (KEYS, "no Endpoint"),
        ("Endpoint=sb://h;Colour=blue", "unknown part 'Colour'"),
        ("Endpoint=sb://h;junk", "unknown part 'junk'"),
        ("Endpoint=sb://h;Endpoint=sb://i", "Endpoint twice"),
        ("Endpoint=sb://h;SharedAccessKey=x", "belong together"),
        ("Endpoint=sb://h;UseDevelopmentEmulator=perhaps", "must be true or false, not 'perhaps'"),
        ("Endpoint=sb:///", "no host"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_endpoint(text)


def test_secrets_do_not_show() -> None:
    text = repr(parse_endpoint("amqp://user:hush@h")) + repr(parse_endpoint(f"Endpoint=sb://h;{KEYS}"))
    assert "hush" not in text
    assert "abc/d" not in text
