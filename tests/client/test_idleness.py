"""Heartbeats and silent peers, in memory, with a clock that moves when the client waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import HEARTBEAT
from peeklock.client import Connection, ConnectionLost, parse_endpoint
from peeklock.client.wire import Wire
from peeklock.engine import connection as engine
from peeklock.engine.events import LinkAttached


class MemoryWire:
    """Stands for the socket: a server's engine at the other end, and waiting lets time pass."""

    full = False

    def __init__(self, idle_time_out_ms: int) -> None:
        settings = engine.Settings(container_id="server", idle_time_out_ms=idle_time_out_ms)
        self.server = engine.Connection(settings, is_server=True)
        self.now = 1000.0
        self.heartbeats = 0
        self.asleep = False

    def write(self, parts: list[bytes]) -> None:
        self.heartbeats += parts.count(HEARTBEAT)
        for event in self.server.receive(b"".join(parts)):
            if isinstance(event, LinkAttached):
                event.link.accept()

    def wait(self, seconds: float) -> bytes:
        waiting = b"".join(self.server.take_output())
        if not waiting:
            self.now += max(seconds, 0.001)
            self.server.tick(self.now)
            waiting = b"".join(self.server.take_output())
        return b"" if self.asleep else waiting

    def close(self) -> None:
        pass


def connected(monkeypatch: pytest.MonkeyPatch, *, ours: int, theirs: int) -> tuple[Connection, MemoryWire]:
    wire = MemoryWire(theirs)
    clock: Any = SimpleNamespace(monotonic=lambda: wire.now)
    monkeypatch.setattr("peeklock.client.connection.time", clock)
    settings = engine.Settings(container_id="client", idle_time_out_ms=ours)
    machine = engine.Connection(settings, is_server=False)
    connection = Connection(cast(Wire, wire), machine, parse_endpoint("amqp://memory"), 30.0)
    connection.open()
    return connection, wire


def test_heartbeats_go_out_while_a_receiver_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, wire = connected(monkeypatch, ours=60_000, theirs=2000)
    assert connection.receiver("q").receive(timeout=100) == []
    assert wire.now >= 1100
    assert wire.heartbeats > 50
    assert connection.is_open
    assert wire.server.opened


def test_working_keeps_the_connection_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, wire = connected(monkeypatch, ours=2000, theirs=2000)
    connection.work(100)
    assert connection.is_open
    assert wire.server.opened


def test_a_long_absence_is_no_silence_of_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, wire = connected(monkeypatch, ours=2000, theirs=0)
    connection.work(1)
    for _ in range(100):
        wire.now += 0.4
        wire.server.tick(wire.now)
    connection.work()
    assert connection.is_open


def test_a_peer_that_falls_silent_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, wire = connected(monkeypatch, ours=2000, theirs=0)
    receiver = connection.receiver("q")
    wire.asleep = True
    with pytest.raises(ConnectionLost) as lost:
        receiver.receive(timeout=60)
    assert lost.value.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    assert wire.now < 1010
    assert wire.server.ended
