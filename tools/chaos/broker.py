"""The broker under test, from outside: a process that is started, killed, stopped and told what to suffer."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import urlopen

from tools.chaos import log_tail
from tools.chaos.damage import names_file
from tools.chaos.disk import Mode
from tools.chaos.entities import config, place
from tools.chaos.history import ClockSet, History, Mishap, Outage, now

_ROOT: Final = Path(__file__).parents[2]
_DAMAGED: Final = re.compile(r"message (\d+) of (\S+) is damaged")
_ANSWER_SECONDS: Final = 10.0
_END_SECONDS: Final = 60.0
_PORTS: Final = Random()


_REFUSED: Final = 2
"""The exit code of a start that is refused, as documented."""


class StartFailed(Exception):
    """The broker did not start; `str()` has the end of its log."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The broker did not start, and what it said."""

    code: int
    said: str

    @property
    def is_proper(self) -> bool:
        """One clear sentence that names a file."""
        return self.code == _REFUSED and "Traceback" not in self.said and names_file(self.said)


class BrokerProcess:
    """One data folder, and one process after the other on it, on the same port."""

    def __init__(self, folder: Path, history: History, broken: str | None = None) -> None:
        self.data = folder / "data"
        self.unsynced = folder / "unsynced"
        """Where it is noted what is not synced."""
        self.port = _free_port()
        self.offset = 0
        """How far ahead its clock is, in milliseconds."""
        self._config = folder / "config.json"
        self._config.write_text(json.dumps(config(), indent=1))
        self._log = folder / "broker.log"
        self._logged = 0
        """How long it was at the last start."""
        self._history = history
        self._broken = broken
        self._down_at = now()
        self._serves = False
        self._process: subprocess.Popen[str] | None = None
        self._next: subprocess.Popen[str] | None = None
        """It has loaded its modules and waits to be told how to start."""

    def start(self, mode: Mode = Mode.FINE) -> None:
        """Start, on a disk that is already so, and wait until it serves."""
        if self.try_start(mode) is not None:
            text = f"the broker did not start: {self._last_words()}"
            self._history.add(Mishap(start=now(), end=now(), text=text))
            raise StartFailed(text)

    def try_start(self, mode: Mode = Mode.FINE) -> Refusal | None:
        """Start, and wait until it serves, or refuses to."""
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        process = self._begin(mode)
        assert process.stdout is not None
        if not process.stdout.readline():
            return Refusal(_reap(process), self._said())
        self._serves = True
        self._history.add(Outage(start=self._down_at, end=now()))
        return None

    def start_in_vain(self, seconds: float) -> None:
        """Start, and be killed after so long, which may be before it serves."""
        self._begin()
        time.sleep(seconds)
        self.kill()

    def _begin(self, mode: Mode = Mode.FINE) -> subprocess.Popen[str]:
        self._process = process = self._next or self._spawn()
        wanted = {
            "config": str(self._config),
            "data": str(self.data),
            "unsynced": str(self.unsynced),
            "mode": mode,
            "port": self.port,
            "offset": self.offset,
            "broken": self._broken,
        }
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(wanted) + "\n")
            process.stdin.flush()
        self._next = self._spawn()
        return process

    def close(self) -> None:
        """Leave no process behind."""
        for process in (self._process, self._next):
            if process is not None:
                process.kill()
                _reap(process)

    def _spawn(self) -> subprocess.Popen[str]:
        paths = [str(_ROOT / "src"), str(_ROOT)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tools.chaos.launcher"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                start_new_session=True,
            )

    def check(self) -> None:
        """A broker that ended by itself is a mishap; it is started again."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            text = f"the broker ended by itself with {code}: {self._last_words()}"
            self._history.add(Mishap(start=now(), end=now(), text=text))
            _reap(self._process)
            self._note_end()
            self.start()

    def kill(self) -> None:
        """As a power cut, but for what the system has not written yet: see `tear`."""
        self._note_end()
        if self._process is not None:
            self._process.kill()
            _reap(self._process)

    def tear(self, chance: Random) -> str:
        """Do something to what was written and not synced; says what."""
        return log_tail.tear(self.data, self.unsynced, chance)

    def suspend(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def set_clock(self, offset: int, passed: int = 0) -> None:
        """Set its clock; and have so much more time pass, by the clock that nobody sets."""
        begun = now()
        self.offset = offset  # a broker that has ended meanwhile is started again with it
        self._tell({"offset": offset, "passed": passed})
        self._history.add(ClockSet(start=begun, end=now(), offset=offset, passed=passed))

    def set_disk(self, mode: Mode, *, every: int = 1, seconds: float = 0.0) -> None:
        self._tell({"mode": mode, "every": every, "seconds": seconds})

    def stop(self) -> int:
        """As a user stops it; returns its exit code."""
        assert self._process is not None
        self._note_end()
        self._process.terminate()
        return _reap(self._process)

    def damaged(self) -> set[tuple[str, int]]:
        """Messages that it reported as damaged: entity and number."""
        found = _DAMAGED.findall(self._log.read_text(errors="replace"))
        return {(place(entity), int(number)) for number, entity in found}

    def health(self) -> str:
        """What it says of itself."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=_ANSWER_SECONDS) as answer:
                return str(json.load(answer)["message"])
        except HTTPError as error:
            return error.read().decode(errors="replace")
        except OSError as error:
            return f"no answer: {error}"

    def asks_for_restart(self) -> bool:
        """Whether it has said since its start that only another start helps."""
        return "Restart the broker" in self._said()

    def complaints(self) -> list[str]:
        """Failures of its own that are in its log."""
        text = self._log.read_text(errors="replace")
        return [f"its log has: {part[:2000]}" for part in text.split("Traceback")[1:]]

    def _said(self) -> str:
        """What it logged since its start."""
        return self._log.read_bytes()[self._logged :].decode(errors="replace").strip()

    def _last_words(self) -> str:
        """The end of what it logged."""
        return self._log.read_text(errors="replace")[-2000:].strip()

    def _note_end(self) -> None:
        """From now on what it has in memory may be gone; one that is killed before it serves is of the same outage."""
        if self._serves:
            self._serves = False
            self._down_at = now()

    def _tell(self, command: dict[str, Any]) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            answered = process.stdout.readline()
        except BrokenPipeError:
            answered = ""
        if not answered:
            _reap(process)
            self.check()


def _free_port() -> int:
    """Not one of those that systems give to connections: it must still be free after each kill."""
    while True:
        port = _PORTS.randrange(20_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _reap(process: subprocess.Popen[str]) -> int:
    code = process.wait(timeout=_END_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
    return code
