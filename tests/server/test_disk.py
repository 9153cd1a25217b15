"""A disk that is nearly full: senders, receivers, `/health` and `/metrics`, and the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from peeklock.entities.settings import DEFAULT_PROFILE
from peeklock.server.config import ConfigError, load_configuration
from peeklock.store.base import DiskSpace
from raw_client import get, health
from serving import BrokerThread, StartBroker

MIB = 1 << 20
GIB = 1 << 30


class Disk:
    """A disk whose free space the test sets."""

    free = 100 * GIB

    def __call__(self, folder: Path) -> DiskSpace:
        return DiskSpace(self.free, 1000 * GIB)

    def change(self, broker: BrokerThread, free: int) -> None:
        self.free = free
        broker.advance(1)


def metrics(broker: BrokerThread) -> dict[str, float]:
    _, text = get(broker.broker.port, "/metrics")
    lines = [line.split() for line in text.splitlines() if line.startswith("peeklock_disk")]
    return {name.removeprefix("peeklock_disk_"): float(value) for name, value in lines}


def test_sends_are_refused_as_busy_and_receivers_continue(start_broker: StartBroker) -> None:
    disk = Disk()
    broker = start_broker(measure_disk=disk)
    with ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client:
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage("before"))
            disk.change(broker, 100 * MIB)
            with pytest.raises(ServiceBusServerBusyError, match="100 MiB free, below the watermark of 1024 MiB"):
                sender.send_messages(ServiceBusMessage("refused"))
        with client.get_queue_receiver("queue") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=10)
            receiver.complete_message(message)
            assert str(message) == "before"
        with client.get_queue_sender("queue") as sender:
            disk.change(broker, 2 * GIB)
            sender.send_messages(ServiceBusMessage("after"))
    assert broker.counters().active == 1


def test_health_is_degraded_with_status_200_while_sends_are_refused(start_broker: StartBroker) -> None:
    disk = Disk()
    broker = start_broker(measure_disk=disk)
    assert health(broker.broker.port)[:2] == (200, "healthy")
    disk.change(broker, 0)
    status, word, message = health(broker.broker.port)
    assert (status, word) == (200, "degraded")
    assert "0 MiB free" in message
    disk.change(broker, 2 * GIB)
    assert health(broker.broker.port)[:2] == (200, "healthy")


def test_metrics_have_the_free_space_and_whether_sends_are_refused(start_broker: StartBroker) -> None:
    disk = Disk()
    broker = start_broker(measure_disk=disk, disk_free_low=GIB)
    assert metrics(broker) == {"free_bytes": 100 * GIB, "free_low_bytes": GIB, "refuses_sends": 0}
    disk.change(broker, 5)
    assert metrics(broker) == {"free_bytes": 5, "free_low_bytes": GIB, "refuses_sends": 1}


def test_a_broker_in_memory_has_no_watermark(start_broker: StartBroker) -> None:
    disk = Disk()
    disk.free = 0
    broker = start_broker(data=None, measure_disk=disk)
    assert health(broker.broker.port)[:2] == (200, "healthy")
    assert metrics(broker) == {}


# --- the configuration file ---


def settings(folder: Path, value: str) -> int | None:
    file = folder / "config.json"
    file.write_text(
        f'{{"UserConfig": {{"Namespaces": [{{}}], "Server": {{"DiskFreeLowInMegabytes": {value}}}}}}}', "utf-8"
    )
    return load_configuration(file, DEFAULT_PROFILE).server.disk_free_low


def test_the_watermark_is_set_in_the_configuration_file(tmp_path: Path) -> None:
    assert settings(tmp_path, "512") == 512 * MIB
    assert settings(tmp_path, "0") == 0


@pytest.mark.parametrize("value", ["-1", '"1g"', "true", "1.5"])
def test_an_invalid_watermark_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(ConfigError, match=r"Server\.DiskFreeLowInMegabytes: must be a whole number"):
        settings(tmp_path, value)
