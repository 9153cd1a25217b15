"""Run all scenarios with all SDKs, in concurrent lanes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from conformance.catalogue import Scenario, explanations
from conformance.sdks import SDKS, Command
from peeklock.server.certificates import ensure_certificates
from tools.suites.standard_ports import PortIsolation


@dataclass(frozen=True)
class Outcome:
    scenario: Scenario
    sdk: str
    reason: str | None
    """Why the scenario failed, or None."""
    seconds: float

    @property
    def passed(self) -> bool:
        return self.reason is None

    @property
    def as_expected(self) -> bool:
        """True if it passed without an explanation, or failed as explained: a passed scenario must have none."""
        explanation = explanations().get((self.scenario.name, self.sdk))
        if explanation is None:
            return self.passed
        return self.reason is not None and explanation.says in self.reason


@dataclass(frozen=True)
class Result:
    outcomes: tuple[Outcome, ...]
    seconds: float

    @property
    def as_expected(self) -> bool:
        return all(outcome.as_expected for outcome in self.outcomes)


Progress = Callable[[Outcome], None]


def run(
    chosen: Sequence[Scenario], sdks: Sequence[str], isolation: PortIsolation, lanes: int, progress: Progress
) -> Result:
    """Prepare the programs, then run everything; `lanes` for each SDK."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        folder = Path(name)
        hosts = sorted({isolation.address(number) for number in range(lanes * len(sdks))})
        authority = ensure_certificates(folder, hosts).authority
        commands = {sdk: SDKS[sdk].prepare(authority) for sdk in sdks}
        start = time.monotonic()
        outcomes: list[Outcome] = []
        works: list[Callable[[], None]] = []
        for place, sdk in enumerate(sdks):
            # Slow scenarios first, so that the others run at the same time.
            waiting = deque(sorted((each for each in chosen if each.applies_to(sdk)), key=lambda each: not each.slow))
            for number in range(place * lanes, place * lanes + min(lanes, len(waiting))):
                lane = _Lane(sdk, commands[sdk], isolation, number, authority, folder)
                works.append(partial(lane.work, waiting, outcomes, progress))
        with ThreadPoolExecutor(max(1, len(works))) as pool:
            for done in [pool.submit(work) for work in works]:
                done.result()  # raise the lane's error
        return Result(tuple(outcomes), time.monotonic() - start)


class _Lane:
    """A process of `lane.py`, and the thread that sends it scenarios."""

    def __init__(
        self, sdk: str, command: Command, isolation: PortIsolation, number: int, authority: Path, folder: Path
    ) -> None:
        self._sdk = sdk
        told = json.dumps(asdict(command))
        program = [sys.executable, "-m", "conformance.lane", sdk, isolation.address(number), str(authority), told]
        self._command = [*isolation.prefix, *program]
        self._log = folder / f"lane-{number}.log"
        self._process: subprocess.Popen[str] | None = None

    def work(self, waiting: deque[Scenario], outcomes: list[Outcome], progress: Progress) -> None:
        with self._log.open("w") as log:
            while True:
                try:
                    scenario = waiting.popleft()
                except IndexError:
                    break
                reason, seconds = self._run(scenario, log)
                outcome = Outcome(scenario, self._sdk, reason, seconds)
                outcomes.append(outcome)
                progress(outcome)
            if self._process is not None:
                self._process.communicate()

    def _run(self, scenario: Scenario, log: IO[str]) -> tuple[str | None, float]:
        if self._process is None:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(scenario.name + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = self._process.wait()
            self._process = None
            last = self._log.read_text().strip().splitlines()[-20:]
            return f"the lane ended with code {code}: " + "\n".join(last), 0
        told = json.loads(line)
        return told["reason"], told["seconds"]
