"""Backups of a broker under load of the official SDK, which is killed during or after the backup.

A backup has every message that was acknowledged before it began and not settled before it ended, with the same body,
and none whose completion was confirmed before it began.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from commands import environment
from raw_client import eventually
from serving import ServedBroker

AHEAD = 100
"""The number of unsettled messages above which senders wait."""
BODY_BYTES = 8000
"""Large enough that the log starts new segments, and frees old ones, several times a second."""


class Load:
    """Threads that send, complete and defer until they are stopped or the broker is killed."""

    def __init__(self, connection_string: str) -> None:
        self.acknowledged: set[str] = set()
        self.attempted: set[str] = set()
        """A completion was sent: the message may be removed."""
        self.completed: set[str] = set()
        """A completion was confirmed: the message must be removed."""
        self.deferred: set[str] = set()
        """Messages that are never completed."""
        self._connection_string = connection_string
        self._stopped = threading.Event()
        self._threads = [
            *(threading.Thread(target=self._work, args=(self._send, f"sender-{number}")) for number in range(2)),
            *(threading.Thread(target=self._work, args=(self._receive, "")) for _ in range(2)),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=60)
            assert not thread.is_alive()

    def _work(self, work: Callable[[ServiceBusClient, str], None], name: str) -> None:
        try:
            with connect(self._connection_string) as client:
                work(client, name)
        except Exception:
            # The broker was killed. Any exception of the SDK is fine: confirmed operations are recorded already.
            return

    def _send(self, client: ServiceBusClient, name: str) -> None:
        serial = 0
        with client.get_queue_sender("queue") as sender:
            while not self._stopped.is_set():
                if len(self.acknowledged) - len(self.completed) - len(self.deferred) > AHEAD:
                    self._stopped.wait(0.01)
                    continue
                names = [f"{name}.{serial + at}" for at in range(10)]
                serial += 10
                sender.send_messages([ServiceBusMessage(body_of(each)) for each in names])
                self.acknowledged.update(names)

    def _receive(self, client: ServiceBusClient, _: str) -> None:
        with client.get_queue_receiver("queue", prefetch_count=20) as receiver:
            while not self._stopped.is_set():
                for message in receiver.receive_messages(max_message_count=20, max_wait_time=1):
                    name = str(message).split(" ", 1)[0]
                    if name.endswith("7"):
                        receiver.defer_message(message)
                        self.deferred.add(name)
                        continue
                    self.attempted.add(name)
                    receiver.complete_message(message)
                    self.completed.add(name)


class Backup:
    """A running `peeklock store backup`, with the messages acknowledged and completed at its start."""

    def __init__(self, load: Load, data: Path, target: Path) -> None:
        self._load = load
        self.target = target
        self.acknowledged = set(load.acknowledged)
        self.completed = set(load.completed)
        command = [sys.executable, "-m", "peeklock", "store", "backup", str(target), "--data", str(data), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
        self.attempted: set[str] = set()

    @property
    def has_begun(self) -> bool:
        return any(self.target.parent.glob(f".{self.target.name}.partial-*/log-*"))

    def finish(self) -> None:
        output, complaint = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, complaint
        assert json.loads(output)["checked"]["sound"]
        self.attempted = set(self._load.attempted)

    def verify(self, folder: Path) -> None:
        """Restore the backup, start a broker on it, and check all messages."""
        folder.mkdir()
        command = [sys.executable, "-m", "peeklock", "store", "restore", str(self.target)]
        subprocess.run([*command, "--data", str(folder / "data")], check=True, env=environment(), timeout=60)
        broker = ServedBroker(folder)
        try:
            bodies = peek(broker.connection_string)
        finally:
            assert broker.stop() == 0
        names = {body.split(" ", 1)[0] for body in bodies}
        assert len(names) == len(bodies)
        assert all(body == body_of(body.split(" ", 1)[0]) for body in bodies)
        assert self.acknowledged - self.attempted, "there was nothing to lose"
        assert self.acknowledged - self.attempted - names == set(), "acknowledged, not settled, and not there"
        assert self.completed & names == set(), "completed, and there again"


def body_of(name: str) -> str:
    return f"{name} ".ljust(BODY_BYTES, name[-1])


def connect(connection_string: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(connection_string, retry_total=0, socket_timeout=5)


def peek(connection_string: str) -> list[str]:
    """Return all messages of the queue, including deferred ones."""
    found: list[str] = []
    following = 1
    with connect(connection_string) as client, client.get_queue_receiver("queue") as receiver:
        while batch := receiver.peek_messages(max_message_count=100, sequence_number=following):
            found += [str(message) for message in batch]
            following = (batch[-1].sequence_number or 0) + 1
    return found


def test_a_backup_of_a_killed_broker_under_load_has_every_acknowledged_change(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path)
    load = Load(broker.connection_string)
    try:
        eventually(lambda: len(load.completed) > AHEAD and load.deferred)
        under_load = Backup(load, broker.data, tmp_path / "under load")
        under_load.finish()
        assert len(load.completed) > len(under_load.completed), "clients worked during the backup"
        during_kill = Backup(load, broker.data, tmp_path / "during a kill")
        eventually(lambda: during_kill.has_begun or during_kill.process.poll() is not None)
        broker.kill()
        during_kill.finish()
    finally:
        load.stop()
    command = [sys.executable, "-m", "peeklock", "store", "check", "--data", str(broker.data)]
    subprocess.run(command, check=True, env=environment(), timeout=60)
    under_load.verify(tmp_path / "first")
    during_kill.verify(tmp_path / "second")
    assert "Traceback" not in broker.log
