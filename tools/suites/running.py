"""Run the jobs of suites concurrently, each with a separate broker on the standard ports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.suites.broker import ROOT
from tools.suites.job import ENDED_LATE, Job, Reader
from tools.suites.outcome import Outcome
from tools.suites.standard_ports import PortIsolation

_STOP_SECONDS = 60.0
"""The time that a lane has to stop its broker after its job ran out of time."""


@dataclass(frozen=True)
class Work:
    """A job of a suite, and the function that reads its outcomes."""

    suite: str
    job: Job
    read: Reader


@dataclass(frozen=True)
class Done:
    suite: str
    job: Job
    outcomes: list[Outcome]


Progress = Callable[[Done], None]


def run(works: Sequence[Work], isolation: PortIsolation, lanes: int, progress: Progress) -> list[Done]:
    """Run the jobs. `progress` is called after each job, from any thread, one call at a time."""
    waiting = list(reversed(works))
    found: list[Done] = []
    mutex = threading.Lock()
    failures: list[BaseException] = []
    children: set[subprocess.Popen[bytes]] = set()

    def work(address: str) -> None:
        try:
            while True:
                with mutex:
                    if not waiting:
                        return
                    next_work = waiting.pop()
                done = Done(next_work.suite, next_work.job, _run(next_work, isolation, address, children))
                with mutex:
                    found.append(done)
                    progress(done)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(isolation.address(lane),)) for lane in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        waiting.clear()
        for child in list(children):
            child.terminate()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]
    return found


def _run(work: Work, isolation: PortIsolation, address: str, children: set[subprocess.Popen[bytes]]) -> list[Outcome]:
    job = work.job
    shutil.rmtree(job.output, ignore_errors=True)
    job.output.mkdir(parents=True)
    file = job.output / "job.json"
    file.write_text(job.dump())
    path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    with job.lane_log.open("wb") as log:
        child = subprocess.Popen(
            [*isolation.prefix, sys.executable, "-m", "tools.suites.lane", str(file), address],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": path},
        )
        children.add(child)
        try:
            code = child.wait(job.seconds + _STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        finally:
            children.discard(child)
    job.ended.write_text(str(code))
    return last_outcomes(work)


def last_outcomes(work: Work) -> list[Outcome]:
    """Return the outcomes of the job's last run; none if it was never run."""
    job = work.job
    if not job.ended.exists():
        return []
    code = int(job.ended.read_text())
    outcomes = work.read(job)
    if code not in job.ends_with or not outcomes:
        said = _tail(job.lane_log).strip() or _tail(job.log)
        how = "did not end in time" if code == ENDED_LATE else f"ended with {code}"
        outcomes.append(Outcome(job.name, "failed", f"the job {how}: {said}"))
    return outcomes


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:] if log.exists() else ""
