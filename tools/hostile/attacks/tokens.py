"""Tokens: clients with invalid tokens, or with tokens of fewer rights."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from urllib.parse import quote_plus

from peeklock.client import sas_token
from tools.hostile.attack import attack, require
from tools.hostile.attacks.before_login import login_is_refused
from tools.hostile.attacks.requests import queue_entry
from tools.hostile.lines import Line, frame
from tools.hostile.victim import (
    HOST,
    KEPT,
    KEY,
    LISTENER,
    OTHER,
    OTHERS,
    QUEUE,
    ROOT,
    SENDER,
    SUBSCRIPTION,
    TOPIC,
    Requests,
    Victim,
    credit,
    receiver,
    sender,
    status_of,
)


def _signed(text: str, key: str = KEY) -> str:
    return quote_plus(base64.b64encode(hmac.digest(key.encode(), text.encode(), hashlib.sha256)))


def _unauthenticated(victim: Victim) -> tuple[Line, Requests]:
    line = victim.unauthenticated_session()
    return line, Requests(line, "$cbs")


def _all_refused(victim: Victim, tokens: dict[str, str], path: str = QUEUE) -> None:
    """Check that the tokens are refused: on `$cbs` with 4xx and without links afterwards, over HTTP with 401."""
    line, requests = _unauthenticated(victim)
    with line:
        for what, token in tokens.items():
            status = requests.put_token(token, path)
            require(400 <= status < 500, f"a token that is {what} was answered with {status}")
        line.send(frame(receiver(path, 10)))
        require(line.is_link_refused(), "an unauthenticated client may receive")
        line.send(frame(sender(path, 11)))
        require(line.is_link_refused(), "an unauthenticated client may send")
    for what, token in tokens.items():
        if "\n" in token or "\r" in token or len(token) > 7000:
            continue
        status, _ = victim.ask(victim.request("GET", f"/{path}?api-version=2021-05", Authorization=token))
        require(status in (400, 401), f"a token that is {what} was answered with {status} over HTTP")


@attack(answer="401, and the links are refused", log="token refused.*signature does not match")
def forged_tokens(victim: Victim) -> None:
    """Signatures with wrong keys, of other texts, truncated, empty, of other algorithms, and unknown key names."""
    uri, expiry = f"sb://{HOST}/{QUEUE}", str(int(time.time()) + 3600)
    resource = quote_plus(uri)
    good = sas_token(uri, ROOT, KEY, time.time() + 3600)
    md5 = quote_plus(base64.b64encode(hmac.digest(KEY.encode(), f"{resource}\n{expiry}".encode(), "md5")))
    decoded = _signed(f"{uri}\n{expiry}")
    fields = f"sr={resource}&se={expiry}&skn={ROOT}"
    _all_refused(
        victim,
        {
            "signed with another key": sas_token(uri, ROOT, "wrong", time.time() + 3600),
            "signed with no key": sas_token(uri, ROOT, "", time.time() + 3600),
            "of nobody": sas_token(uri, "nobody", KEY, time.time() + 3600),
            "signed for a later time": good.replace("&se=", "&se=9"),
            "signed for more": good.replace(quote_plus(QUEUE), ""),
            "cut": good[:-60],
            "signed with MD5": f"SharedAccessSignature {fields}&sig={md5}",
            "signed over the decoded text": f"SharedAccessSignature {fields}&sig={decoded}",
            "signed with an empty signature": f"SharedAccessSignature {fields}&sig=%20",
            "signed with a name that is a pattern": good.replace(ROOT, "%25"),
            "signed by a rule of another entity": sas_token(uri, OTHERS, OTHERS, time.time() + 3600),
        },
    )


@attack(answer="401: the token has expired", log="token refused.*expired")
def expired_tokens(victim: Victim) -> None:
    """Valid signatures that expired ten minutes ago, an hour ago, and in 1970."""
    uri = f"sb://{HOST}/{QUEUE}"
    _all_refused(
        victim, {f"{ago} s old": sas_token(uri, ROOT, KEY, time.time() - ago) for ago in (600, 3600, time.time() - 5)}
    )


@attack(answer="401: the token is for another resource", log="token refused.*another resource")
def foreign_tokens(victim: Victim) -> None:
    """Valid signatures for other queues, for parts of the name, and with `..` in the resource."""
    later = time.time() + 3600
    _all_refused(
        victim,
        {
            f"for '{path}'": sas_token(f"sb://{HOST}/{path}", ROOT, KEY, later)
            for path in (
                OTHER,
                QUEUE[:-1],
                f"{QUEUE}/more",
                f"{OTHER}/../{QUEUE}",
                f"{QUEUE}%2Fmore",
                f"{QUEUE}x",
                "$cbs",
            )
        },
    )


@attack(answer="400 or 401", log="token refused")
def malformed_tokens(victim: Victim) -> None:
    """Empty and random tokens, 50 KB, missing, repeated and malformed fields, and tokens of identity providers."""
    uri, expiry = quote_plus(f"sb://{HOST}/{QUEUE}"), str(int(time.time()) + 3600)
    good = sas_token(f"sb://{HOST}/{QUEUE}", ROOT, KEY, time.time() + 3600)
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    _all_refused(
        victim,
        {
            "blank": " ",
            "a word": "SharedAccessSignature",
            "empty": "SharedAccessSignature ",
            "long": "SharedAccessSignature sr=" + "a" * 50_000,
            "without a signature": f"SharedAccessSignature sr={uri}&se={expiry}&skn={ROOT}",
            "without an expiry": f"SharedAccessSignature sr={uri}&sig=x&skn={ROOT}",
            "of no time": f"SharedAccessSignature sr={uri}&se=soon&sig=x&skn={ROOT}",
            "of a negative time": f"SharedAccessSignature sr={uri}&se=-5&sig=x&skn={ROOT}",
            "of the end of time": f"SharedAccessSignature sr={uri}&se={'9' * 400}&sig=x&skn={ROOT}",
            "in other digits": good.replace("&se=", "&se=٠"),
            "doubled": f"{good}&sr={quote_plus(f'sb://{HOST}/{OTHER}')}",
            "in lower case": good.replace("SharedAccessSignature", "sharedaccesssignature"),
            "an unsigned JWT": f"{none}.{none}.",
            "a JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl",
            "a bearer": "Bearer x",
            "a password": "Basic cm9vdDpyb290",
        },
    )
    line, requests = _unauthenticated(victim)
    with line:
        for value in (None, 7, b"\xff\xfe", ["a"], {"a": 1}, True):
            status = requests.put_token(value)
            require(400 <= status < 500, f"the token {value!r} was answered with {status}")


@attack(
    answer="refuses the link or the request with `amqp:unauthorized-access` or 401", log="refused.*claim is required"
)
def under_privileged_tokens(victim: Victim) -> None:
    """Sending with Listen, receiving with Send, administering with either, and a queue's key at another queue."""
    for name, path, may_receive, may_send in (
        (LISTENER, QUEUE, True, False),
        (SENDER, QUEUE, False, True),
        (OTHERS, OTHER, True, True),
    ):
        line, requests = _unauthenticated(victim)
        with line:
            status = requests.put_token(sas_token(f"sb://{HOST}/{path}", name, name, time.time() + 3600), path)
            require(status == 202, f"the token of {name} was answered with {status}")
            line.send(frame(receiver(path, 10)))
            require(line.is_link_refused() is not may_receive, f"{name} may receive: {not may_receive}")
            line.send(frame(sender(path, 11)))
            require(line.is_link_refused() is not may_send, f"{name} may send: {not may_send}")
            line.send(frame(receiver(KEPT, 12)))
            require(line.is_link_refused(), f"{name} may receive from a queue that it showed no token for")
    for name, path in (
        (LISTENER, QUEUE),
        (SENDER, QUEUE),
        (OTHERS, QUEUE),
        (OTHERS, "new"),
        (OTHERS, "$Resources/queues"),
    ):
        for method in ("GET", "DELETE", "PUT"):
            token = victim.token(path, name, name)
            request = victim.request(method, f"/{path}?api-version=2021-05", queue_entry(), Authorization=token)
            status, _ = victim.ask(request)
            require(status == 401, f"{method} of {path} by {name} was answered with {status}")


