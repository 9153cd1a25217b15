"""Messages over HTTP: requests without rights, endless ones, thousands at once, and malformed properties."""

from __future__ import annotations

import gzip
import time
from uuid import uuid4

from tools.hostile.attack import attack, require
from tools.hostile.lines import TIMEOUT, Line
from tools.hostile.victim import LISTENER, MESSAGING, OTHER, OTHERS, SENDER, Victim

HEAD = f"/{MESSAGING}/messages/head?timeout=0"
WAITING = 500
"""The most waiting receives for one key."""


def _send(victim: Victim, body: bytes = b"hostile", **headers: str) -> int:
    return victim.ask(victim.request("POST", f"/{MESSAGING}/messages", body, **headers))[0]


@attack(answer="answers 401, whether or not the entity exists", log="request refused.*401")
def messages_without_rights(victim: Victim) -> None:
    """Every request for messages without a token, with keys of fewer rights or another entity, and forged ones."""
    place = f"/{MESSAGING}/messages"
    lock = f"{place}/1/{uuid4()}"
    receives = [("POST", HEAD), ("DELETE", HEAD), ("PUT", lock), ("POST", lock), ("DELETE", lock)]
    nothing = ["", "nonsense", "Bearer eyJ.eyJ.sig", victim.token(key="wrong"), victim.token(seconds=-3600)]
    other = victim.token(OTHER, OTHERS, OTHERS)
    for method, path in [("POST", place), *receives]:
        tokens = [*nothing, other, victim.token("", *((LISTENER,) * 2 if path == place else (SENDER,) * 2))]
        for token in tokens:
            for asked in (path, path.replace(MESSAGING, "not-there")):
                status, _ = victim.ask(victim.request(method, asked, Authorization=token))
                require(status == 401, f"{method} {asked} was answered with {status}")
    require(victim.drain(MESSAGING) == 0, "a message was sent without the right")


@attack(answer="answers 403 when the body exceeds the entity's limit, compressed or not", log="request refused.*403")
def endless_messages(victim: Victim) -> None:
    """Bodies with a Content-Length of 10 GiB, endless chunks, gzip that expands 1,000 times, and large batches."""
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    bomb = gzip.compress(b"<" * (64 * 1024 * 1024), 9)
    batch = "application/vnd.microsoft.servicebus.json"
    for path in (f"/{MESSAGING}/messages", HEAD):
        for head, body in (
            (victim.request("POST", path, Content_Length=str(10 << 30)), b"x" * (4 << 20)),
            (victim.request("POST", path, Transfer_Encoding="chunked"), chunk * 64),
            (victim.request("POST", path, Content_Encoding="gzip", Content_Length=str(len(bomb))), bomb),
            (victim.request("POST", path, Transfer_Encoding="chunked", Content_Type=batch), chunk * 64),
        ):
            with victim.dial() as line:
                line.send(head, body)
                status, _ = line.response()
                require(status in (0, 400, 403), f"a body that is too large was answered with {status}")
    require(victim.drain(MESSAGING) == 0, "a body that is too large was accepted")


@attack(
    answer="answers 503 above 500 for one key; receives of closed connections are cancelled",
    log="request refused.*503",
)
def waiting_receives(victim: Victim) -> None:
    """Thousands of receives from an empty queue, pipelined on one connection and on 700 connections."""
    waiting = victim.request("POST", f"/{MESSAGING}/messages/head?timeout=600")
    lines: list[Line] = []
    try:
        with victim.dial() as line:
            line.send(waiting * 1000)
            line.wait(0.5)
        for _ in range(WAITING + 200):
            lines.append(victim.dial())
            lines[-1].send(waiting)
        status, _ = lines[-1].response()
        require(status == 503, f"the receive number {len(lines)} was answered with {status}")
    finally:
        for line in lines:
            line.close()
    for _ in range(100):
        status, _ = victim.ask(victim.request("POST", HEAD))
        if status == 204:
            break
    require(status == 204, f"after all have disconnected, a receive was answered with {status}")
    require(_send(victim) == 201, "after all have disconnected, a send was refused")
    require(victim.drain(MESSAGING) == 1, "a receive of a disconnected client took a message")


@attack(answer="answers 400 and stores no message of the batch", log="request refused.*400")
def broken_properties(victim: Victim) -> None:
    """Properties and batches that are not JSON, deeply nested, with huge numbers, or of wrong types."""
    deep = "[" * 3000
    for text in (
        "{",
        "[]",
        "null",
        deep,
        '{"a":' + deep,
        '{"TimeToLive": 1e999}',
        '{"TimeToLive": NaN}',
        '{"TimeToLive": -1}',
        '{"TimeToLive": ' + "9" * 5000 + "}",
        '{"TimeToLiveTimeSpan": "99999999999.00:00:00"}',
        '{"ScheduledEnqueueTimeUtc": "9999999-01-01"}',
        '{"ScheduledEnqueueTimeUtc": {}}',
        '{"MessageId": {}}',
        '{"MessageId": "' + "x" * 129 + '"}',
        '{"Label": "\\ud800"}',
        '{"SessionId": "a", "PartitionKey": "b"}',
        "\xff",
    ):
        status = _send(victim, BrokerProperties=text)
        require(status == 400, f"the properties {text[:40]!r} were answered with {status}")
    for text in ("9" * 30, '"\\ud800"'):
        status = _send(victim, Custom=text)
        require(status == 400, f"the property {text[:20]!r} was answered with {status}")
    for batch in (
        "",
        "[",
        "{}",
        "[]",
        "[1]",
        "[" * 200_000,
        '[{"Body": []}]',
        '[{"Body": "fine"}, {"Body": "x", "IsBodyBase64": true}]',
        '[{"Body": "fine"}, {"Body": "\\ud800"}]',
        '[{"Body": "fine"}, {"UserProperties": {"a": {}}}]',
        '[{"Body": "fine"}, {"BrokerProperties": {"TimeToLive": 0}}]',
        "[" + "{}," * 5000 + "{}]",
    ):
        status = _send(victim, batch.encode() or b" ", Content_Type="application/vnd.microsoft.servicebus.json")
        require(status in (400, 403), f"the batch {batch[:40]!r} was answered with {status}")
    require(victim.drain(MESSAGING) == 0, "a broken message was accepted")


@attack(answer="answers 404; the message stays locked for its receiver", log="request refused.*404")
def guessed_locks(victim: Victim) -> None:
    """Random lock tokens, and those of other queues and other messages, for a locked message."""
    require(_send(victim) == 201, "nothing can be sent")
    status, _ = victim.ask(victim.request("POST", HEAD))
    require(status == 201, f"the message was answered with {status}")
    for method in ("PUT", "POST", "DELETE"):
        for token in (*(str(uuid4()) for _ in range(10)), str(uuid4()).upper(), "0" * 32):
            for place in (MESSAGING, OTHER):
                status, _ = victim.ask(victim.request(method, f"/{place}/messages/1/{token}"))
                require(status == 404, f"a token that was made up was answered with {status}")
        status, _ = victim.ask(victim.request(method, f"/{MESSAGING}/messages/1/token"))
        require(status in (400, 404), f"what is no token was answered with {status}")
    require(victim.ask(victim.request("POST", HEAD))[0] == 204, "the message was returned")
    deadline = time.monotonic() + TIMEOUT
    while not victim.drain(MESSAGING):  # until its lock expires
        require(time.monotonic() < deadline, "the message is lost")
        time.sleep(1.0)
