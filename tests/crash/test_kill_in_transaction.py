"""Transactions and SIGKILL: after a kill at any moment, all of a transaction is stored, or nothing of it.

Each transaction completes one message of `in` and sends two to `out`. The broker is killed while several discharges are
in flight, at a moment that the seed determines. The seed is printed; CRASH_SEED sets it to repeat a run.
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
"""The most rounds of transactions before the one in which the broker is killed."""
INPUTS = (MAX_WAVES + 2) * TOGETHER
LONGEST_WAIT = 0.002
"""Seconds between the discharges and the kill, at most: about what a commit takes."""


class KnownTransactions:
    """The transactions of a run, as far as the client knows their outcome."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.confirmed: set[str] = set()
        self.in_doubt: set[str] = set()
        """Discharged without an answer."""
        self.doubts = [0, 0]
        """The number of transactions in doubt that were not committed, and of those that were."""

    def check(self, inputs: list[str], outputs: list[str]) -> None:
        """Check the messages that the broker has after a restart, and resolve the transactions in doubt."""
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
    """The client's connection between two kills of the broker."""

    def __init__(self, broker: ServedBroker, known: KnownTransactions) -> None:
        self.known = known
        self.connection = connect(broker.connection_string, sasl="plain", timeout=20)
        self.coordinator = self.connection.sender(Coordinator())
        self.receiver = self.connection.receiver("in", credit=TOGETHER)
        self.inputs, self.outputs = self.connection.sender("in"), self.connection.sender("out")

    def peek(self, queue: str) -> list[str]:
        """Return the bodies of all messages in the queue."""
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
        self.known.sent |= set(names)

    def begin(self) -> tuple[str, bytes]:
        """Declare a transaction with its settlement and its sends, without the discharge."""
        (message,) = self.receiver.receive(1)
        name = message.body.decode()
        transaction = self.coordinator.send(Message(value=Declare())).txn_id
        self.receiver.settle(message, TransactionalState(transaction, Accepted()).encode())
        for part in "ab":
            output = Message(data=[f"{name}.{part}".encode()])
            self.outputs.post(output, state=TransactionalState(transaction))
        return name, transaction

    def discharge(self, transactions: list[tuple[str, bytes]]) -> dict[str, Sent]:
        self.known.in_doubt |= {name for name, _ in transactions}
        return {
            name: self.coordinator.post(Message(value=Discharge(transaction, False)))
            for name, transaction in transactions
        }

    def note(self, discharges: dict[str, Sent]) -> None:
        for name, sent in discharges.items():
            if sent.done:
                assert sent.refused is None, sent.refused
                self.known.in_doubt.discard(name)
                self.known.confirmed.add(name)

    def wave(self) -> None:
        """Run some transactions at once, and roll one back."""
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


def test_a_transaction_is_complete_or_absent_after_a_kill(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRASH_SEED") or random.randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    broker = make_broker(tmp_path)
    known = KnownTransactions()
    for turn in range(KILLS):
        client = Client(broker, known)
        client.put([f"{turn}-{number}" for number in range(INPUTS)])
        for _ in range(chance.randint(0, MAX_WAVES)):
            client.wave()
        open_one = client.begin()  # never discharged
        discharges = client.discharge([client.begin() for _ in range(TOGETHER - 1)])
        with suppress(ClientError):
            client.connection.work(chance.uniform(0, LONGEST_WAIT))
            broker.kill()
            while True:
                client.connection.turn(1.0)  # handles answers that arrived before the kill
        assert not client.connection.is_open
        client.note(discharges)
        assert open_one[0] not in known.in_doubt | known.confirmed
        broker.start()
        client = Client(broker, known)
        known.check(client.peek("in"), client.peek("out"))
        client.connection.close()
    undone, done = known.doubts
    print(f"{len(known.confirmed)} transactions committed; in doubt at a kill: {done} committed, {undone} not")
    assert undone + done > 0
    assert broker.stop() == 0
