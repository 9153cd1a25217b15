"""The cost of decoding a page of messages into a record batch, without a broker and without Spark.

Each build decodes in a process of its own, one after the other within each round. Beside it the codec decodes the same
messages one by one into Python objects: the ratio to that says more than microseconds of this machine.
"""

from __future__ import annotations

import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tools.bench.report import figure, machine, print_table

CODEC: Final = "the codec, one by one"
_WORKS: Final = (CODEC, "all columns", "all columns, json", "all columns, list", "body and number", "body")
_ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of this benchmark."""

    count: int = 1000
    """Messages of a page."""
    size: int = 1024
    rounds: int = 5
    compiled: Path | None = None


def run(options: Options, folder: Path, started: ExitStack) -> dict[str, Any]:
    """Measure, print the table, and return all figures."""
    builds = {"Python": _ROOT / "src"}
    if options.compiled is not None:
        builds["compiled"] = options.compiled.resolve()
    print(f"Rows: {options.count:,} messages of {options.size:,} bytes in a page, with an id and three properties.")
    print(machine())
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(options.rounds):
        rounds.append({name: _measured(path, options) for name, path in builds.items()})
    for name in builds:
        medians = {work: statistics.median(each[name][work] for each in rounds) for work in _WORKS}
        rows = [(work, figure(took, 2), figure(took / medians[CODEC], 3)) for work, took in medians.items()]
        print_table(f"Decoding, {name}", ("columns", "µs of CPU a message", "to the codec"), rows)
    return {"benchmark": "rows", "machine": machine(), "options": _plain(options), "rounds": rounds}


def _plain(options: Options) -> dict[str, Any]:
    return {**asdict(options), "compiled": options.compiled is not None}


def _measured(source: Path, options: Options) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{_ROOT}"}
    command = [sys.executable, "-m", "tools.bench.rows", str(options.count), str(options.size)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise ValueError(f"decoding failed: {done.stderr.strip()[-500:]}")
    return dict(json.loads(done.stdout))


def _work(count: int, size: int) -> dict[str, float]:
    """Return the CPU microseconds per message. The measured modules are imported here, from this process's build."""
    import pyarrow as pa

    from peeklock.broker.heads import head
    from peeklock.client import Message, Properties
    from peeklock.spark.rows import ARROW_SCHEMA, batch_of, batch_of_page
    from peeklock.store.base import StoredMessage

    payloads = []
    for number in range(count):
        bare = Message(
            properties=Properties(message_id=f"message-{number:08}"),
            application_properties={"kind": "order", "region": "north", "part": f"part-{number}"},
            data=[bytes(size)],
        )
        stored = StoredMessage(sequence_number=number, payload=b"", enqueued_at=1_893_456_000_000 + number)
        payloads.append(head(stored, None, with_state=True) + bare.encode())
    page = b"".join(struct.pack(">I", len(payload)) + payload for payload in payloads)
    body = pa.schema([ARROW_SCHEMA.field("body")])
    both = body.append(ARROW_SCHEMA.field("sequence_number"))
    works: tuple[Callable[[], Any], ...] = (
        lambda: [Message.decode(payload) for payload in payloads],
        lambda: batch_of_page(page, "queue"),
        lambda: batch_of_page(page, "queue", True),
        lambda: batch_of(payloads, "queue"),
        lambda: batch_of_page(page, "queue", schema=both),
        lambda: batch_of_page(page, "queue", schema=body),
    )
    return {name: _quickest(work) / count * 1e6 for name, work in zip(_WORKS, works, strict=True)}


def _quickest(work: Callable[[], Any], times: int = 20) -> float:
    """Return the minimum of several runs: other load of the machine only adds time."""
    taken = []
    for _ in range(times):
        began = time.thread_time()
        work()
        taken.append(time.thread_time() - began)
    return min(taken)


if __name__ == "__main__":
    print(json.dumps(_work(int(sys.argv[1]), int(sys.argv[2]))))
