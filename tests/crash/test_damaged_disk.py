"""A data folder that the disk has damaged: what users see of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from peeklock.store.disk.log.segments import Segments
from serving import ServedBroker

BODIES = ["first message", "second message", "third message"]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ServedBroker]:
    broker = ServedBroker(tmp_path)
    yield broker
    broker.stop()


def send(broker: ServedBroker, bodies: list[str]) -> None:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("queue") as sender,
    ):
        for body in bodies:
            sender.send_messages(ServiceBusMessage(body))


def receive(broker: ServedBroker) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver("queue") as receiver,
    ):
        received = receiver.receive_messages(max_message_count=10, max_wait_time=5)
        for message in received:
            receiver.complete_message(message)
        return [str(message) for message in received]


def flip(broker: ServedBroker, content: bytes, in_head: bool = False) -> None:
    """Flip a bit of these bytes in the log, or of the header of their record."""
    (log,) = broker.data.glob("log-*")
    data = bytearray(log.read_bytes())
    at = data.index(content)
    if in_head:
        salt = Segments(broker.data).header(1).salt.to_bytes(4, "little")
        at = data.rindex(salt, 0, at) + 20
    data[at] ^= 1
    log.write_bytes(data)


def health(broker: ServedBroker) -> dict[str, str]:
    with urlopen(f"http://127.0.0.1:{broker.port}/health") as response:
        answer: dict[str, str] = json.load(response)
        return answer


def test_a_damaged_message_is_reported_and_never_delivered_and_the_queue_continues(broker: ServedBroker) -> None:
    send(broker, BODIES)
    broker.stop()
    flip(broker, b"second message")
    broker.start()
    assert receive(broker) == ["first message", "third message"]
    answer = health(broker)
    assert answer["status"] == "degraded"
    assert "queue (1)" in answer["message"]
    assert "message 2 of queue is damaged on disk and is not delivered" in broker.log
    with urlopen(f"http://127.0.0.1:{broker.port}/metrics") as response:
        assert 'peeklock_messages{entity="queue",kind="queue",state="damaged"} 1\n' in response.read().decode()
    broker.stop()
    broker.start()
    assert health(broker)["status"] == "degraded", "also after a restart"
    send(broker, ["fourth message"])
    assert receive(broker) == ["fourth message"]


def test_an_unreadable_acknowledged_commit_stops_the_start_and_changes_nothing(broker: ServedBroker) -> None:
    send(broker, BODIES)
    broker.kill()
    flip(broker, b"third message", in_head=True)
    files = {file: file.read_bytes() for file in broker.data.iterdir() if file.is_file()}
    with pytest.raises(AssertionError, match=r"log-0000000001 is damaged: at offset \d+ the record of commit \d+"):
        broker.start()
    assert broker._wait() == 2
    for file, content in files.items():
        if file.name != "lock" and not file.name.endswith("-shm"):
            assert file.read_bytes() == content, file.name
    flip(broker, b"third message", in_head=True)
    broker.start()
    assert receive(broker) == BODIES
