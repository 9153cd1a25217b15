"""A run: starts a broker, makes one attack after the other, and checks the broker after each.

| Checked | Bound |
|---|---|
| a normal client connects, sends, receives and completes | within 20 s a round takes at most 20 times the usual time |
| memory | back within 192 MiB of what the broker had before the first attack, and never more than 768 MiB above it |
| messages | all messages of the normal client are stored, in their order |
| log | a line has the attacker's address and the event; at most 200 lines for one attack; no key |
| audit log | every line is complete, none has a key, and at most 200 are denials of one attack |
| process | the same one, from the first attack to the last |
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from tools.bench.processes import Child, resident_bytes
from tools.hostile.attack import MAX_PEAK, MIB, USUAL, Attack, AttackFailed, require
from tools.hostile.brokers import BROKERS
from tools.hostile.client_certificates import GOOD, ClientAuthority
from tools.hostile.normal_client import NormalClient
from tools.hostile.victim import HOST, KEY, Victim, message, outcomes, tls_context, transfer

MAX_LEFT: Final = 192 * MIB
"""The most memory after an attack above the level before the first attack. Queues may keep 128 MiB of messages, and
the C library does not return all freed memory to the system."""
WARM_MESSAGES: Final = 6000
"""Messages of 10 KB that are sent before the first attack."""
MAX_LINES: Final = 200
SETTLING_SECONDS: Final = 20.0
"""Time for memory to be freed and for the log to be written."""
ATTACKERS: Final = "127.0.1.{}"
"""Each attack has its own address, different from the normal client's, so that log lines can be assigned to it."""
FILES: Final = 16_384
"""The limit of file descriptors of the broker and of this process, for floods of connections."""
_GIVE_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "8192", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Makes the C library return freed memory, also of messages of 10 KB, so that the measured memory is what the broker
holds: otherwise a few small objects at the end of the heap keep a hundred MiB of freed messages."""
LOG: Final = "broker.log"
_SIGNATURE: Final = re.compile(r"\bsig=[^*&\s]", re.IGNORECASE)
_SOURCE: Final = Path(__file__).parents[2] / "src"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    attack: Attack
    failure: str | None
    """The reason of the failure; None when all checks passed."""
    seconds: float
    served: float = 0.0
    """Seconds of a normal client's round after the attack."""
    peak: int = 0
    left: int = 0
    """Memory above the level before the first attack: the peak, and after the attack."""
    lines: int = 0
    """Log lines that the attack caused."""


class Run:
    """A running broker, its normal client, and the checks. Created by `started`."""

    def __init__(
        self, child: Child, connection_string: str, authority: Path, audit: Path, certificate: Path | None
    ) -> None:
        self._audit = audit
        self._child = child
        self._port = int(connection_string.split(";")[0].rsplit(":", 1)[1])
        self._authority = authority
        self._certificate = certificate
        if certificate is None:
            self.normal_client = NormalClient(connection_string)
        else:
            over_tls = connection_string.replace("UseDevelopmentEmulator=true;", "")
            self.normal_client = NormalClient(over_tls, tls_context(authority, certificate))
        self._attackers = count(1)
        warm_up(self._victim())
        self._base = self._memory()

    def attack_all(self, attacks: Iterable[Attack]) -> Iterator[Result]:
        """Make the attacks and yield their results.

        Attacks that wait for time-outs run in threads beside the other attacks; their results are last.
        """
        chosen = list(attacks)
        log_from = self._log_size()
        waiting = [_Waiting(each, self._victim()) for each in chosen if each.is_slow]
        for each in chosen:
            if not each.is_slow:
                victim, log_at = self._victim(), self._log_size()
                yield self._checked(each, victim, log_at, partial(each.act, victim))
        for slow in waiting:
            yield self._checked(slow.attack, slow.victim, log_from, slow.join)

    def _checked(self, attack: Attack, victim: Victim, log_at: int, act: Callable[[], None]) -> Result:
        before = time.monotonic()
        served, left, lines = 0.0, 0, 0
        held = max(0, self._memory() - self._base)  # earlier attacks left messages, which are no fault of this one
        failure: str | None = None
        try:
            self._forget_peak()
            act()
            served = self.normal_client.check()
            lines = self._read_log(attack, victim, log_at)
            self._read_audit(victim)
            left = self._settled()
        except AttackFailed as problem:
            failure = str(problem)
        except OSError as problem:
            failure = f"the attack could not be made: {problem}"
        peak = (resident_bytes(self._child.pid, "VmHWM") or 0) - self._base
        if not self._child.running:
            failure = f"the broker has ended: {self._child.tail()}"
        elif failure is None and peak > (most := min(attack.max_peak + held, MAX_PEAK)):
            failure = f"the broker took {peak // MIB} MiB more, above {most // MIB}"
        seconds = time.monotonic() - before
        return Result(attack=attack, failure=failure, seconds=seconds, served=served, peak=peak, left=left, lines=lines)

    # --- memory ---

    def _memory(self) -> int:
        return resident_bytes(self._child.pid) or 0

    def _forget_peak(self) -> None:
        Path(f"/proc/{self._child.pid}/clear_refs").write_text("5")

    def _settled(self) -> int:
        deadline = time.monotonic() + SETTLING_SECONDS
        while (left := self._memory() - self._base) > MAX_LEFT:
            if time.monotonic() > deadline:
                self._base += left  # reported once, not for the following attacks again
                raise AttackFailed(f"the broker still has {left // MIB} MiB more than before, above {MAX_LEFT // MIB}")
            time.sleep(0.2)
        return left

    # --- log ---

    def _log_size(self) -> int:
        return self._child.log.stat().st_size

    def _read_log(self, attack: Attack, victim: Victim, start: int) -> int:
        """Return how many log lines the attack caused; AttackFailed if none is as expected or one must not be there."""
        expected, names = re.compile(attack.log), {*victim.names, victim.attacker}
        deadline = time.monotonic() + SETTLING_SECONDS
        while True:
            with self._child.log.open("rb") as log:
                log.seek(start)
                text = log.read().decode(errors="replace")
            lines = text.splitlines()
            caused = [line for line in lines if re.search(rf"{re.escape(victim.attacker)}\b", line)]
            found = [line for line in caused if expected.search(line) and _names_one(line, names)]
            if found or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        last = caused[-1] if caused else "none"
        require(found, f"no log line of the attacker matches '{attack.log}'; its last line: {last[:300]}")
        forged = [line for line in lines if re.match(r"\S+ \S+ +peeklock\.server forged", line)]
        require(not forged, "the log has a line that the attacker wrote")
        require(KEY not in text and not _SIGNATURE.search(text), "the log has a key or a signature")
        # Tracebacks have no client address, so for a slow attack one may be of another attack.
        traces = [line for line in lines if "Traceback" in line]
        require(not traces, f"the log has a traceback: {''.join(traces)[-600:]}")
        require(len(caused) <= MAX_LINES, f"the log has {len(caused)} lines for one attack, more than {MAX_LINES}")
        return len(caused)

    def _read_audit(self, victim: Victim) -> None:
        """Raise AttackFailed if the audit log has a secret, an invalid line, or too many lines of the attacker."""
        text = self._audit.read_text()
        require(f'"{KEY}' not in text and "sig=" not in text, "the audit log has a key or a signature")
        entries = [json.loads(line) for line in text.splitlines()]
        denied = sum(each["address"] == victim.attacker and each["outcome"] == "denied" for each in entries)
        require(denied <= MAX_LINES, f"the audit log has {denied} lines for one attack, more than {MAX_LINES}")

    def _victim(self) -> Victim:
        return Victim(self._port, self._authority, ATTACKERS.format(next(self._attackers)), self._certificate)


