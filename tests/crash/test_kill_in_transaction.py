"""Transactions and SIGKILL: whatever the moment, all of a transaction is there afterwards, or nothing of it.

Each transaction takes one message of `in` and sends two to `out`. The broker is killed while several discharges are on
their way, at a moment that the seed decides; the seed is printed, and can be given in CRASH_SEED to try one again.
"""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.transactions import Coordinator, Declare, Discharge, TransactionalState
from peeklock.client import ClientError, Sent, connect
from serving import ServedBroker

KILLS = 20
TOGETHER = 6
"""Transactions in flight at once."""
MAX_WAVES = 4
"""Of those, before the one in which the broker is killed."""
INPUTS = (MAX_WAVES + 2) * TOGETHER
LONGEST_WAIT = 0.002
"""Seconds between the discharges and the kill, at most: about what a commit takes."""


class Books:
    """What was done, as the client knows it."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.confirmed: set[str] = set()
        self.in_doubt: set[str] = set()
        """Discharged, without having heard that it was committed."""
        self.doubts = [0, 0]
        """How many of those were not committed, and how many were."""

    def check(self, inputs: list[str], outputs: list[str]) -> None:
        """Compare with what the broker has."""
        assert len(set(inputs)) == len(inputs)
        assert len(set(outputs)) == len(outputs)
        waiting, done = set(inputs), {output.partition(".")[0] for output in outputs}
        assert set(outputs) == {f"{name}.{part}" for name in done for part in "ab"}, "half of a transaction's sends"
        assert waiting | done == self.sent, "a message is lost"
        assert not waiting & done, "a transaction's sends without its settlement"
        assert self.confirmed <= done, "a confirmed transaction is lost"
        assert done <= self.confirmed | self.in_doubt, "a transaction that was never committed"
        for name in self.in_doubt:
            self.doubts[name in done] += 1
        self.confirmed, self.in_doubt = done, set()


class Client:
    """One connection's life, from a start of the broker to its end."""

    def __init__(self, broker: ServedBroker, books: Books) -> None:
        self.books = books
        self.connection = connect(broker.connection_string, sasl="plain", timeout=20)
        self.coordinator = self.connection.sender(Coordinator())
        self.receiver = self.connection.receiver("in", credit=TOGETHER)
        self.inputs, self.outputs = self.connection.sender("in"), self.connection.sender("out")

    def peek(self, queue: str) -> list[str]:
        """The bodies of all messages there are."""
        bodies: list[str] = []
        after = 0
        with self.connection.requester(f"{queue}/$management") as requester:
            while True:
                body = {"from-sequence-number": after + 1, "message-count": 1000}
                operation = {"operation": "com.microsoft:peek-message"}
                reply = requester.request(Message(application_properties=operation, value=body))
                found = [Message.decode(each["message"]) for each in reply.value.get("messages", [])]
                if not found:
                    return bodies
                bodies += [b"".join(message.data).decode() for message in found]
                after = (found[-1].message_annotations or {})["x-opt-sequence-number"]

    def put(self, names: list[str]) -> None:
        self.inputs.send_all(Message(data=[name.encode()]) for name in names)
        self.books.sent |= set(names)

    def begin(self) -> tuple[str, bytes]:
        """A transaction with all of its work, not discharged."""
        (message,) = self.receiver.receive(1)
        name = message.body.decode()
        transaction = self.coordinator.send(Message(value=Declare())).txn_id
        self.receiver.settle(message, TransactionalState(transaction, Accepted()).encode())
        for part in "ab":
            output = Message(data=[f"{name}.{part}".encode()])
            self.outputs.post(output, state=TransactionalState(transaction))
        return name, transaction

    def discharge(self, transactions: list[tuple[str, bytes]]) -> dict[str, Sent]:
        self.books.in_doubt |= {name for name, _ in transactions}
        return {
            name: self.coordinator.post(Message(value=Discharge(transaction, False)))
            for name, transaction in transactions
        }

    def note(self, discharges: dict[str, Sent]) -> None:
        for name, sent in discharges.items():
            if sent.done:
                assert sent.refused is None, sent.refused
                self.books.in_doubt.discard(name)
                self.books.confirmed.add(name)

    def wave(self) -> None:
        """Some transactions at once, and one that is rolled back."""
        discharges = self.discharge([self.begin() for _ in range(TOGETHER - 1)])
        _, undone = self.begin()
        self.coordinator.send(Message(value=Discharge(undone, True)))
        self.connection.wait(lambda: all(sent.done for sent in discharges.values()), None, "the discharges")
        self.note(discharges)


def make_broker(folder: Path) -> ServedBroker:
    queues: list[dict[str, Any]] = [{"Name": "in", "Properties": {"LockDuration": "PT5M"}}, {"Name": "out"}]
    config = folder / "config.json"
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": "ns", "Queues": queues}]}}))
    return ServedBroker(folder, "--config", str(config))


def test_a_transaction_is_there_whole_or_not_at_all_after_a_kill(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRASH_SEED") or random.randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    broker = make_broker(tmp_path)
    books = Books()
    for turn in range(KILLS):
        client = Client(broker, books)
        client.put([f"{turn}-{number}" for number in range(INPUTS)])
        for _ in range(chance.randint(0, MAX_WAVES)):
            client.wave()
        open_one = client.begin()  # never discharged
        discharges = client.discharge([client.begin() for _ in range(TOGETHER - 1)])
        with suppress(ClientError):
            client.connection.work(chance.uniform(0, LONGEST_WAIT))
            broker.kill()
            while True:
                client.connection.turn(1.0)  # what was said before the end counts
        assert not client.connection.is_open
        client.note(discharges)
        assert open_one[0] not in books.in_doubt | books.confirmed
        broker.start()
        client = Client(broker, books)
        books.check(client.peek("in"), client.peek("out"))
        client.connection.close()
    undone, done = books.doubts
    print(f"{len(books.confirmed)} transactions committed; in doubt at a kill: {done} committed, {undone} not")
    assert undone + done > 0
    assert broker.stop() == 0
