"""One run: starts a broker and clients, causes faults one after the other, receives what is left, runs the checks."""

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
from tools.chaos.broker import BrokerProcess, StartFailed
from tools.chaos.client import Client
from tools.chaos.disk import Mode
from tools.chaos.draining import drain
from tools.chaos.entities import WINDOW_MS, address, place
from tools.chaos.history import (
    BrokerFailure,
    Damaged,
    Disposition,
    Fault,
    FileDamage,
    History,
    Leftover,
    Outcome,
    Record,
    Settlement,
    now,
)
from tools.chaos.history_index import LOCK_LOST, Violation
from tools.chaos.plan import DAMAGES, DAYS_MS, DISKS, Kind, Step, steps
from tools.chaos.proxy import Proxy
from tools.chaos.reading import Reading
from tools.chaos.workers import RunContext, Worker, all_workers

WARM_UP: Final = 1.0
LONGEST_WAIT: Final = 4.0
AGAIN: Final = 0.2
"""Probability that a killed broker is killed again during its next start."""
STARTING: Final = 0.6
"""Seconds after the start within which it is killed again."""
JOIN_SECONDS: Final = 120.0
SHORT_SECONDS: Final = 5.0
"""Like DRAIN_SECONDS, after a first drain that left messages."""
DRAIN_SECONDS: Final = 25.0
"""Time without progress after which draining ends. The broker reads a changed clock after at most ten seconds."""
PROGRESS: Final = 10
"""Seconds between two lines of progress."""


class RunFailed(Exception):
    """The run itself failed, so it has no result."""


@dataclass(frozen=True, slots=True)
class Result:
    records: list[Record]
    violations: list[Violation]


