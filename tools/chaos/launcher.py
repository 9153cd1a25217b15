"""The broker's process: the ordinary `peeklock serve` with a clock and a disk that the run controls.

The first line on standard input has the options of the start as JSON. A process can be created early and wait for it
with all modules loaded, because loading takes most of the time of a start. Further lines are commands; each is answered
by a line on standard output, after the line with the connection string. When the input ends, the process ends too: its
parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final

from peeklock.broker.agenda import system_clock
from peeklock.cli import main, serve
from peeklock.server.broker import Options
from peeklock.store.disk.log import segments
from tools.chaos.disk import Disk, DiskError, Mode
from tools.chaos.sabotage import BROKEN

_SEGMENT_BYTES: Final = 64 * 1024
"""Short, so that a run fills, frees and reuses many segments."""


class Clock:
    """The machine's clock with an offset, and its monotonic clock with additional time."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.passed = 0

    def now(self) -> int:
        return system_clock.now() + self.offset

    def monotonic(self) -> int:
        return system_clock.monotonic() + self.passed


def handle_commands(clock: Clock, disk: Disk) -> None:
    """Apply the commands on standard input to the clock and the disk."""
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        if "offset" in command:
            clock.offset = command["offset"]
            clock.passed += command["passed"]
        if "mode" in command:
            disk.every, disk.seconds = command["every"], command["seconds"]
            disk.mode = Mode(command["mode"])
        print("{}", flush=True)
    os._exit(1)


def launch() -> None:
    line = sys.stdin.readline()
    if not line:
        return  # this process was not needed
    wanted: dict[str, Any] = json.loads(line)
    clock, disk = Clock(wanted["offset"]), Disk(Path(wanted["data"]), Path(wanted["unsynced"]))
    disk.mode = Mode(wanted["mode"])
    try:
        disk.install()
    except DiskError as error:
        sys.exit(f"chaos: {error}")
    if wanted["broken"] is not None:
        BROKEN[wanted["broken"]]()
    vars(segments).update(SMALLEST=_SEGMENT_BYTES, LARGEST=_SEGMENT_BYTES)
    vars(serve)["Options"] = partial(Options, clock=clock)
    threading.Thread(target=handle_commands, args=(clock, disk), name="chaos", daemon=True).start()
    sys.argv = ["peeklock", "serve", "--port", str(wanted["port"])]
    sys.argv += ["--config", wanted["config"], "--data", wanted["data"]]
    main.main()


if __name__ == "__main__":
    launch()
