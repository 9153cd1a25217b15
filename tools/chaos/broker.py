"""The process of the broker under test: start, kill, suspend and stop it, and set its clock and its disk."""

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
from tools.chaos.history import BrokerFailure, ClockSet, History, Outage, now

_ROOT: Final = Path(__file__).parents[2]
_DAMAGED: Final = re.compile(r"message (\d+) of (\S+) is damaged")
_ANSWER_SECONDS: Final = 10.0
_END_SECONDS: Final = 60.0
_PORTS: Final = Random()
_REFUSED: Final = 2
"""The documented exit code of a refused start."""


class StartFailed(Exception):
    """The broker did not start; `str()` has the end of its log."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A start that the broker refused: its exit code and its log."""

    code: int
    log: str

    @property
    def is_documented(self) -> bool:
        """Whether the exit code is the documented one, and the log names a file and has no traceback."""
        return self.code == _REFUSED and "Traceback" not in self.log and names_file(self.log)


class BrokerProcess:
    """A data folder, and the broker processes that run on it one after the other, on the same port."""

    def __init__(self, folder: Path, history: History, broken: str | None = None) -> None:
        self.data = folder / "data"
        self.unsynced = folder / "unsynced"
        """The file that records which bytes are not synced."""
        self.port = _free_port()
        self.offset = 0
        """Milliseconds by which the broker's clock is ahead."""
        self._config = folder / "config.json"
        self._config.write_text(json.dumps(config(), indent=1))
        self._log = folder / "broker.log"
        self._logged = 0
        """The size of the log at the last start."""
        self._history = history
        self._broken = broken
        self._down_at = now()
        self._serves = False
        self._process: subprocess.Popen[str] | None = None
        self._next: subprocess.Popen[str] | None = None
        """The process for the next start, which has loaded its modules already."""

    def start(self, mode: Mode = Mode.FINE) -> None:
        """Start the broker with the disk in this mode, and wait until it serves. StartFailed if it does not."""
        if self.try_start(mode) is not None:
            text = f"the broker did not start: {self._last_words()}"
            self._history.add(BrokerFailure(start=now(), end=now(), text=text))
            raise StartFailed(text)

    def try_start(self, mode: Mode = Mode.FINE) -> Refusal | None:
        """Start the broker and wait until it serves; returns the refusal if it does not."""
        self._logged = self._log.stat().st_size if self._log.exists() else 0
        process = self._begin(mode)
        assert process.stdout is not None
        if not process.stdout.readline():
            return Refusal(_reap(process), self._log_since_start())
        self._serves = True
        self._history.add(Outage(start=self._down_at, end=now()))
        return None

    def start_and_kill(self, seconds: float) -> None:
        """Start the broker and kill it after so many seconds, possibly before it serves."""
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
        """Kill all processes."""
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
        """Start the broker again if its process has ended, and record that as a failure."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            text = f"the broker ended by itself with {code}: {self._last_words()}"
            self._history.add(BrokerFailure(start=now(), end=now(), text=text))
            _reap(self._process)
            self._note_end()
            self.start()

    def kill(self) -> None:
        """Kill the process. Unlike in a power cut, unsynced bytes stay in the files; see `tear`."""
        self._note_end()
        if self._process is not None:
            self._process.kill()
            _reap(self._process)

    def tear(self, chance: Random) -> str:
        """Damage bytes that were written and not synced, as a power cut may. Returns a description."""
        return log_tail.tear(self.data, self.unsynced, chance)

    def suspend(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def set_clock(self, offset: int, passed: int = 0) -> None:
        """Set the broker's clock to `offset` ms ahead, and advance its monotonic clock by `passed` ms."""
        begun = now()
        self.offset = offset  # if the process has ended, it is started again with the new offset
        self._tell({"offset": offset, "passed": passed})
        self._history.add(ClockSet(start=begun, end=now(), offset=offset, passed=passed))

    def set_disk(self, mode: Mode, *, every: int = 1, seconds: float = 0.0) -> None:
        self._tell({"mode": mode, "every": every, "seconds": seconds})

    def stop(self) -> int:
        """Stop the process with SIGTERM; returns its exit code."""
        assert self._process is not None
        self._note_end()
        self._process.terminate()
        return _reap(self._process)

    def damaged(self) -> set[tuple[str, int]]:
        """Return the messages that the log reports as damaged: entity and sequence number."""
        found = _DAMAGED.findall(self._log.read_text(errors="replace"))
        return {(place(entity), int(number)) for number, entity in found}

    def health(self) -> str:
        """Return the message of `/health`."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=_ANSWER_SECONDS) as answer:
                return str(json.load(answer)["message"])
        except HTTPError as error:
            return error.read().decode(errors="replace")
        except OSError as error:
            return f"no answer: {error}"

    def needs_restart(self) -> bool:
        """Return whether the log since the last start asks for a restart."""
        return "Restart the broker" in self._log_since_start()

    def tracebacks(self) -> list[str]:
        """Return the tracebacks in the log."""
        text = self._log.read_text(errors="replace")
        return [f"its log has: {part[:2000]}" for part in text.split("Traceback")[1:]]

    def _log_since_start(self) -> str:
        """Return the log since the last start."""
        return self._log.read_bytes()[self._logged :].decode(errors="replace").strip()

    def _last_words(self) -> str:
        """Return the end of the log."""
        return self._log.read_text(errors="replace")[-2000:].strip()

    def _note_end(self) -> None:
        """Note the start of an outage: from now on the broker's memory may be lost.

        A process that ends before it serves belongs to the previous outage.
        """
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
    """Return a free port outside the ephemeral range, so that it is still free after each kill."""
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
