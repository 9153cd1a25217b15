"""The brokers of the comparison, each started as its documentation recommends, with the same queues.

What is not here is fetched, what cannot be had is left out with the reason.
"""

from __future__ import annotations

import ctypes.util
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from peeklock.client import parse_endpoint
from tools.bench.artemis import Artemis
from tools.bench.brokers import QUEUE, Peeklock
from tools.bench.debian import codename, unpack
from tools.bench.packages import Unavailable, fetch_artemis, once
from tools.bench.processes import StartFailed, cpu_seconds, resident_bytes, tree
from tools.bench.proton import Access
from tools.bench.rabbitmq import QUEUE_TYPES, Node

MANY: Final = 100
"""The number of queues in cells with many queues."""
NEWER_DEBIAN: Final = "trixie"
"""The Debian release that has RabbitMQ 4."""
CONFIRMED: Final = "confirmed"
"""A kind of Peeklock's queues: with confirmed completions, as the official SDKs use. No other broker offers them."""
NAMES: Final = ("peeklock", "peeklock-interpreted", "rabbitmq", "rabbitmq4", "artemis")


class Broker(Protocol):
    """A broker that can be started again after it was stopped."""

    def start(self) -> float: ...
    def stop(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Running:
    """A running broker, and its kinds of queues that are measured."""

    name: str
    broker: Broker
    process: Callable[[], int]
    access: Callable[[], dict[str, Access]]
    """Addresses by kind of queue; the kind is empty if there is only one. Set at each start."""
    settings: dict[str, str]
    starts: list[float]
    """Seconds of the start, until a connection was accepted."""
    idle_bytes: int = 0

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of its processes so far."""
        return sum(cpu_seconds(pid) or 0.0 for pid in tree(self.process()))

    def resident_bytes(self) -> int:
        return sum(resident_bytes(pid) or 0 for pid in tree(self.process()))

    def highest_bytes(self) -> int:
        """Return the peak memory of the main process since its start."""
        return resident_bytes(self.process(), "VmHWM") or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The folders of the brokers' programs and data."""

    cache: Path
    data: Path
    rabbitmq: Path | None = None
    """The folder with the scripts of an installed RabbitMQ, in place of Debian's."""
    rabbitmq4: Path | None = None
    artemis: Path | None = None
    """A folder with a distribution of Artemis."""
    compiled: Path | None = None
    """The folder of a compiled Peeklock, measured in addition to the interpreted one."""


def start_all(
    names: tuple[str, ...], places: Places, starts: int, started: ExitStack
) -> tuple[list[Running], dict[str, str]]:
    """Start the available brokers; returns those that run, and the reasons why others are missing."""
    running, missing = [], {}
    for name in names:
        folder = places.data / name
        folder.mkdir()
        print(f"Starting {_CALLED[name]} ...", flush=True)
        try:
            one = _MAKERS[name](places, folder, started)
            for _ in range(starts - 1):
                one.broker.stop()
                one.starts.append(one.broker.start())
        except (Unavailable, StartFailed) as failure:
            missing[_CALLED[name]] = str(failure)
            print(f"  not available: {failure}", flush=True)
            continue
        one.idle_bytes = one.resident_bytes()
        running.append(one)
    return running, missing


def queue_names(kind: str = "") -> Iterator[str]:
    """Return one queue, and many."""
    first = f"{QUEUE}-{kind}" if kind else QUEUE
    yield first
    yield from (f"{first}-{number:03d}" for number in range(MANY))


# --- each of them ---


def _interpreted(places: Places, folder: Path, started: ExitStack) -> Running:
    if places.compiled is None:
        raise Unavailable("Peeklock is not compiled in this run")
    return _peeklock(places, folder, started, interpreted=True)


def _peeklock(places: Places, folder: Path, started: ExitStack, interpreted: bool = False) -> Running:
    broker = Peeklock(folder, started, interpreted=interpreted, queues={name: {} for name in queue_names()})
    first = broker.start()

    def access() -> dict[str, Access]:
        endpoint = parse_endpoint(broker.target().url)
        as_others = Access(port=endpoint.port, address=QUEUE, user=endpoint.key_name, password=endpoint.key)
        # The interpreted one shows the difference only, which is the same for all kinds of queues.
        return {"": as_others} | ({} if interpreted else {CONFIRMED: replace(as_others, confirmed=True)})

    settings = {"store": "its log, synced at every commit; SQLite as its index"}
    return Running(
        name=broker.name,
        broker=broker,
        process=lambda: broker.pid,
        access=access,
        settings=settings,
        starts=[first],
    )


def _rabbitmq_of_debian(places: Places, folder: Path, started: ExitStack) -> Running:
    if places.rabbitmq is not None:
        return _rabbitmq(places.rabbitmq, None, folder, started)
    root = unpack("rabbitmq-server", places.cache / f"rabbitmq-{codename()}")
    return _rabbitmq(root / "usr/lib/rabbitmq/bin", root / "usr/lib/erlang/bin", folder, started)


def _rabbitmq_4(places: Places, folder: Path, started: ExitStack) -> Running:
    if places.rabbitmq4 is not None:
        return _rabbitmq(places.rabbitmq4, None, folder, started)
    if codename() == NEWER_DEBIAN:
        raise Unavailable("RabbitMQ of this Debian is a 4.x already")
    root = unpack("rabbitmq-server", places.cache / f"rabbitmq-{NEWER_DEBIAN}", NEWER_DEBIAN)
    return _rabbitmq(root / "usr/lib/rabbitmq/bin", root / "usr/lib/erlang/bin", folder, started)


def _rabbitmq(scripts: Path, erlang: Path | None, folder: Path, started: ExitStack) -> Running:
    if not (scripts / "rabbitmq-server").exists():
        raise StartFailed(f"there is no rabbitmq-server in {scripts}")
    queues = {name: kind for kind in QUEUE_TYPES for name in queue_names(kind)}
    node = Node(scripts, folder, queues, started, erlang)
    first = node.start()

    def process() -> int:
        assert node.pid is not None
        return node.pid

    def access() -> dict[str, Access]:
        return {
            kind: Access(port=node.port, address=f"{node.prefix}{QUEUE}-{kind}", user=node.user, password=node.password)
            for kind in QUEUE_TYPES
        }

    settings = {"AMQP 1.0": "a plugin" if node.version[0] < 4 else "built in", "queues": "durable, defaults"}
    return Running(name=node.name, broker=node, process=process, access=access, settings=settings, starts=[first])


def _artemis(places: Places, folder: Path, started: ExitStack) -> Running:
    home = places.artemis or fetch_artemis(places.cache)
    if not (home / "bin/artemis").exists():
        raise StartFailed(f"there is no bin/artemis in {home}")
    broker = Artemis(home, folder, tuple(queue_names()), started, _asynchronous_io(places.cache))
    first = broker.start()

    def access() -> dict[str, Access]:
        return {"": Access(port=broker.port, address=QUEUE, user=broker.user, password=broker.password)}

    return Running(
        name=f"Artemis {broker.version}",
        broker=broker,
        process=lambda: broker.pid,
        access=access,
        settings=broker.settings,
        starts=[first],
    )


def _asynchronous_io(cache: Path) -> Path | None:
    """Return the folder of libaio, which makes Artemis's journal faster; None if installed or unavailable."""
    if ctypes.util.find_library("aio") is not None:
        return None

    def make(folder: Path, package: str) -> None:
        root = unpack(package, cache / f"{package}-{codename()}")
        found = next(root.rglob("libaio.so.1*"), None)
        if found is None:
            raise Unavailable(f"{package} has no library")
        # In a folder without the other unpacked libraries: Java must use the system's.
        shutil.copy(found.resolve(), folder / "libaio.so.1")

    for name in ("libaio1", "libaio1t64"):
        try:
            return once(cache / "libaio", partial(make, package=name))
        except Unavailable:
            continue
    print("  without libaio: its journal uses plain files")
    return None


_CALLED: Final = {
    "peeklock": "Peeklock",
    "peeklock-interpreted": "Peeklock, interpreted",
    "rabbitmq": "RabbitMQ of this Debian",
    "rabbitmq4": "RabbitMQ 4",
    "artemis": "ActiveMQ Artemis",
}
_MAKERS: Final[dict[str, Callable[[Places, Path, ExitStack], Running]]] = {
    "peeklock": _peeklock,
    "peeklock-interpreted": _interpreted,
    "rabbitmq": _rabbitmq_of_debian,
    "rabbitmq4": _rabbitmq_4,
    "artemis": _artemis,
}
