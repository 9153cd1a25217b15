"""One run: a broker, clients that work with it, faults one after the other, and the end, when everything is checked."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from chaos import checker
from chaos.books import Violation
from chaos.broker import BrokerProcess, StartFailed
from chaos.client import Client
from chaos.disk import Mode
from chaos.draining import drain
from chaos.entities import WINDOW_MS, address
from chaos.history import Fault, History, Leftover, Mishap, Record, now
from chaos.plan import DAYS_MS, DISKS, Kind, Step, steps
from chaos.proxy import Proxy
from chaos.workers import Surroundings, Worker, crew

WARM_UP: Final = 1.0
LONGEST_WAIT: Final = 4.0
AGAIN: Final = 0.2
"""How often a broker that was killed is killed again while it starts …"""
STARTING: Final = 0.6
"""… within so many seconds."""
JOIN_SECONDS: Final = 120.0
SHORT_SECONDS: Final = 5.0
"""When it is clear already that something is wrong."""
DRAIN_SECONDS: Final = 25.0
"""Without any progress. A clock that was set is looked at again after ten seconds."""
PROGRESS: Final = 10
"""Seconds between two lines on how far it is."""


class RunFailed(Exception):
    """It cannot be said whether the broker is sound: something of ours went wrong."""


@dataclass(frozen=True, slots=True)
class Result:
    records: list[Record]
    violations: list[Violation]


class Run:
    """Made and run once."""

    def __init__(
        self, folder: Path, seed: int, faults: int, *, broken: str | None = None, say: Callable[[str], None] = print
    ) -> None:
        self._seed = seed
        self._faults = faults
        self._say = say
        self._done = 0
        self._history = History(folder / "history.jsonl")
        self._broker = BrokerProcess(folder, self._history, broken)
        self._begun = self._said = time.monotonic()

    def go(self) -> Result:
        try:
            self._broker.start()
            return self._judged()
        finally:
            self._broker.close()
            self._history.close()

    def _judged(self) -> Result:
        try:
            self._suffer()
        except StartFailed as failure:
            # It did start before: there is nothing more to be seen than that it does not now.
            return Result(self._history.records, [Violation("broker", str(failure))])
        self._say("checking")
        return Result(self._history.records, checker.check(self._history.records))

    def _suffer(self) -> None:
        proxy = Proxy(lambda: self._broker.port)
        around = Surroundings(address(proxy.port), self._history, self._seed, offset=lambda: self._broker.offset)
        workers = crew(around)
        for worker in workers:
            worker.start()
        try:
            time.sleep(WARM_UP)
            for step in steps(self._seed, self._faults):
                self._perform(step, proxy)
                _raise_failures(workers)
                self._tell_progress()
        finally:
            around.stopped.set()
        self._say("no more faults; the clients finish what they do")
        proxy.relent()
        self._join(workers)
        proxy.stop()
        self._end()

    # --- faults ---

    def _perform(self, step: Step, proxy: Proxy) -> None:
        self._wait_for(step.records)
        self._broker.check()
        start = now()
        match step.kind:
            case Kind.KILL | Kind.TEAR:
                detail = self._kill(step.kind, step.seed)
            case Kind.SUSPEND:
                self._broker.suspend()
                time.sleep(step.seconds)
                self._broker.resume()
                detail = f"{step.seconds} s"
            case Kind.CLOCK:
                self._broker.set_clock(step.offset)
                detail = f"{step.offset} ms ahead"
            case Kind.CUT:
                assert step.cut is not None
                proxy.cut(step.cut)
                detail = str(step.cut)
            case _:
                self._broker.set_disk(DISKS[step.kind], every=step.every, seconds=step.delay)
                time.sleep(step.seconds)
                detail = f"{step.seconds:.2f} s, every {step.every}, {step.delay} s each"
                if step.then is None:
                    self._broker.set_disk(Mode.FINE)
        self._note(step.kind, start, detail)
        if step.then is not None:
            start = now()
            self._note(step.then, start, self._kill(step.then, step.seed))

    def _wait_for(self, records: int) -> None:
        """Until so much has happened; when nothing does any more that is for the end to tell."""
        enough = len(self._history.records) + records
        deadline = time.monotonic() + LONGEST_WAIT
        while len(self._history.records) < enough and time.monotonic() < deadline:
            time.sleep(0.005)

    def _note(self, kind: Kind, start: float, detail: str) -> None:
        self._done += 1
        self._history.add(Fault(kind=kind, detail=detail, start=start, end=now()))

    def _kill(self, kind: Kind, seed: int) -> str:
        chance = Random(seed)
        self._broker.kill()
        details = []
        if kind is Kind.TEAR:
            details.append(self._broker.tear(chance))
        while chance.random() < AGAIN:
            seconds = chance.uniform(0, STARTING)
            self._broker.start_in_vain(seconds)
            details.append(f"killed again {seconds:.2f} s after the start")
            if kind is Kind.TEAR:
                details.append(self._broker.tear(chance))
        self._broker.start()
        return "; ".join(details)

    # --- the end ---

    def _end(self) -> None:
        """Receive what is left; look once more after a restart, for what only memory had as gone."""
        self._broker.check()
        self._broker.set_disk(Mode.FINE)
        # Past all locks and schedules.
        self._broker.set_clock(DAYS_MS + WINDOW_MS + 10_000, passed=WINDOW_MS + 10_000)
        self._say("receiving what is left")
        left: list[Leftover] = []
        for name in ("drain", "drain-again"):
            client = Client(name, address(self._broker.port), self._history)
            left = drain(client, SHORT_SECONDS if left else DRAIN_SECONDS)
            for leftover in left:
                self._history.add(leftover)
            client.drop()
            self._broker.check()
            self._broker.kill()
            self._broker.start()
        code = self._broker.stop()
        if code != 0:
            self._history.add(Mishap(start=now(), end=now(), text=f"the broker stopped with {code}"))
        for complaint in self._broker.complaints():
            self._history.add(Mishap(start=now(), end=now(), text=complaint))

    def _join(self, workers: list[Worker]) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        for worker in workers:
            worker.join(max(0.1, deadline - time.monotonic()))
            if worker.is_alive():
                raise RunFailed(f"{worker.name} does not end")
        _raise_failures(workers)

    def _tell_progress(self) -> None:
        if time.monotonic() - self._said >= PROGRESS:
            self._said = time.monotonic()
            spent = self._said - self._begun
            self._say(f"{spent:4.0f} s: {self._done} of {self._faults} faults, {len(self._history.records)} records")


def _raise_failures(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.failure is not None:
            raise RunFailed(f"{worker.name} failed: {worker.failure!r}") from worker.failure
