"""Bytes that a power cut may lose: written and not synced, in the store's log and in SQLite's log.

The broker's process records them in a file beside its data folder, which survives the process. The next process
continues with it, because bytes stay unsynced until the next sync of their file. After a kill these bytes may be
changed in any way: no commit that needs them was acknowledged.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from threading import Lock
from typing import Final

from tools.chaos.dropped import restore

_NOTES_BYTES: Final = 4096
"""One page, written by one call, so that a kill cannot leave a part of it."""
_MOST_FILES: Final = 50
_SECTOR: Final = 512
_LOST: Final = 0.3
"""Probability that all unsynced bytes are lost."""


class Unsynced:
    """The range of unsynced bytes of each file, by name. An empty range has the place of the next write."""

    def __init__(self, notes: Path) -> None:
        self._lock = Lock()
        self._ranges = read(notes)
        self._descriptor = os.open(notes, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def wrote(self, name: str, start: int, end: int) -> None:
        with self._lock:
            before = self._ranges.pop(name, (start, end))
            if before[0] == before[1]:
                before = (start, end)
            self._ranges[name] = (min(start, before[0]), max(end, before[1]))
            self._save()

    def synced(self, name: str) -> None:
        with self._lock:
            if name in self._ranges:
                _, end = self._ranges[name]
                self._ranges[name] = (end, end)
                self._save()

    def _save(self) -> None:
        while len(self._ranges) > _MOST_FILES:
            del self._ranges[next(iter(self._ranges))]
        os.pwrite(self._descriptor, json.dumps(self._ranges).encode().ljust(_NOTES_BYTES), 0)


def read(notes: Path) -> dict[str, tuple[int, int]]:
    """Return the recorded ranges; the files written last are at the end."""
    if not notes.exists() or notes.stat().st_size == 0:
        return {}
    return {name: (start, end) for name, (start, end) in json.loads(notes.read_text()).items()}


def dropped_notes(notes: Path) -> Path:
    """Return the file that records what failed syncs have dropped."""
    return notes.with_name(f"{notes.name}-dropped")


def lose(folder: Path, notes: Path) -> str:
    """Remove all unsynced bytes. Returns a description. The broker must not run."""
    lost = [text] if (text := restore(folder, dropped_notes(notes))) else []
    for name, (start, _) in read(notes).items():
        file = folder / name
        if file.exists() and file.stat().st_size > start:
            os.truncate(file, start)
            lost.append(f"{name} ends at {start}")
    return ", ".join(lost) or "nothing: all is synced"


def tear(folder: Path, notes: Path, chance: Random) -> str:
    """Damage unsynced bytes at random. Returns a description. The broker must not run."""
    if chance.random() < _LOST:
        return lose(folder, notes)
    torn = [text] if (text := restore(folder, dropped_notes(notes))) else []
    for name, (start, end) in read(notes).items():
        file = folder / name
        if file.exists():
            # The file may have been truncated since.
            length = file.stat().st_size
            done = _tear(file, min(start, length), min(end, length), chance)
            torn.append(f"{name}: {done}")
    return ", ".join(torn) or "nothing: nothing was written"


def _tear(file: Path, start: int, end: int, chance: Random) -> str:
    with file.open("r+b") as opened:
        descriptor, unsynced = opened.fileno(), end - start
        at = start + chance.randrange(unsynced + 1)
        match chance.choice(("nothing", "cut", "rest", "zeros", "noise", "more")):
            case "nothing":
                return f"{unsynced} unsynced bytes are left alone"
            case "cut" if unsynced:
                os.ftruncate(descriptor, at)
                return f"cut off at {at - start} of {unsynced} unsynced bytes"
            case "rest" if unsynced:
                os.pwrite(descriptor, bytes(end - at), at)
                return f"the last {end - at} of {unsynced} unsynced bytes are zeros"
            case "zeros" if unsynced:
                length = min(_SECTOR * chance.randint(1, 8), end - at)
                os.pwrite(descriptor, bytes(length), at)
                return f"{length} of {unsynced} unsynced bytes are zeros"
            case "noise" if unsynced:
                length = min(chance.randint(1, 4096), end - at)
                os.pwrite(descriptor, chance.randbytes(length), at)
                return f"{length} of {unsynced} unsynced bytes are noise"
            case _:
                noise = chance.randbytes(chance.randint(1, 8192))
                # SQLite restarts its log over synced frames, which are valid until the new header is synced.
                behind = end if file.name.startswith("log-") else os.fstat(descriptor).st_size
                os.pwrite(descriptor, noise, behind)
                return f"{len(noise)} bytes of noise behind {unsynced} unsynced bytes"
