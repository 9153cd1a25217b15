"""The broker's process: the ordinary `peeklock serve`, with a clock and a disk that do as they are told.

The first line on standard input says how to start, as JSON: a process may wait for it with all modules loaded, which
takes most of the time of a start. Further lines are commands, and are answered on standard output, after the line
with the connection string. When the input ends, whoever started this is gone, and so goes the broker.
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
"""So short that a run fills, frees and uses again many of them."""


class Clock:
    """The machine's, set so far ahead; and so much more time has passed."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.passed = 0

    def now(self) -> int:
        return system_clock.now() + self.offset

    def monotonic(self) -> int:
        return system_clock.monotonic() + self.passed


def obey(clock: Clock, disk: Disk) -> None:
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
        return  # not needed after all
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
    threading.Thread(target=obey, args=(clock, disk), name="chaos", daemon=True).start()
    sys.argv = ["peeklock", "serve", "--port", str(wanted["port"])]
    sys.argv += ["--config", wanted["config"], "--data", wanted["data"]]
    main.main()


if __name__ == "__main__":
    launch()
