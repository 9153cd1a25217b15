"""Topics, forwarding, duplicate detection and SIGKILL: every message is exactly once in each entity where it belongs.

Messages are sent to a topic with duplicate detection. One subscription stores all of them, one those that its filter
matches, one forwards to a queue that forwards again. After each kill the unconfirmed messages are sent again with the
same ids. A seed determines the moments of the kills; it is printed, and CRASH_SEED sets it.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from peeklock.amqp.message import Message, Properties
from peeklock.client import ClientError, Connection, Sent, connect
from raw_client import eventually
from serving import ServedBroker

KILLS = 20
TOGETHER = 40
MAX_WAVES = 3
LONGEST_WAIT = 0.004
"""Seconds between the last sends and the kill, at most: a commit or two, and some forwards."""
BODY = b"x" * 600
"""Long enough to be stored once for all copies."""

TOPICS: list[dict[str, Any]] = [
    {
        "Name": "news",
        "Properties": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT10M"},
        "Subscriptions": [
            {"Name": "all"},
            {
                "Name": "even",
                "Rules": [
                    {
                        "Name": "even",
                        "Properties": {
                            "FilterType": "Sql",
                            "SqlFilter": {"SqlExpression": "n % 2 = 0"},
                            "Action": {"SqlExpression": "SET half = n / 2"},
                        },
                    }
                ],
            },
            {"Name": "onward", "Properties": {"ForwardTo": "first"}},
        ],
    }
]
QUEUES: list[dict[str, Any]] = [{"Name": "first", "Properties": {"ForwardTo": "last"}}, {"Name": "last"}]
SUBSCRIPTION = "news/Subscriptions/"


def make_broker(folder: Path) -> ServedBroker:
    config = folder / "config.json"
    namespace = {"Name": "ns", "Queues": QUEUES, "Topics": TOPICS}
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    return ServedBroker(folder, "--config", str(config))


def news(number: int) -> Message:
    return Message(properties=Properties(message_id=f"id-{number}"), application_properties={"n": number}, data=[BODY])


def peek(connection: Connection, path: str) -> list[Message]:
    """Return all messages of an entity."""
    messages: list[Message] = []
    after = 0
    with connection.requester(f"{path}/$management") as requester:
        while True:
            body = {"from-sequence-number": after + 1, "message-count": 1000}
            operation = {"operation": "com.microsoft:peek-message"}
            reply = requester.request(Message(application_properties=operation, value=body))
            found = [Message.decode(each["message"]) for each in reply.value.get("messages", [])]
            if not found:
                return messages
            messages += found
            after = (found[-1].message_annotations or {})["x-opt-sequence-number"]


def numbers(messages: list[Message]) -> Counter[int]:
    assert all(message.data == [BODY] for message in messages)
    return Counter((message.application_properties or {})["n"] for message in messages)


class Sends:
    """The messages that were sent, and which of them were confirmed."""

    def __init__(self) -> None:
        self.next = 0
        self.confirmed: set[int] = set()
        self.in_doubt: set[int] = set()

    def send(self, connection: Connection) -> dict[int, Sent]:
        """Send the unconfirmed messages again, and then new ones."""
        again = sorted(self.in_doubt)
        chosen = [*again, *range(self.next, self.next + TOGETHER)]
        self.next += TOGETHER
        self.in_doubt |= set(chosen)
        sender = connection.sender("news")
        return {number: sender.post(news(number)) for number in chosen}

    def note(self, sends: dict[int, Sent]) -> None:
        for number, sent in sends.items():
            if sent.done:
                assert sent.refused is None, sent.refused
                self.confirmed.add(number)
                self.in_doubt.discard(number)


def test_every_message_reaches_each_destination_exactly_once_despite_kills(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRASH_SEED") or random.randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    broker = make_broker(tmp_path)
    sends = Sends()
    for _ in range(KILLS):
        connection = connect(broker.connection_string, sasl="plain", timeout=20)
        for _ in range(chance.randint(0, MAX_WAVES)):
            posted = sends.send(connection)
            connection.wait(lambda posted=posted: all(sent.done for sent in posted.values()), None, "the sends")  # type: ignore[misc]
            sends.note(posted)
        posted = sends.send(connection)
        with suppress(ClientError):
            connection.work(chance.uniform(0, LONGEST_WAIT))
            broker.kill()
            while True:
                connection.turn(1.0)  # handles answers that arrived before the kill
        sends.note(posted)
        broker.start()
    doubtful = len(sends.in_doubt)
    connection = connect(broker.connection_string, sasl="plain", timeout=20)
    posted = sends.send(connection)
    connection.wait(lambda: all(sent.done for sent in posted.values()), None, "the sends")
    sends.note(posted)
    assert sends.confirmed == set(range(sends.next))

    everything = Counter(range(sends.next))
    print(f"{sends.next} sent; {doubtful} in doubt at the last kill")
    eventually(lambda: len(peek(connection, "last")) == sends.next)
    assert numbers(peek(connection, "last")) == everything
    assert numbers(peek(connection, SUBSCRIPTION + "all")) == everything
    even = peek(connection, SUBSCRIPTION + "even")
    assert numbers(even) == Counter(range(0, sends.next, 2))
    for message in even:
        properties = message.application_properties or {}
        assert (properties["half"], properties["RuleName"]) == (properties["n"] // 2, "even")
    for path in ("first", SUBSCRIPTION + "onward"):
        assert peek(connection, path) == []
        assert peek(connection, f"{path}/$Transfer/$DeadLetterQueue") == []
    connection.close()
    assert broker.stop() == 0
    assert "Traceback" not in broker.log
