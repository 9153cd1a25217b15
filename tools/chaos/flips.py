"""`python -m tools.chaos.flips`: flips one bit in a file of a data folder, and checks that the broker detects it.

After each flip one of three results is required: everything acknowledged is served unchanged; or the start is refused,
the error names a file, and no file is changed; or the damaged message is reported, and all others are served unchanged.
Most flips are tested by reading the store, some with a whole broker and a client.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, Final

from peeklock.store.base import StoreError
from tools.chaos import bodies, claiming, damage, specimen
from tools.chaos.broker import BrokerProcess
from tools.chaos.client import Client
from tools.chaos.damage import CHECKS, INDEX, RESERVE, WAL, Damage
from tools.chaos.draining import SCHEDULED_STATE, empty, peek, release_claims
from tools.chaos.entities import RECEIVED_FROM, SESSIONS, WITH_CLAIMS, address, dead_letters
from tools.chaos.history import Delivery, History
from tools.chaos.reading import Contents, Inconsistent, Reading
from tools.chaos.specimen import ALL_SESSIONS

_ROOM: Final = 256 * 1024 * 1024
_PROGRESS: Final = 200
_SESSION_SECONDS: Final = 5.0
_TAIL: Final = "the last records of the log"
_WEIGHTS: Final = {"log-*": 5, _TAIL: 3, INDEX: 4, WAL: 3, **dict.fromkeys(CHECKS, 1), "*": 1}
"""Relative frequency of each kind of file."""


class Verdict(StrEnum):
    UNCHANGED = "unchanged"
    REFUSED = "refused"
    REPORTED = "reported"


class Serving:
    """A broker process, and a client that peeks all messages and then receives and completes them."""

    def __init__(self, folder: Path) -> None:
        self._history = History(folder / "history.jsonl")
        self._broker = BrokerProcess(folder, self._history)

    def read(self) -> Contents | str:
        """Return the contents that the broker serves, or the log of a refused start."""
        try:
            refusal = self._broker.try_start()
            if refusal is None:
                return self._read_all()
            if not refusal.is_documented:
                raise Inconsistent(f"it did not start, with {refusal.code}: {refusal.log}")
            return refusal.log
        finally:
            self._broker.close()
            self._history.close()

    def _read_all(self) -> Contents:
        contents = Contents()
        client = Client("client", address(self._broker.port), self._history)
        received = set()
        for session in client.management(SESSIONS).request("get-message-sessions", ALL_SESSIONS)["sessions-ids"]:
            held = client.accept(SESSIONS, session, _SESSION_SECONDS)
            contents.found[session] = client.call_session(held, "get").value
            held.receiver.close()
        for path in WITH_CLAIMS:
            listed = claiming.list_claims(client, path)
            contents.found[path, "claims"] = listed.claims, listed.names
            release_claims(client, path)
        for path in RECEIVED_FROM:
            for place in (path, dead_letters(path)):
                seen = list(peek(client, place))
                for each in seen:
                    values = {"id": each.id, "changed": bodies.changes(each.message), "bytes": each.message.encode()}
                    contents.messages[place, each.number] = values
                    if each.state != SCHEDULED_STATE:
                        received.add((place, each.number))
                empty(client, place, seen)
        client.drop()
        came = {(each.entity, each.number): each for each in self._history.records if isinstance(each, Delivery)}
        contents.damaged = self._broker.damaged()
        if missing := received - came.keys() - contents.damaged:
            raise Inconsistent(f"these messages were peeked, but not received: {sorted(missing)}")
        for delivery in came.values():
            if delivery.changed:
                raise Inconsistent(f"{delivery.id} was received with {delivery.changed} changed")
        if self._broker.stop() or self._broker.tracebacks():
            raise Inconsistent(f"the broker did not stop cleanly: {self._broker.tracebacks()}")
        return contents


class Specimen:
    """A data folder left by a killed broker, and its contents."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        made = specimen.make(folder, seed)
        self.data = folder / "data"
        with _copied(self.data, folder / "whole") as copied:
            self.contents = Reading(copied / "data").read()
        with _copied(self.data, folder / "whole") as copied:
            served = Serving(copied).read()
            assert isinstance(served, Contents)
            self.served = served
        found: dict[str, Counter[str]] = {}
        for (path, _), values in self.contents.messages.items():
            found.setdefault(path, Counter()).update([values["id"]])
        if found != made:
            path = next(path for path in made if made[path] != found.get(path))
            raise Inconsistent(f"without any damage {path} holds {found.get(path)}, and {made[path]} were acknowledged")

    def flip(self, seed: str, *, serve: bool = False) -> tuple[Verdict, str]:
        """Flip one bit in a copy and read it with the store or a whole broker.

        Returns the verdict and the description of the flip. Raises Inconsistent if no allowed result follows.
        """
        with _copied(self.data, self._folder / "flipped") as copied:
            done = flip_one(copied / "data", self._folder / "unsynced", Random(seed), "*" if serve else "**/*")
            try:
                return self._judge(copied, serve=serve), done.text
            except Inconsistent as wrong:
                raise Inconsistent(f"{seed}: {done.text}: {wrong}") from None
            except Exception as error:
                raise Inconsistent(f"{seed}: {done.text}: {type(error).__name__}: {error}") from error

    def _judge(self, folder: Path, *, serve: bool) -> Verdict:
        data = folder / "data"
        before = damage.contents(data)
        contents = Serving(folder).read() if serve else _read(data)
        if isinstance(contents, Contents):
            return compare(self.served if serve else self.contents, contents)
        changed = sorted({name for name, _ in before.items() ^ damage.contents(data).items()})
        if changed:
            raise Inconsistent(f"the start was refused ({contents}), but changed {', '.join(changed)}")
        if not damage.names_file(contents):
            raise Inconsistent(f"the start was refused, but no file is named: {contents}")
        return Verdict.REFUSED