def _names_one(line: str, names: set[str]) -> bool:
    found = re.search(r"peer=([0-9.]+(?::[0-9]+)?)", line)
    return found is not None and found[1] in names


class _Waiting:
    """A slow attack, which runs in its own thread."""

    def __init__(self, attack: Attack, victim: Victim) -> None:
        self.attack = attack
        self.victim = victim
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._act, name=attack.name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _act(self) -> None:
        try:
            self.attack.act(self.victim)
        except Exception as failure:
            self._failure = failure


def warm_up(victim: Victim) -> None:
    """Send and receive enough messages to fill the store's caches, so that no attack is blamed for their memory."""
    for _ in range(2):
        with victim.sending() as line:
            for first in range(0, WARM_MESSAGES, 100):
                line.send(*[transfer(number, message(b"x" * 10_000)) for number in range(first, first + 100)])
            outcomes(line, WARM_MESSAGES)
        victim.drain()


def attack_each(folder: Path, attacks: Iterable[Attack], on_started: Callable[[str, Run], None]) -> Iterator[Result]:
    """Make the attacks, each on the broker that it names, one broker after the other."""
    chosen = list(attacks)
    for broker in BROKERS:
        if made := [each for each in chosen if each.broker == broker]:
            with started(folder, broker) as run:
                on_started(broker, run)
                yield from run.attack_all(made)


@contextmanager
def started(folder: Path, broker: str = USUAL) -> Iterator[Run]:
    """Start a broker in a child process, as a user does, with its data folder and its log below `folder`."""
    _allow_files()
    setup = BROKERS[broker]
    config, data, audit = (folder / f"{broker}{end}" for end in (".json", "-data", "-audit.jsonl"))
    config.write_text(json.dumps(setup.config))
    command = [sys.executable, "-m", setup.module, "serve", "--host", HOST, "--port", "0"]
    command += ["--config", str(config), "--data", str(data), "--audit", str(audit), *setup.arguments]
    certificate = None
    if setup.is_strict:
        clients = ClientAuthority(folder / f"{broker}-clients")
        command += ["--require-tls", "--mtls-ca", str(clients.file)]
        certificate = clients.file.with_name(GOOD)
    path = os.pathsep.join(filter(None, (str(_SOURCE), str(_SOURCE.parent), os.environ.get("PYTHONPATH"))))
    environment = {"PYTHONPATH": path, **_GIVE_BACK}
    with Child(command, log=folder / LOG, environment=environment, announces=True) as child:
        yield Run(child, child.first_line(), data / "tls" / "authority.pem", audit, certificate)
        require(child.running, f"the broker has ended: {child.tail()}")


def _allow_files() -> None:
    """Raise the limit of open files as far as the system allows; the broker inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
