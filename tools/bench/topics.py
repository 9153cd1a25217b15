"""The rate of sending to a topic, by the number of its subscriptions and the kind of their filters.

Each message passes the filter of one subscription. When that is always the same one, as much is stored and in as many
places as for a plain queue, and the difference to it is what the rules cost. When all subscriptions have their turn,
the store's cost of writing to many places comes on top.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from peeklock.client import connect
from tools.bench.brokers import LARGEST, Peeklock, Target
from tools.bench.interrupts import interrupts
from tools.bench.load import LoadFailed, LoadProcesses, SendNumbered
from tools.bench.processes import file_system
from tools.bench.report import NOTHING, figure, machine, median, print_table
from tools.bench.throughput import Phase, phase

_WARM_UP: Final = 2000
_SECONDS: Final = 10.0

FILTERS: Final[dict[str, Callable[[int], dict[str, Any]]]] = {
    "SQL": lambda number: {"FilterType": "Sql", "SqlFilter": {"SqlExpression": f"number = {number}"}},
    "correlation": lambda number: {
        "FilterType": "Correlation",
        "CorrelationFilter": {"Properties": {"number": number}},
    },
}
"""By kind: the rule of the subscription for the messages with a number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 20_000
    """Messages sent to each topic in each round; they are not received."""
    size: int = 1024
    rounds: int = 3
    subscriptions: tuple[int, ...] = (1, 10, 100, 1000)


@dataclass(slots=True)
class Measured:
    """All rounds of one topic, or of the queue."""

    filters: str
    subscriptions: int
    one: list[Phase] = field(default_factory=list)
    """The rate when all messages match the same subscription."""
    spread: list[Phase] = field(default_factory=list)
    """The rate when the messages match all subscriptions in turn."""

    @property
    def topic(self) -> str:
        return f"{self.filters}-{self.subscriptions}".lower()


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    print(f"Topics: {options.count:,} messages of {options.size:,} bytes, each for one subscription.")
    print(f"{machine()}; data on {file_system(folder)}.")
    topics = [Measured(kind, number) for kind in FILTERS for number in options.subscriptions]
    queue = Measured("plain queue", 1)
    broker = Peeklock(folder, started, topics=[_definition(each) for each in topics])
    broker.start()
    with interrupts.held():
        loads = started.enter_context(LoadProcesses(1))
    plain = broker.target()
    targets = {each.topic: broker.target(each.topic) for each in topics}
    for target in (plain, *targets.values()):
        _send(loads, target, min(_WARM_UP, options.count), options.size, range(1))
    for _ in range(options.rounds):
        # Alternating within each round, so that other load of the machine affects all of them.
        queue.one.append(_send(loads, plain, options.count, options.size, range(1)))
        for each in topics:
            for phases, first in ((each.one, each.subscriptions - 1), (each.spread, 0)):
                numbers = range(first, each.subscriptions)
                phases.append(_send(loads, targets[each.topic], options.count, options.size, numbers))
    for each in topics:
        _check(targets[each.topic], each.subscriptions - 1)
    _print(queue, topics, options)
    return {
        "benchmark": "topics",
        "machine": machine(),
        "file_system": file_system(folder),
        "options": asdict(options),
        "rounds": [asdict(each) for each in (queue, *topics)],
    }


def _definition(topic: Measured) -> dict[str, Any]:
    rule = FILTERS[topic.filters]
    subscriptions = [
        {"Name": _subscription(number), "Rules": [{"Name": "rule", "Properties": rule(number)}]}
        for number in range(topic.subscriptions)
    ]
    return {"Name": topic.topic, "Properties": LARGEST, "Subscriptions": subscriptions}


def _subscription(number: int) -> str:
    return f"subscription-{number}"


def _send(loads: LoadProcesses, target: Target, count: int, size: int, numbers: range) -> Phase:
    job = SendNumbered(url=target.url, address=target.address, count=count, size=size, numbers=numbers)
    return phase(loads, target, [job])


def _check(target: Target, number: int) -> None:
    """Raise LoadFailed unless the messages are in the right subscriptions: filters that match nothing would be fast."""
    address = f"{target.address}/Subscriptions/{_subscription(number)}"
    with connect(target.url) as connection:
        (message,) = connection.receiver(address, credit=1).receive(1, timeout=_SECONDS) or (None,)
    properties = {} if message is None else message.message.application_properties or {}
    if properties.get("number") != number:
        raise LoadFailed(f"the messages for {address} are not there")


def _print(queue: Measured, topics: list[Measured], options: Options) -> None:
    print_table(
        f"Sending, medians of {options.rounds} (µs: the broker's CPU time for each message; ratio: to the queue)",
        ["filters", "subscriptions", "to one/s", "µs", "ratio", "to all/s", "µs", "ratio"],
        [
            [each.filters, str(each.subscriptions), *_words(each.one, queue), *_words(each.spread, queue)]
            for each in (queue, *topics)
        ],
    )


def _words(phases: list[Phase], queue: Measured) -> list[str]:
    if not phases:
        return [NOTHING] * 3
    ratios = [own.per_second / plain.per_second for own, plain in zip(phases, queue.one, strict=True)]
    return [
        figure(statistics.median(each.per_second for each in phases)),
        figure(median([each.cpu_us for each in phases]), 1),
        figure(statistics.median(ratios), 2),
    ]
