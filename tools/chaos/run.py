"""One run: a broker, clients that work with it, faults one after the other, and the end, when everything is checked."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from peeklock.amqp.errors import AmqpError
from peeklock.client import ClientError
from tools.chaos import checker, damage
from tools.chaos.books import LOCK_LOST, Violation
from tools.chaos.broker import BrokerProcess, StartFailed
from tools.chaos.client import Client
from tools.chaos.disk import Mode
from tools.chaos.draining import drain
from tools.chaos.entities import WINDOW_MS, address, place
from tools.chaos.history import (
    Damaged,
    Fault,
    Gesture,
    History,
    Injury,
    Leftover,
    Mishap,
    Outcome,
    Record,
    Settlement,
    now,
)
from tools.chaos.plan import DAMAGES, DAYS_MS, DISKS, Kind, Step, steps
from tools.chaos.proxy import Proxy
from tools.chaos.reading import Reading
from tools.chaos.workers import Surroundings, Worker, crew

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
        self,
        folder: Path,
        seed: int,
        faults: int,
        *,
        only: Collection[Kind] = (),
        broken: str | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self._only = only
        self._seed = seed
        self._faults = faults
        self._say = say
        self._done = 0
        self._history = History(folder / "history.jsonl")
        self._broker = BrokerProcess(folder, self._history, broken)
        self._copies: list[Path] = []
        """Of the data before each damage that the broker lives with: they tell which message was hit."""
        self._folder = folder
        self._reported: set[tuple[str, int]] = set()
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
            for step in steps(self._seed, self._faults, self._only):
                self._perform(step, proxy)
                self._note_reports()
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
            case kind if kind in DAMAGES:
                detail = self._damage(DAMAGES[kind], step.seed)
            case Kind.FULL_AT_START:
                detail = self._start_on_full_disk(step.seconds)
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
        if step.kind is Kind.DROPPING and step.then is None and self._restart_if_asked():
            detail += "; restarted, as it asked for"
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

    def _restart_if_asked(self) -> bool:
        """As whoever runs it does: a disk may have lost what only a start brings back."""
        is_asked = self._broker.asks_for_restart()
        if is_asked:
            self._broker.kill()
            self._broker.start()
        return is_asked

    def _damage(self, do: damage.Maker, seed: int) -> str:
        """It either refuses to start and changes nothing, or goes on; then nothing may be lost that it does not say."""
        self._broker.kill()
        whole = damage.contents(self._broker.data)
        copy = self._folder / f"before-{len(self._copies)}"
        shutil.copytree(self._broker.data, copy, ignore=shutil.ignore_patterns(damage.RESERVE))
        done = do(self._broker.data, self._broker.unsynced, Random(seed))
        if done is None:
            shutil.rmtree(copy)
            self._broker.start()
            return "nothing: there is no such file"
        before = damage.contents(self._broker.data)
        refusal = self._broker.try_start()
        if refusal is None:
            self._copies.append(copy)
            self._history.add(Injury(start=now(), end=now(), text=done.text))
            return f"{done.text}; it serves"
        shutil.rmtree(copy)
        changed = {name for name, _ in before.items() ^ damage.contents(self._broker.data).items()}
        if changed:
            self._add_mishap(f"after {done.text} it refused to start, and changed {', '.join(sorted(changed))}")
        if not refusal.is_proper:
            self._add_mishap(f"after {done.text} it did not start, with {refusal.code} and: {refusal.said[-2000:]}")
        if changed:
            damage.rewrite(self._broker.data, whole)
        else:
            done.undo()
        self._broker.start()
        return f"{done.text}; refused: {refusal.said.splitlines()[-1:]}"

    def _note_reports(self) -> None:
        """What the broker has said to be damaged since the last time."""
        for entity, number in sorted(self._broker.damaged() - self._reported):
            self._reported.add((entity, number))
            id = self._find(entity, number)
            if id is None:
                self._add_mishap(f"number {number} of {entity} is reported as damaged, and was not there")
            else:
                self._history.add(Damaged(entity=entity, id=id, number=number, start=now(), end=now()))

    def _find(self, entity: str, number: int) -> str | None:
        """Which message this was, before it was damaged."""
        for copy in reversed(self._copies):
            values = Reading(copy).read().messages.get((entity, number))
            if values is not None:
                return str(values["id"])
        return None

    def _start_on_full_disk(self, seconds: float) -> str:
        """It starts, and receivers settle what they receive."""
        self._broker.kill()
        reserve = self._broker.data / damage.RESERVE
        if not reserve.exists() or not reserve.stat().st_size:
            self._broker.start()  # it was used up by the last time
            self._broker.kill()
        self._broker.start(Mode.FULL)
        begun = len(self._history.records)
        time.sleep(seconds)
        deadline = time.monotonic() + LONGEST_WAIT
        settled: list[Settlement] = []
        while time.monotonic() < deadline and not any(each.outcome is Outcome.OK for each in settled):
            settled = [each for each in self._history.records[begun:] if isinstance(each, Settlement)]
            time.sleep(0.05)
        answers = Counter(each.outcome for each in settled)
        refusal = refused_completion(settled)
        if refusal is not None:
            self._add_mishap(f"on a full disk it started, and settled nothing: {refusal.error}")
        self._broker.check()
        self._broker.set_disk(Mode.FINE)
        return f"{seconds:.2f} s, {answers[Outcome.OK]} settlements"

    def _add_mishap(self, text: str) -> None:
        self._history.add(Mishap(start=now(), end=now(), text=text))

    # --- the end ---

    def _end(self) -> None:
        """Receive what is left; look once more after a restart, for what only memory had as gone."""
        self._broker.check()
        self._broker.set_disk(Mode.FINE)
        self._restart_if_asked()
        # Past all locks and schedules.
        self._broker.set_clock(DAYS_MS + WINDOW_MS + 10_000, passed=WINDOW_MS + 10_000)
        self._say("receiving what is left")
        left: list[Leftover] = []
        for name in ("drain", "drain-again"):
            client = Client(name, address(self._broker.port), self._history)
            try:
                left = drain(client, SHORT_SECONDS if left else DRAIN_SECONDS)
            except (AmqpError, ClientError) as error:
                self._add_mishap(f"what is left cannot be received: {error}")
            for leftover in left:
                self._history.add(leftover)
            client.drop()
            self._broker.check()
            self._note_reports()
            self._check_health()
            self._broker.kill()
            self._broker.start()
        code = self._broker.stop()
        if code != 0:
            self._add_mishap(f"the broker stopped with {code}")
        for complaint in self._broker.complaints():
            self._add_mishap(complaint)

    def _check_health(self) -> None:
        """Whoever looked at everything has met all that is damaged."""
        health = place(self._broker.health())
        for entity in sorted({entity for entity, _ in self._reported}):
            if entity not in health:
                self._add_mishap(f"messages of {entity} are damaged, and /health does not say so: {health}")

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


def refused_completion(settled: Iterable[Settlement]) -> Settlement | None:
    """The last completion that the store refused; None if anything was settled.

    Other refusals say nothing about a full disk: a dead letter needs room, and an abandoned message may become one; a
    transaction may be against the rules; and a lock may have been lost.
    """
    refused: Settlement | None = None
    for each in settled:
        if each.outcome is Outcome.OK:
            return None
        is_plain = each.gesture is Gesture.COMPLETE and each.transaction is None
        if is_plain and each.outcome is Outcome.NO and LOCK_LOST not in each.error:
            refused = each
    return refused


def _raise_failures(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.failure is not None:
            raise RunFailed(f"{worker.name} failed: {worker.failure!r}") from worker.failure