@attack(
    answer="keeps 10,000 tokens for a connection and refuses further ones", log="token refused.*no more are allowed"
)
def token_flood(victim: Victim) -> None:
    """10,050 valid tokens for as many paths below a queue."""
    line, requests = _unauthenticated(victim)
    with line:
        token = sas_token(f"sb://{HOST}/", ROOT, KEY, time.time() + 3600)
        refused = 0
        line.send(credit(20_000, handle=1))
        for first in range(0, 10_050, 150):
            for number in range(first, first + 150):
                requests.post({"operation": "put-token", "type": "jwt", "name": f"sb://{HOST}/{QUEUE}/{number}"}, token)
            refused += sum(status_of(requests.answer()) >= 400 for _ in range(150))
        require(refused == 50, f"{refused} tokens were refused")


@attack(answer="401 with the same text for both", log="token refused.*signature does not match")
def probing_for_entities(victim: Victim) -> None:
    """Invalid tokens for existing and missing entities, to find out which entities exist."""
    later = time.time() + 3600
    line, requests = _unauthenticated(victim)
    with line:
        for what, name, key, expiry, scope in (
            ("forged", ROOT, "wrong", later, ""),
            ("of nobody", "nobody", KEY, later, ""),
            ("expired", ROOT, KEY, time.time() - 5, ""),
            ("for another resource", ROOT, KEY, later, "elsewhere"),
            ("of the owner of one queue", OTHERS, OTHERS, later, ""),
        ):
            token = sas_token(f"sb://{HOST}/{scope}", name, key, expiry)
            answers = {}
            for path in (QUEUE, "nowhere", TOPIC, f"{TOPIC}/Subscriptions/{SUBSCRIPTION}", "nowhere/Subscriptions/all"):
                requests.post({"operation": "put-token", "name": f"sb://{HOST}/{path}"}, token)
                answers[path] = requests.answer().application_properties
            told = list(answers.values())
            require(told[0] is not None and told[0]["status-code"] == 401, f"a token that is {what} was not refused")
            require(
                told == [told[0]] * len(told),
                f"a token that is {what} reveals which entities exist: {answers}",
            )
        own = sas_token(f"sb://{HOST}/{OTHER}", OTHERS, OTHERS, later)
        below = [requests.put_token(own, f"{OTHER}/{name}") for name in ("$management", "nothing", "nothing/more")]
        require(below == [202] * 3, f"below its queue its owner was answered {below}")


@attack(answer="refuses each, and after 100 within a minute every login from that address", log="SASL refused")
def guessing_keys(victim: Victim) -> None:
    """500 logins with wrong keys, one connection each, and then one with the right key."""
    for number in range(500):
        login_is_refused(victim, f"\0{ROOT}\0{KEY[:-1]}{number}".encode())
    login_is_refused(victim, f"\0{ROOT}\0{KEY}".encode())
    status, _ = victim.ask(victim.request("GET", f"/{QUEUE}?api-version=2021-05", Connection="close"))
    require(status == 503, f"after 500 failed logins administration was answered with {status}")