def flip_one(folder: Path, notes: Path, chance: Random, among: str) -> Damage:
    """Flip a random bit of the files that match `among`. Kinds of files are chosen by their weights."""
    files = sorted(file for file in folder.glob(among) if file.is_file() and file.stat().st_size)
    while True:
        pattern = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        if pattern == _TAIL:
            if done := damage.flip_tail(folder, notes, chance):
                return done
            continue
        chosen = [file for file in files if file.match(pattern) and file.name != RESERVE]
        if chosen:
            file = chance.choice(chosen)
            return damage.flip(file, chance.randrange(file.stat().st_size), chance.randrange(8))


def compare(expected: Contents, found: Contents) -> Verdict:
    """Compare contents. Raises Inconsistent for an unreported difference, or for reports of undamaged messages."""
    differing = [
        key for key in expected.found.keys() | found.found.keys() if expected.found.get(key) != found.found.get(key)
    ]
    if differing:
        key = min(differing, key=str)
        raise Inconsistent(f"{key} is {found.found.get(key)!r:.200}, not {expected.found.get(key)!r:.200}")
    for place in sorted(found.messages.keys() - expected.messages.keys()):
        raise Inconsistent(f"{place} should not exist")
    for place in sorted(expected.messages):
        if place not in found.messages and place not in found.damaged:
            raise Inconsistent(f"{place} is lost")
        if place in found.messages and place in found.damaged:
            raise Inconsistent(f"{place} is reported as damaged, and served")
        if place in found.messages and found.messages[place] != expected.messages[place]:
            raise Inconsistent(f"{place} is changed: {_difference(expected.messages[place], found.messages[place])}")
    injured = {path for path, _ in found.damaged}
    for path, counters in expected.counters.items():
        if path not in injured and counters != found.counters[path]:
            raise Inconsistent(f"the counters of {path} are {found.counters[path]}, not {counters}")
    ids = {expected.messages[place]["id"] for place in found.damaged}
    if len(ids) > 1:
        raise Inconsistent(f"several messages are reported as damaged by one bit: {sorted(found.damaged)}")
    return Verdict.REPORTED if found.damaged else Verdict.UNCHANGED


def _read(folder: Path) -> Contents | str:
    try:
        return Reading(folder).read()
    except StoreError as error:
        return str(error)


@contextmanager
def _copied(data: Path, folder: Path) -> Iterator[Path]:
    """Yield a folder with a copy of the data, and delete it afterwards."""
    shutil.copytree(data, folder / "data", ignore=shutil.ignore_patterns(RESERVE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    return ", ".join(name for name in expected if expected[name] != found[name])


def new_folder(seed: int) -> Path:
    """Create a temporary folder, in memory if possible: every flip makes a new copy, whose syncs would take long."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM
    return Path(tempfile.mkdtemp(prefix=f"flips-{seed}-", dir=memory if has_room else None))


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = random.randrange(1 << 32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.flips} flips", flush=True)
    found: Counter[tuple[str, str]] = Counter()
    wrongs = []
    folder = new_folder(seed)
    try:
        tried = Specimen(folder, seed)
        for number in range(options.flips):
            if number and number % _PROGRESS == 0:
                print(f"{number} of {options.flips}", flush=True)
            try:
                verdict, done = tried.flip(f"{seed}:{number}", serve=number % options.serve == 0)
                found[done.split(" of ")[2].split(" ")[0].rstrip("0123456789"), verdict] += 1
            except Inconsistent as wrong:
                wrongs.append(str(wrong))
                print(wrong, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for (file, came), times in sorted(found.items()):
        print(f"{times:6} {came:10} {file}")
    print(f"{len(wrongs)} of {options.flips} flips had a result that is not allowed")
    return 1 if wrongs else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tools.chaos.flips", description="Flip bits of a data folder, one at a time."
    )
    parser.add_argument("--flips", type=int, default=2000, help="number of flips (default: %(default)s)")
    parser.add_argument("--seed", type=int, help="determines the folder's contents and every bit (default: random)")
    parser.add_argument(
        "--serve", type=int, default=20, help="test one of so many flips with a whole broker (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
