"""The broker is killed repeatedly while senders and receivers of the official SDK use it.

Afterwards every acknowledged message was received or is still there, nothing whose completion was confirmed came
back, and no sequence number stood for two messages.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode

from raw_client import eventually
from serving import ServedBroker

KILLS = 30
SENDERS = 2
RECEIVERS = 2
BATCH = 10
AHEAD = 400
"""Unsettled messages above which senders wait, so that senders and receivers have work to the end."""


class Ledger:
    """The operations of the clients and their answers. The broker may have done more than it confirmed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: list[list[str]] = []
        """Bodies of the messages of each batch, acknowledged or not."""
        self.acknowledged: set[str] = set()
        self.bodies: dict[int, str] = {}
        """The bodies of all received messages, by sequence number."""
        self.attempted: set[str] = set()
        """A completion was sent: the message may be removed."""
        self.completed: set[int] = set()
        """A completion was confirmed: the message must be removed."""
        self.faults: list[str] = []

    @property
    def progress(self) -> int:
        return len(self.acknowledged) + len(self.completed)

    def acknowledge(self, bodies: list[str]) -> None:
        with self._lock:
            self.acknowledged.update(bodies)

    def receive(self, number: int, body: str) -> None:
        with self._lock:
            if number in self.completed:
                self.faults.append(f"{number} ({body}) came back after its completion")
            if self.bodies.setdefault(number, body) != body:
                self.faults.append(f"{number} is both {self.bodies[number]} and {body}")

    def complete(self, number: int) -> None:
        with self._lock:
            self.completed.add(number)


class Clients:
    """Threads that send and receive with the SDK until they are stopped, also while the broker is killed."""

    def __init__(self, connection_string: str, ledger: Ledger) -> None:
        self._connection_string = connection_string
        self._ledger = ledger
        self._stopped = threading.Event()
        self._threads = [
            *(threading.Thread(target=self._insist, args=(self._send, f"s{n}")) for n in range(SENDERS)),
            *(threading.Thread(target=self._insist, args=(self._receive, f"r{n}")) for n in range(RECEIVERS)),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=90)
            assert not thread.is_alive()

    def _insist(self, work: Callable[[ServiceBusClient, str], None], name: str) -> None:
        attempt = 0
        while not self._stopped.is_set():
            attempt += 1
            try:
                with connect(self._connection_string) as client:
                    work(client, f"{name}.{attempt}")
            except Exception:
                # The connection broke. Any exception of the SDK is fine: the ledger has the answers before it.
                self._stopped.wait(0.02)

    def _send(self, client: ServiceBusClient, name: str) -> None:
        with client.get_queue_sender("queue") as sender:
            serial = 0
            while not self._stopped.is_set():
                if len(self._ledger.acknowledged) - len(self._ledger.completed) > AHEAD:
                    self._stopped.wait(0.01)
                    continue
                serial += 1
                count = BATCH if serial % 3 == 0 else 1
                bodies = [f"{name}.{serial}.{at}" for at in range(count)]
                self._ledger.sent.append(bodies)
                sender.send_messages([ServiceBusMessage(body) for body in bodies])
                self._ledger.acknowledge(bodies)

    def _receive(self, client: ServiceBusClient, name: str) -> None:
        with client.get_queue_receiver("queue", prefetch_count=20) as receiver:
            while not self._stopped.is_set():
                for message in receiver.receive_messages(max_message_count=20, max_wait_time=1):
                    number, body = message.sequence_number, str(message)
                    assert number is not None
                    self._ledger.receive(number, body)
                    self._ledger.attempted.add(body)
                    receiver.complete_message(message)
                    self._ledger.complete(number)


def connect(connection_string: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(
        connection_string, retry_total=0, retry_backoff_factor=0.01, socket_timeout=5
    )


def drain(connection_string: str) -> dict[int, str]:
    """Receive and complete everything that is left; returns bodies by sequence number."""
    found: dict[int, str] = {}
    with (
        connect(connection_string) as client,
        client.get_queue_receiver("queue", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        while batch := receiver.receive_messages(max_message_count=500, max_wait_time=2):
            for message in batch:
                assert message.sequence_number is not None
                assert message.sequence_number not in found
                found[message.sequence_number] = str(message)
    return found


def test_no_acknowledged_change_is_lost_despite_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed: {seed}")
    chance = random.Random(seed)
    broker = ServedBroker(tmp_path)
    ledger = Ledger()
    clients = Clients(broker.connection_string, ledger)
    try:
        for _ in range(KILLS):
            enough = ledger.progress + chance.randrange(80)
            eventually(lambda enough=enough: ledger.progress >= enough)  # type: ignore[misc]
            broker.kill()
            broker.start()
    finally:
        clients.stop()
    # Once more, without clients: messages that they had locked and not completed are available at once.
    broker.kill()
    broker.start()
    left = drain(broker.connection_string)
    assert broker.stop() == 0

    print(f"{len(ledger.acknowledged)} acknowledged, {len(ledger.completed)} completed, {len(left)} left")
    for number, body in left.items():
        ledger.receive(number, body)
    assert ledger.faults == []
    assert len(ledger.completed) > KILLS
    remaining = set(left.values())
    lost = ledger.acknowledged - ledger.attempted - remaining
    assert lost == set(), "acknowledged, never received, and not there"
    # A batch is stored whole or not at all.
    seen = set(ledger.bodies.values())
    halves = [bodies for bodies in ledger.sent if 0 < sum(body in seen for body in bodies) < len(bodies)]
    assert halves == []
    assert len(seen) == len(ledger.bodies), "a message was stored twice, though no send was repeated"
    assert "Traceback" not in broker.log
