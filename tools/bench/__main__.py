"""`python -m tools.bench`: the command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tools.bench import (
    backlog,
    batches,
    capture,
    claims,
    growth,
    operations,
    page,
    peers,
    rows,
    spark,
    spark_peers,
    throughput,
    topics,
)
from tools.bench.brokers import use_compiled
from tools.bench.interrupts import Stopped, interrupts
from tools.bench.load import LoadFailed
from tools.bench.packages import Unavailable
from tools.bench.peer_brokers import MANY, NAMES, Places
from tools.bench.processes import StartFailed

_DESCRIPTION: Final = "Start a broker on loopback and measure it with durable messages."
_EPILOG: Final = (
    "Without a command, short versions of all benchmarks without Spark run. docs/benchmarks.md explains the figures."
)
_LONGER: Final = """\
This was the short version. For figures to compare:
  python -m tools.bench throughput
  python -m tools.bench backlog
  python -m tools.bench operations
  python -m tools.bench claims
  python -m tools.bench topics
  python -m tools.bench rows
  python -m tools.bench spark
  python -m tools.bench spark-peers
  python -m tools.bench capture
  python -m tools.bench batches
  python -m tools.bench peers
  python -m tools.bench growth"""

_TIME_LIMIT: Final = 1800
_TIME_LIMITS: Final = {"peers": 7200, "growth": 7200, "spark-peers": 7200}

Measure = Callable[[Path, ExitStack], dict[str, Any]]


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    interrupts.watch(options.time_limit or _TIME_LIMITS.get(options.command, _TIME_LIMIT))
    results: list[dict[str, Any]] = []
    try:
        if options.command == "page":
            for written in page.write(options.pages, options.peers, options.growth):
                print(written)
            return 0
        if options.compiled is not None:
            use_compiled(options.compiled)
        for measure in _measures(options):
            results.append(_measured(measure, options.folder))
            print()
    except (StartFailed, LoadFailed, Unavailable, ValueError, OSError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    except Stopped as stopped:
        print(f"bench: {stopped}", file=sys.stderr)
        return 130
    finally:
        if options.json is not None and results:
            options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.command is None:
        print(_LONGER)
    return 0


def _measures(options: argparse.Namespace) -> list[Measure]:
    if options.command == "throughput":
        chosen = throughput.Options(
            count=options.count,
            size=options.size,
            connections=options.connections,
            rounds=options.rounds,
            latency_count=options.latency_count,
            memory=options.memory,
            peers=not options.no_peer,
            rabbitmq=options.rabbitmq,
            peer=options.peer,
            peer_address=options.peer_address,
        )
        return [lambda folder, started: throughput.run(chosen, folder, started)]
    if options.command == "backlog":
        long = backlog.Options(count=options.count, size=options.size, rounds=options.rounds)
        return [lambda folder, started: backlog.run(long, folder, started)]
    if options.command == "operations":
        many = operations.Options(count=options.count, size=options.size, rounds=options.rounds)
        return [lambda folder, started: operations.run(many, folder, started)]
    if options.command == "claims":
        claimed = claims.Options(
            count=options.count, size=options.size, rounds=options.rounds, batch=options.batch_size
        )
        return [lambda folder, started: claims.run(claimed, folder, started)]
    if options.command == "topics":
        wide = topics.Options(
            count=options.count, size=options.size, rounds=options.rounds, subscriptions=options.subscriptions
        )
        return [lambda folder, started: topics.run(wide, folder, started)]
    if options.command == "rows":
        decoded = rows.Options(count=options.count, size=options.size, rounds=options.rounds, compiled=options.compiled)
        return [lambda folder, started: rows.run(decoded, folder, started)]
    if options.command == "spark":
        queried = spark.Options(
            count=options.count,
            sizes=options.sizes,
            tasks=options.tasks,
            modes=options.modes,
            rounds=options.rounds,
            per_trigger=options.per_trigger,
        )
        return [lambda folder, started: spark.run(queried, folder, started)]
    if options.command == "spark-peers":
        beside_kafka = spark_peers.Options(
            count=options.count,
            size=options.size,
            batches=options.batches,
            cores=options.cores,
            rounds=options.rounds,
            compiled=options.compiled,
            cache=options.cache.resolve(),
            peer=not options.no_peer,
        )
        return [lambda folder, started: spark_peers.run(beside_kafka, folder, started)]
    if options.command == "capture":
        whole = capture.Options(
            count=options.count, size=options.size, batch_size=options.batch_size, tasks=options.tasks
        )
        return [lambda folder, started: capture.run(whole, folder, started)]
    if options.command == "batches":
        hour = batches.Options(
            batches=options.batches,
            messages=options.messages,
            size=options.size,
            tasks=options.tasks,
            sink=options.sink,
        )
        return [lambda folder, started: batches.run(hour, folder, started)]
    if options.command == "peers":
        chosen_peers = _peers(options)
        results = options.results or options.cache / "peers.json"

        def compare(folder: Path, started: ExitStack) -> dict[str, Any]:
            places = Places(
                cache=options.cache.resolve(),
                data=folder,
                rabbitmq=options.rabbitmq,
                rabbitmq4=options.rabbitmq4,
                artemis=options.artemis,
                compiled=options.compiled,
            )
            return peers.run(chosen_peers, places, results, started, options.goes_on)

        return [compare]
    if options.command == "growth":
        curves = growth.Options(
            messages=options.messages,
            entities=options.entities,
            connections=options.connections,
            sessions=options.sessions,
            curves=options.curves,
            size=options.size,
            sample=options.sample,
            rounds=options.rounds,
        )
        return [lambda folder, started: growth.run(curves, folder, started, options.results)]
    return [
        lambda folder, started: throughput.run(throughput.Options(count=20_000, latency_count=300), folder, started),
        lambda folder, started: backlog.run(backlog.Options(count=100_000), folder, started),
        lambda folder, started: operations.run(operations.Options(count=4000, rounds=1), folder, started),
        lambda folder, started: topics.run(topics.Options(count=2000, rounds=1), folder, started),
    ]


def _peers(options: argparse.Namespace) -> peers.Options:
    base = peers.Options(brokers=options.brokers, minutes=options.minutes)
    if options.quick:
        base = base.quick()
    given = {name: getattr(options, name) for name in ("sizes", "connections", "queues", "rounds", "count", "rates")}
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def _measured(measure: Measure, parent: Path | None) -> dict[str, Any]:
    with interrupts.held(), ExitStack() as started:
        # Signals are delayed while the stack is closed; each of its steps has a time limit.
        folder = Path(started.enter_context(tempfile.TemporaryDirectory(prefix="peeklock-bench-", dir=parent)))
        with interrupts.released():
            return measure(folder, started)


# --- arguments ---


def _parser() -> argparse.ArgumentParser:
    common = _common()
    body = argparse.ArgumentParser(add_help=False)
    body.add_argument("--size", type=_between(8, 250_000), default=1024, help="bytes of a body (default: 1024)")
    load = argparse.ArgumentParser(add_help=False, parents=[body])
    load.add_argument("--rounds", type=_between(1, 100), default=3, help="(default: 3)")

    parser = argparse.ArgumentParser(prog="bench", description=_DESCRIPTION, epilog=_EPILOG, parents=[_common()])
    parser.set_defaults(json=None, folder=None, compiled=None, time_limit=None)
    commands = parser.add_subparsers(dest="command")

    speed = commands.add_parser("throughput", parents=[common, load], help="messages per second, latency, CPU, memory")
    speed.add_argument("--count", type=_between(1, 5_000_000), default=100_000, help="(default: 100000)")
    speed.add_argument("--connections", type=_numbers(64), default=(1, 8), metavar="1,8", help="(default: 1,8)")
    speed.add_argument("--latency-count", type=_between(1, 100_000), default=1000, help="(default: 1000)")
    speed.add_argument("--memory", action="store_true", help="measure Peeklock with the store in memory")
    speed.add_argument("--no-peer", action="store_true", help="do not measure RabbitMQ")
    speed.add_argument(
        "--rabbitmq", type=Path, metavar="FOLDER", help="folder of RabbitMQ's scripts, if it is not found"
    )
    speed.add_argument(
        "--peer", metavar="URL", help="a running broker on this machine: amqp://user:pass@localhost:5672"
    )
    speed.add_argument("--peer-address", default="/queues/bench", help="an empty queue of it (default: /queues/bench)")

    long = commands.add_parser("backlog", parents=[common, load], help="memory, restart and speed with a long queue")
    long.add_argument("--count", type=_between(100, 4_000_000), default=1_000_000, help="(default: 1000000)")

    many = commands.add_parser("operations", parents=[common, load], help="$management operations in batches")
    many.add_argument("--count", type=_between(20, 1_000_000), default=20_000, help="(default: 20000)")

    aside = commands.add_parser("claims", parents=[common, load], help="claiming, packed reading and removing")
    aside.add_argument("--count", type=_between(1, 4_000_000), default=500_000, help="(default: 500000)")
    aside.add_argument(
        "--batch-size", type=_between(1, 1_000_000), default=100_000, help="messages of a claim (default: 100000)"
    )

    wide = commands.add_parser("topics", parents=[common, load], help="sending to topics with many subscriptions")
    wide.add_argument("--count", type=_between(1, 200_000), default=20_000, help="(default: 20000)")
    wide.add_argument(
        "--subscriptions",
        type=_numbers(2000),
        default=(1, 10, 100, 1000),
        metavar="1,10",
        help="numbers of subscriptions, each of one topic (default: 1,10,100,1000)",
    )

    decoding = commands.add_parser(
        "rows", parents=[common], help="the cost of decoding messages for Spark, without a broker and without Spark"
    )
    decoding.add_argument("--count", type=_between(1, 100_000), default=1000, help="messages of a page (default: 1000)")
    decoding.add_argument("--size", type=_between(0, 250_000), default=1024, help="bytes (default: 1024)")
    decoding.add_argument("--rounds", type=_between(1, 100), default=5, help="(default: 5)")

    queries = commands.add_parser(
        "spark", parents=[common], help="the Spark data source compared with the plain client"
    )
    queries.add_argument("--count", type=_between(1, 1_000_000), default=100_000, help="(default: 100000)")
    queries.add_argument("--rounds", type=_between(1, 100), default=3, help="(default: 3)")
    queries.add_argument("--sizes", type=_numbers(250_000), default=(1024, 10_240), help="(default: 1024,10240)")
    queries.add_argument("--tasks", type=_numbers(16), default=(1, 2), metavar="1,2", help="(default: 1,2)")
    queries.add_argument(
        "--modes",
        type=_some_of(tuple(spark.MODES)),
        default=tuple(spark.MODES),
        metavar=",".join(spark.MODES),
        help="(default: all)",
    )
    queries.add_argument(
        "--per-trigger",
        type=_between(1, 1_000_000),
        default=50_000,
        help="messages of a micro-batch (default: 50000)",
    )

    kafka = commands.add_parser(
        "spark-peers", parents=[common, load], help="the Spark data source compared with Kafka and Spark's own source"
    )
    kafka.add_argument("--count", type=_between(10, 4_000_000), default=500_000, help="(default: 500000)")
    kafka.add_argument(
        "--batches",
        type=_numbers(1_000_000),
        default=(100_000,),
        metavar="50000,100000",
        help="messages of a micro-batch (default: 100000)",
    )
    kafka.add_argument("--no-peer", action="store_true", help="do not measure Kafka")
    kafka.add_argument("--cores", type=_between(1, 16), default=2, help="(default: 2)")
    kafka.add_argument(
        "--cache", type=Path, default=Path(".peers"), help="folder for fetched programs (default: .peers)"
    )

    whole = commands.add_parser(
        "capture", parents=[common, body], help="a queue into Parquet, with the time of each stage"
    )
    whole.add_argument("--count", type=_between(1, 4_000_000), default=1_000_000, help="(default: 1000000)")
    whole.add_argument(
        "--batch-size",
        type=_between(1, 1_000_000),
        default=10_000,
        help="messages of a micro-batch (default: 10000, the default of `peeklock pipeline capture`)",
    )
    whole.add_argument("--tasks", type=_between(1, 16), default=2, help="(default: 2)")

    hour = commands.add_parser("batches", parents=[common, body], help="memory over an hour's number of micro-batches")
    hour.add_argument("--batches", type=_between(4, 100_000), default=3600, help="(default: 3600)")
    hour.add_argument(
        "--messages", type=_between(1, 10_000), default=10, help="messages of a micro-batch (default: 10)"
    )
    hour.add_argument("--tasks", type=_between(1, 16), default=2, help="(default: 2)")
    hour.add_argument("--sink", choices=batches.SINKS, default="noop", help="(default: noop)")

    _add_peers(commands, common)
    _add_growth(commands, common)
    made = commands.add_parser("page", parents=[common], help="write the generated parts of docs/benchmarks")
    made.add_argument("--peers", type=Path, metavar="FILE", help="the results of peers")
    made.add_argument("--growth", type=Path, metavar="FILE", help="the results of growth")
    made.add_argument("--pages", type=Path, default=Path("docs/benchmarks"), help="(default: docs/benchmarks)")
    return parser


def _common() -> argparse.ArgumentParser:
    """Return the options that are allowed before and after the command.

    A parser of its own for each of both: the defaults of the first would else be set again by the second.
    """
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--json", type=Path, metavar="FILE", default=argparse.SUPPRESS, help="write all figures to this file"
    )
    common.add_argument(
        "--folder",
        type=Path,
        default=argparse.SUPPRESS,
        help="folder for the brokers' data during the run (default: the system's temporary folder)",
    )
    common.add_argument(
        "--compiled",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FOLDER",
        help="measure the compiled Peeklock in this folder, made by `make compiled` (default: src)",
    )
    common.add_argument(
        "--time-limit",
        type=_between(1, 86_400),
        default=argparse.SUPPRESS,
        metavar="SECONDS",
        help="end the run after so many seconds (default: 1800; peers, growth and spark-peers: 7200)",
    )
    return common


def _add_peers(commands: Any, common: argparse.ArgumentParser) -> None:
    beside = commands.add_parser(
        "peers", parents=[common], help="compared with RabbitMQ and Artemis, with one load client"
    )
    usual = peers.Options()
    beside.add_argument("--quick", action="store_true", help="a few cells, some minutes")
    beside.add_argument(
        "--cache", type=Path, default=Path(".peers"), help="folder for fetched programs (default: .peers)"
    )
    beside.add_argument(
        "--results", type=Path, metavar="FILE", help="file of the figures (default: peers.json in the cache)"
    )
    beside.add_argument("--continue", dest="goes_on", action="store_true", help="keep the figures in the file")
    beside.add_argument(
        "--brokers", type=_some_of(NAMES), default=NAMES, metavar=",".join(NAMES), help="(default: all)"
    )
    beside.add_argument(
        "--sizes", type=_numbers(200_000, 8), metavar="100,1024", help="bytes (default: 100,1024,65536)"
    )
    beside.add_argument("--connections", type=_numbers(256), metavar="1,16", help="(default: 1,16)")
    beside.add_argument("--queues", type=_some_of_numbers((1, MANY)), metavar=f"1,{MANY}", help="(default: both)")
    beside.add_argument("--rounds", type=_between(1, 100), help=f"(default: {usual.rounds})")
    beside.add_argument("--count", type=_between(1, 1_000_000), help=f"messages of a cell (default: {usual.count})")
    beside.add_argument(
        "--rates", type=_numbers(100_000), metavar="1000,5000", help="messages per second at which latency is measured"
    )
    beside.add_argument(
        "--minutes",
        type=_between(1, 600),
        default=usual.minutes,
        help="minutes after which no new cell is started (default: 40)",
    )
    beside.add_argument("--rabbitmq", type=Path, metavar="FOLDER", help="scripts of a RabbitMQ, in place of Debian's")
    beside.add_argument("--rabbitmq4", type=Path, metavar="FOLDER", help="scripts of a RabbitMQ 4")
    beside.add_argument("--artemis", type=Path, metavar="FOLDER", help="a distribution of Artemis")


def _add_growth(commands: Any, common: argparse.ArgumentParser) -> None:
    grows = commands.add_parser("growth", parents=[common], help="the cost of a message as something grows")
    usual = growth.Options()
    grows.add_argument("--results", type=Path, metavar="FILE", help="write the figures to this file after each curve")
    grows.add_argument(
        "--curves", type=_some_of(growth.CURVES), default=growth.CURVES, metavar=",".join(growth.CURVES), help="(all)"
    )
    for name, most in (("messages", 20_000_000), ("entities", 10_000), ("connections", 5000), ("sessions", 200_000)):
        values = getattr(usual, name)
        shown = ",".join(map(str, values))
        grows.add_argument(
            f"--{name}", type=_numbers(most), default=values, metavar="1,100", help=f"(default: {shown})"
        )
    grows.add_argument("--size", type=_between(8, 250_000), default=usual.size, help="(default: 100)")
    grows.add_argument(
        "--sample",
        type=_between(40, 1_000_000),
        default=usual.sample,
        help="messages measured for one figure (default: 40000)",
    )
    grows.add_argument("--rounds", type=_between(1, 100), default=usual.rounds, help="(default: 3)")


def _some_of_numbers(choices: tuple[int, ...]) -> Callable[[str], tuple[int, ...]]:
    chosen = _some_of(tuple(map(str, choices)))
    return lambda text: tuple(map(int, chosen(text)))


def _some_of(choices: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def some(text: str) -> tuple[str, ...]:
        given = tuple(dict.fromkeys(text.split(",")))
        for each in given:
            if each not in choices:
                raise argparse.ArgumentTypeError(f"must be of {', '.join(choices)}, not {each}")
        return given

    return some


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be from {least} to {most}, not {value}")
        return value

    return number


def _numbers(most: int, least: int = 1) -> Callable[[str], tuple[int, ...]]:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(dict.fromkeys(_between(least, most)(part) for part in text.split(",")))

    return numbers


if __name__ == "__main__":
    sys.exit(main())