class Run:
    """A run; `go` is called once."""

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
        """Copies of the data folder from before each damage with which the broker started: for finding the message."""
        self._folder = folder
        self._reported: set[tuple[str, int]] = set()
        self._begun = self._said = time.monotonic()

    def go(self) -> Result:
        try:
            self._broker.start()
            return self._run_and_check()
        finally:
            self._broker.close()
            self._history.close()

    def _run_and_check(self) -> Result:
        try:
            self._cause_faults()
        except StartFailed as failure:
            # The broker could start before the faults, so this is a violation; nothing else can be checked.
            return Result(self._history.records, [Violation("broker", str(failure))])
        self._say("checking")
        return Result(self._history.records, checker.check(self._history.records))

    def _cause_faults(self) -> None:
        proxy = Proxy(lambda: self._broker.port)
        context = RunContext(address(proxy.port), self._history, self._seed, offset=lambda: self._broker.offset)
        workers = all_workers(context)
        for worker in workers:
            worker.start()
        try:
            time.sleep(WARM_UP)
            for step in steps(self._seed, self._faults, self._only):
                self._perform(step, proxy)
                self._note_reports()
                _raise_failures(workers)
                self._print_progress()
        finally:
            context.stopped.set()
        self._say("no more faults; the clients finish their operations")
        proxy.cancel_cuts()
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
        if step.kind is Kind.DROPPING and step.then is None and self._restart_if_needed():
            detail += "; restarted, as its log requires"
        self._note(step.kind, start, detail)
        if step.then is not None:
            start = now()
            self._note(step.then, start, self._kill(step.then, step.seed))

    def _wait_for(self, records: int) -> None:
        """Wait until the clients have added so many records, but not longer than LONGEST_WAIT."""
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
            self._broker.start_and_kill(seconds)
            details.append(f"killed again {seconds:.2f} s after the start")
            if kind is Kind.TEAR:
                details.append(self._broker.tear(chance))
        self._broker.start()
        return "; ".join(details)

    def _restart_if_needed(self) -> bool:
        """Restart the broker if its log asks for that, as an operator would: after data loss only a start helps."""
        is_needed = self._broker.needs_restart()
        if is_needed:
            self._broker.kill()
            self._broker.start()
        return is_needed

    def _damage(self, do: damage.Maker, seed: int) -> str:
        """Damage the files and start the broker.

        It must either refuse to start and change no file, or start and report every message that is damaged.
        """
        self._broker.kill()
        whole = damage.contents(self._broker.data)
        copy = self._folder / f"before-{len(self._copies)}"
        shutil.copytree(self._broker.data, copy, ignore=shutil.ignore_patterns(damage.RESERVE))
        done = do(self._broker.data, self._broker.unsynced, Random(seed))
        if done is None:
            shutil.rmtree(copy)
            self._broker.start()
            return "nothing damaged: there is no such file"
        before = damage.contents(self._broker.data)
        refusal = self._broker.try_start()
        if refusal is None:
            self._copies.append(copy)
            self._history.add(FileDamage(start=now(), end=now(), text=done.text))
            return f"{done.text}; it serves"
        shutil.rmtree(copy)
        changed = {name for name, _ in before.items() ^ damage.contents(self._broker.data).items()}
        if changed:
            self._add_failure(f"after {done.text} it refused to start, but changed {', '.join(sorted(changed))}")
        if not refusal.is_documented:
            self._add_failure(f"after {done.text} it did not start, with {refusal.code} and: {refusal.log[-2000:]}")
        if changed:
            damage.rewrite(self._broker.data, whole)
        else:
            done.undo()
        self._broker.start()
        return f"{done.text}; refused: {refusal.log.splitlines()[-1:]}"

    def _note_reports(self) -> None:
        """Record the messages that the broker has reported as damaged since the last call."""
        for entity, number in sorted(self._broker.damaged() - self._reported):
            self._reported.add((entity, number))
            id = self._find(entity, number)
            if id is None:
                self._add_failure(f"number {number} of {entity} is reported as damaged, but did not exist")
            else:
                self._history.add(Damaged(entity=entity, id=id, number=number, start=now(), end=now()))

    def _find(self, entity: str, number: int) -> str | None:
        """Return the id of a damaged message, from a copy made before the damage."""
        for copy in reversed(self._copies):
            values = Reading(copy).read().messages.get((entity, number))
            if values is not None:
                return str(values["id"])
        return None

    def _start_on_full_disk(self, seconds: float) -> str:
        """Restart the broker on a full disk: it must start, and receivers must be able to settle."""
        self._broker.kill()
        reserve = self._broker.data / damage.RESERVE
        if not reserve.exists() or not reserve.stat().st_size:
            self._broker.start()  # the reserve was used by an earlier fault; a start creates it again
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
            self._add_failure(f"on a full disk it started, but settled nothing: {refusal.error}")
        self._broker.check()
        self._broker.set_disk(Mode.FINE)
        return f"{seconds:.2f} s, {answers[Outcome.OK]} settlements"

    def _add_failure(self, text: str) -> None:
        self._history.add(BrokerFailure(start=now(), end=now(), text=text))

    # --- the end ---

    def _end(self) -> None:
        """Receive what is left, then again after a restart, for messages that were removed in memory only."""
        self._broker.check()
        self._broker.set_disk(Mode.FINE)
        self._restart_if_needed()
        # Move the clock past all locks and schedules.
        self._broker.set_clock(DAYS_MS + WINDOW_MS + 10_000, passed=WINDOW_MS + 10_000)
        self._say("receiving what is left")
        left: list[Leftover] = []
        for name in ("drain", "drain-again"):
            client = Client(name, address(self._broker.port), self._history)
            try:
                left = drain(client, SHORT_SECONDS if left else DRAIN_SECONDS)
            except (AmqpError, ClientError) as error:
                self._add_failure(f"what is left cannot be received: {error}")
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
            self._add_failure(f"the broker stopped with {code}")
        for complaint in self._broker.tracebacks():
            self._add_failure(complaint)

    def _check_health(self) -> None:
        """Check that `/health` names every entity with damaged messages: all messages have been read by now."""
        health = place(self._broker.health())
        for entity in sorted({entity for entity, _ in self._reported}):
            if entity not in health:
                self._add_failure(f"messages of {entity} are damaged, but /health does not name it: {health}")

    def _join(self, workers: list[Worker]) -> None:
        deadline = time.monotonic() + JOIN_SECONDS
        for worker in workers:
            worker.join(max(0.1, deadline - time.monotonic()))
            if worker.is_alive():
                raise RunFailed(f"{worker.name} does not end")
        _raise_failures(workers)

    def _print_progress(self) -> None:
        if time.monotonic() - self._said >= PROGRESS:
            self._said = time.monotonic()
            spent = self._said - self._begun
            self._say(f"{spent:4.0f} s: {self._done} of {self._faults} faults, {len(self._history.records)} records")


def refused_completion(settled: Iterable[Settlement]) -> Settlement | None:
    """Return the last completion that the store refused; None if any settlement succeeded.

    Other refusals are allowed on a full disk: a dead letter requires space, an abandoned message may become one, a
    transaction may be invalid, and a lock may have been lost.
    """
    refused: Settlement | None = None
    for each in settled:
        if each.outcome is Outcome.OK:
            return None
        is_plain = each.disposition is Disposition.COMPLETE and each.transaction is None
        if is_plain and each.outcome is Outcome.NO and LOCK_LOST not in each.error:
            refused = each
    return refused


def _raise_failures(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.failure is not None:
            raise RunFailed(f"{worker.name} failed: {worker.failure!r}") from worker.failure
