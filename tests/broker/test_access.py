"""Shared access: tokens as each SDK writes them, what they cover, and the errors for invalid tokens."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote, quote_plus

import pytest

from peeklock.amqp.errors import Condition
from peeklock.broker.access import Grant, Grants, Keys, resource_path
from peeklock.broker.errors import InvalidToken, QuotaExceeded, Unauthorized
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.limits.broker import MAX_TOKENS

NOW = 1_800_000_000_000
LATER = NOW // 1000 + 3600
ROOT = AuthorizationRule(
    name="Root", primary_key="root+key/with=signs", secondary_key="second", rights=frozenset({Right.MANAGE})
)
SENDER = AuthorizationRule(name="sender", primary_key="sender-key", rights=frozenset({Right.SEND}))
LISTENER = AuthorizationRule(name="listener", primary_key="listener-key", rights=frozenset({Right.LISTEN}))


@pytest.fixture
def keys() -> Keys:
    keys = Keys()
    keys.set("", (ROOT,))
    keys.set("Orders", (SENDER, LISTENER))
    return keys


def signature(sr: str, se: str, key: str) -> str:
    digest = hmac.digest(key.encode(), f"{sr}\n{se}".encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def token(
    uri: str,
    rule: AuthorizationRule = ROOT,
    *,
    key: str | None = None,
    expiry: int | str = LATER,
    encode: Callable[[str], str] = quote_plus,
    encode_sig: Callable[[str], str] = quote_plus,
    encode_name: Callable[[str], str] = quote_plus,
    order: str = "sr sig se skn",
) -> str:
    sr = encode(uri)
    sig = encode_sig(signature(sr, str(expiry), key or rule.primary_key))
    fields = {"sr": sr, "sig": sig, "se": str(expiry), "skn": encode_name(rule.name)}
    return "SharedAccessSignature " + "&".join(f"{name}={fields[name]}" for name in order.split())


def refusal(keys: Keys, text: str, audience: str = "sb://host/orders", now: int = NOW) -> str:
    with pytest.raises(InvalidToken) as refused:
        keys.verify(text, audience, now)
    assert refused.value.condition == Condition.AUTH_FAILED
    assert refused.value.status == 401
    return str(refused.value)


# --- as the SDKs write them ---


def lower_hex(uri: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quote(uri, safe=""))


SPELLINGS: dict[str, tuple[str, str]] = {
    # audience, token
    "python": ("sb://host:5672/orders", token("sb://host:5672/orders", encode=quote_plus)),
    "javascript": (
        "sb://host:5672/orders",
        token("sb://host:5672/orders", encode=lambda uri: quote(uri, safe="!'()*")),
    ),
    "javascript-management": (
        "sb://host:5672/orders/$management",
        token("sb://host:5672/orders/$management", encode=lambda uri: quote(uri, safe="!'()*")),
    ),
    "dotnet": ("amqps://host/orders", token("amqps://host/orders", encode=lower_hex, encode_sig=lower_hex)),
    "go": (
        "amqps://host/Orders",
        token("amqps://host/orders", encode=lower_hex, encode_name=str, order="sr sig se skn"),
    ),
    "java": ("amqp://host/orders", token("amqp://host/orders", encode=quote_plus, order="sr sig se skn")),
    "not-encoded": ("sb://host/orders", token("sb://host/orders", encode=str, encode_sig=str)),
    "other-order": ("sb://host/orders", token("sb://host/orders", order="skn se sr sig")),
    "whole-namespace": ("sb://host/orders", token("sb://host:5672/")),
    "whole-namespace-without-slash": ("amqps://host/orders", token("sb://host")),
    "other-scheme-and-port": ("amqps://host:5671/orders", token("sb://elsewhere:1234/orders")),
    "trailing-slash": ("sb://host/orders/", token("sb://host/orders/")),
    "other-case": ("sb://HOST/ORDERS", token("sb://host/orders")),
    "path-only": ("orders", token("orders")),
    "port-zero-padded-expiry": ("sb://host/orders", token("sb://host/orders", expiry=f"00{LATER}")),
}


@pytest.mark.parametrize("sdk", SPELLINGS)
def test_a_token_is_accepted_in_every_spelling(keys: Keys, sdk: str) -> None:
    audience, text = SPELLINGS[sdk]
    grant = keys.verify(text, audience, NOW)
    assert grant.path == resource_path(audience)
    assert grant.rights >= {Right.SEND, Right.LISTEN, Right.MANAGE}
    assert grant.expires_at == LATER * 1000
    assert grant.owner == ""


def test_the_signature_covers_the_transmitted_text(keys: Keys) -> None:
    text = token("sb://host/orders", encode=lower_hex)
    assert "%3a" in text
    keys.verify(text, "sb://host/orders", NOW)
    assert "signature" in refusal(keys, text.replace("%3a", "%3A"))


@pytest.mark.parametrize("encode", [quote_plus, lower_hex, str])
def test_a_plus_in_the_signature_survives_every_encoding(keys: Keys, encode: Callable[[str], str]) -> None:
    found = next(
        expiry for expiry in range(LATER, LATER + 1000) if "+" in signature("orders", str(expiry), ROOT.primary_key)
    )
    keys.verify(token("orders", expiry=found, encode_sig=encode), "orders", NOW)


def test_the_secondary_key_is_as_good_as_the_primary(keys: Keys) -> None:
    assert keys.verify(token("orders", key="second"), "orders", NOW).rights == ROOT.rights


def test_a_rule_name_with_signs_may_be_escaped_or_not(keys: Keys) -> None:
    rule = AuthorizationRule(name="read-only.rule_1", primary_key="k", rights=frozenset({Right.LISTEN}))
    keys.set("", (rule,))
    for encode in (quote_plus, str, lambda name: name.replace("-", "%2d").replace(".", "%2E")):
        keys.verify(token("orders", rule, encode_name=encode), "orders", NOW)


# --- whose rule it is ---


def test_an_entity_s_own_rule_gives_its_rights_there(keys: Keys) -> None:
    grant = keys.verify(token("sb://host/orders", SENDER), "sb://host/orders", NOW)
    assert (grant.owner, grant.rights) == ("orders", frozenset({Right.SEND}))


def test_an_entity_s_rule_is_unknown_elsewhere(keys: Keys) -> None:
    assert "signature" in refusal(keys, token("sb://host/other", SENDER), "sb://host/other")
    assert "signature" in refusal(keys, token("sb://host/", SENDER), "sb://host/")


def test_an_entitys_own_rule_precedes_one_of_the_namespace_with_the_same_name(keys: Keys) -> None:
    keys.set("", (ROOT, AuthorizationRule(name="sender", primary_key="other", rights=frozenset({Right.LISTEN}))))
    assert keys.verify(token("orders", SENDER), "orders", NOW).rights == {Right.SEND}
    assert keys.verify(token("orders", SENDER, key="other"), "orders", NOW).rights == {Right.LISTEN}


def test_a_removed_rule_is_unknown(keys: Keys) -> None:
    keys.set("orders", ())
    assert "signature" in refusal(keys, token("orders", SENDER), "orders")


# --- what does not hold ---


def test_a_token_for_another_resource_is_refused(keys: Keys) -> None:
    for scope in ("sb://host/other", "sb://host/order", "sb://host/orders2", "sb://host/orders/in"):
        assert "another resource" in refusal(keys, token(scope))


def test_a_wrong_key_is_refused(keys: Keys) -> None:
    assert "signature" in refusal(keys, token("orders", key="guessed"), "orders")


def test_an_unknown_rule_is_refused_in_the_same_words(keys: Keys) -> None:
    unknown = AuthorizationRule(name="nobody", primary_key="k", rights=frozenset({Right.SEND}))
    assert refusal(keys, token("orders", unknown), "orders") == refusal(keys, token("orders", key="guessed"), "orders")


@pytest.mark.parametrize("seconds", [0, -1, -3600])
def test_an_expired_token_is_refused(keys: Keys, seconds: int) -> None:
    assert "expired" in refusal(keys, token("orders", expiry=NOW // 1000 + seconds), "orders")


def test_a_token_holds_until_its_second(keys: Keys) -> None:
    text = token("orders", expiry=NOW // 1000 + 1)
    keys.verify(text, "orders", NOW + 999)
    assert "expired" in refusal(keys, text, "orders", NOW + 1000)


def test_the_error_for_an_expired_token_has_its_expiry(keys: Keys) -> None:
    said = refusal(keys, token("orders", expiry=1_700_000_000), "orders")
    assert said == "The token has expired: it was valid until 2023-11-14T22:13:20Z."


def test_a_grace_period_extends_a_token(keys: Keys) -> None:
    text = token("orders", expiry=NOW // 1000)
    keys.verify(text, "orders", NOW + 59_999, 60_000)
    with pytest.raises(InvalidToken, match="expired"):
        keys.verify(text, "orders", NOW + 60_000, 60_000)


def test_a_changed_expiry_breaks_the_signature(keys: Keys) -> None:
    assert "signature" in refusal(keys, token("orders").replace(f"se={LATER}", f"se={LATER + 1}"), "orders")


@pytest.mark.parametrize("name", ["sr", "sig", "se", "skn"])
def test_a_token_without_one_of_its_parts_is_refused(keys: Keys, name: str) -> None:
    parts = token("orders").removeprefix("SharedAccessSignature ").split("&")
    rest = "&".join(part for part in parts if not part.startswith(f"{name}="))
    assert f"'{name}'" in refusal(keys, f"SharedAccessSignature {rest}", "orders")
    assert f"'{name}'" in refusal(keys, f"SharedAccessSignature {rest}&{name}=", "orders")


@pytest.mark.parametrize("expiry", ["soon", "-1", "1e9", "1.5", "٣", "9" * 16, " 1"])
def test_an_expiry_that_is_no_number_is_refused(keys: Keys, expiry: str) -> None:
    assert "'se'" in refusal(keys, token("orders", expiry=expiry), "orders")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SharedAccessSignature",
        "SharedAccessSignature ",
        "SharedAccessSignature &&&===",
        "Bearer x",
        "sr=a&sig=b",
        "\0",
    ],
)
def test_a_malformed_token_is_refused(keys: Keys, text: str) -> None:
    refusal(keys, text)


@pytest.mark.parametrize("sig", ["", "x", "%", "%zz", "ä", "=" * 44, "A" * 1000])
def test_a_malformed_signature_is_refused(keys: Keys, sig: str) -> None:
    refusal(keys, f"SharedAccessSignature sr=orders&sig={sig}&se={LATER}&skn=Root", "orders")


def test_a_token_of_an_identity_provider_is_refused_with_advice(keys: Keys) -> None:
    assert "shared access key" in refusal(keys, "eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjF9.c2lnbmF0dXJl")


def test_a_token_that_is_too_long_is_refused_before_it_is_parsed(keys: Keys) -> None:
    assert "at most" in refusal(keys, token("orders") + "&x=" + "y" * 20_000, "orders")
    assert "at most" in refusal(keys, token("orders"), "sb://host/" + "x" * 5000)


def test_the_refusal_does_not_repeat_the_token(keys: Keys) -> None:
    text = token("orders", key="guessed")
    sentence = refusal(keys, text, "orders")
    assert "Root" not in sentence
    assert text.split("sig=")[1][:20] not in sentence


# --- names and keys shown directly (SASL PLAIN) ---


def test_a_name_and_key_give_the_grants_of_every_rule_they_fit(keys: Keys) -> None:
    keys.set("other", (SENDER,))
    grants = keys.grants_for("sender", "sender-key")
    assert {(grant.path, grant.owner) for grant in grants} == {("orders", "orders"), ("other", "other")}
    assert all(grant.rights == {Right.SEND} and grant.expires_at is None for grant in grants)
    assert len(keys.grants_for("Root", "second")) == 1


@pytest.mark.parametrize(("name", "key"), [("Root", "guessed"), ("root", "second"), ("nobody", "second"), ("", "")])
def test_a_name_and_key_that_do_not_fit_give_nothing(keys: Keys, name: str, key: str) -> None:
    assert keys.grants_for(name, key) == []


# --- what a connection may do ---


def grant(path: str, *rights: Right, owner: str = "", expires_at: int | None = LATER * 1000) -> Grant:
    return Grant(path, owner, frozenset(rights), expires_at)


def test_nothing_is_allowed_without_a_grant() -> None:
    grants = Grants()
    assert not grants
    with pytest.raises(Unauthorized, match="'Send' claim"):
        grants.check("orders", "orders", Right.SEND, NOW)


@pytest.mark.parametrize(
    "path", ["orders", "ORDERS", "orders/$DeadLetterQueue", "orders/$management", "orders/Subscriptions/all"]
)
def test_a_grant_covers_everything_below_its_path(path: str) -> None:
    grants = Grants()
    grants.add(grant("orders", Right.LISTEN))
    assert grants.check(path, "orders", Right.LISTEN, NOW).path == "orders"


def test_a_grant_covers_nothing_beside_its_path() -> None:
    grants = Grants()
    grants.add(grant("orders", Right.LISTEN))
    for path in ("order", "orders2", "other"):
        with pytest.raises(Unauthorized):
            grants.check(path, path, Right.LISTEN, NOW)


def test_a_grant_for_a_dead_letter_queue_does_not_cover_the_queue() -> None:
    grants = Grants()
    grants.add(grant("orders/$deadletterqueue", Right.LISTEN))
    grants.check("orders/$DeadLetterQueue", "orders", Right.LISTEN, NOW)
    with pytest.raises(Unauthorized):
        grants.check("orders", "orders", Right.LISTEN, NOW)


def test_a_right_that_the_grant_does_not_give_is_missed() -> None:
    grants = Grants()
    grants.add(grant("orders", Right.SEND))
    with pytest.raises(Unauthorized, match="'Listen' claim"):
        grants.check("orders", "orders", Right.LISTEN, NOW)


def test_an_entitys_rule_gives_no_right_to_an_entity_with_the_same_first_segment(keys: Keys) -> None:
    grants = Grants()
    grants.add(keys.verify(token("orders/in", SENDER), "sb://host/orders/in", NOW))
    with pytest.raises(Unauthorized):
        grants.check("orders/in", "orders/in", Right.SEND, NOW)
    # Below the entity itself the same grant would hold.
    assert grants.check("orders/in", "orders", Right.SEND, NOW).owner == "orders"


def test_the_namespace_s_rule_covers_all_entities(keys: Keys) -> None:
    grants = Grants()
    grants.add(keys.verify(token("sb://host/"), "sb://host/", NOW))
    for path in ("orders", "orders/in", "anything"):
        grants.check(path, path, Right.SEND, NOW)


def test_an_expired_grant_is_reported_as_expired() -> None:
    grants = Grants()
    grants.add(grant("orders", Right.SEND, expires_at=NOW))
    with pytest.raises(Unauthorized, match="expired"):
        grants.check("orders", "orders", Right.SEND, NOW)


def test_a_wider_grant_is_used_instead_of_an_expired_one() -> None:
    grants = Grants()
    grants.add(grant("orders", Right.SEND, expires_at=NOW))
    grants.add(grant("", Right.SEND))
    assert grants.check("orders", "orders", Right.SEND, NOW).path == ""


def test_a_newer_grant_replaces_the_older_also_with_fewer_rights() -> None:
    grants = Grants()
    grants.add(grant("orders", Right.SEND, Right.LISTEN))
    grants.add(grant("orders", Right.LISTEN))
    with pytest.raises(Unauthorized):
        grants.check("orders", "orders", Right.SEND, NOW)


def test_the_soonest_expiry_is_known_and_expired_grants_are_removed() -> None:
    grants = Grants()
    assert grants.soonest_expiry is None
    grants.add(grant("for-ever", Right.SEND, expires_at=None))
    assert grants.soonest_expiry is None
    grants.add(grant("later", Right.SEND, expires_at=NOW + 2))
    grants.add(grant("sooner", Right.SEND, expires_at=NOW + 1))
    assert grants.soonest_expiry == NOW + 1
    grants.forget(NOW + 1)
    assert grants.soonest_expiry == NOW + 2
    grants.forget(NOW + 2)
    assert grants.soonest_expiry is None
    grants.check("for-ever", "for-ever", Right.SEND, NOW)


def test_a_connection_keeps_a_bounded_number_of_grants() -> None:
    grants = Grants()
    for number in range(MAX_TOKENS):
        grants.add(grant(f"queue-{number}", Right.SEND))
    with pytest.raises(QuotaExceeded):
        grants.add(grant("one-too-many", Right.SEND))
    grants.add(grant("queue-0", Right.LISTEN))


# --- rules that change ---


class Watcher:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_rules_changed(self, path: str) -> None:
        self.heard.append(path)


def test_connections_are_notified_of_changed_rules(keys: Keys) -> None:
    watcher = Watcher()
    keys.watchers.add(watcher)
    keys.set("Orders", (SENDER, LISTENER))  # as they were
    keys.set("Orders", (SENDER,))
    keys.set("", (ROOT, LISTENER))
    keys.set("nothing", ())
    keys.set("Orders", ())
    assert watcher.heard == ["orders", "", "orders"]


@pytest.mark.parametrize("shown", ["token", "key"])
def test_a_grant_is_good_as_long_as_its_rule_has_its_key(keys: Keys, shown: str) -> None:
    if shown == "token":
        first = keys.verify(token("sb://host/orders", SENDER), "sb://host/orders", NOW)
    else:
        (first,) = keys.grants_for("sender", "sender-key")
    assert keys.current(first) is first
    assert "sender-key" not in repr(first)
    both = frozenset({Right.SEND, Right.LISTEN})
    more = AuthorizationRule(name="sender", primary_key="new", secondary_key="sender-key", rights=both)
    keys.set("orders", (more,))
    second = keys.current(first)
    assert second is not None
    assert second.rights == both
    for other in (
        AuthorizationRule(name="sender", primary_key="new", rights=both),
        AuthorizationRule(name="another", primary_key="sender-key", rights=both),
    ):
        keys.set("orders", (other,))
        assert keys.current(first) is None
    keys.set("orders", ())
    assert keys.current(first) is None
    keys.set("other", (SENDER,))
    assert keys.current(first) is None


def test_grants_are_revised_with_the_rules_that_gave_them() -> None:
    grants = Grants()
    grants.add(Grant("orders", "orders", frozenset({Right.SEND}), None, "orders/a", "k"))
    grants.add(Grant("orders/$management", "orders", frozenset({Right.SEND}), LATER * 1000, "orders/b", "k"))
    grants.add(Grant("other", "", frozenset({Right.SEND}), LATER * 1000, "/c", "k"))
    assert grants.has_lasting
    assert grants.revise("orders", lambda grant: None if grant.key_name == "a" else grant) == ["a"]
    assert not grants.has_lasting
    with pytest.raises(Unauthorized):
        grants.check("orders", "orders", Right.SEND, NOW)
    assert grants.revise("", lambda grant: replace(grant, rights=frozenset(Right))) == []
    grants.check("other", "other", Right.LISTEN, NOW)
