"""What a disk has lost by syncs that failed: the pages are clean, so no later sync writes them.

A file system may go on showing what was written (ext4, XFS) or show what was there before (Btrfs). In either case the
disk has what it had after the last sync that succeeded, until the same bytes are written and synced again. Where a file
shows something else than its disk has, that is noted in a file beside the data folder, which outlives the process; a
power cut (`restore`) makes it true.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections import defaultdict
from pathlib import Path
from threading import Lock

Pieces = list[tuple[int, bytes]]
"""Where bytes are in a file, and which."""


class Dropped:
    """By the name of a file: what was there before each write, and what its disk has instead of what it shows."""

    def __init__(self, notes: Path) -> None:
        self._lock = Lock()
        self._before: defaultdict[str, list[tuple[int, bytearray]]] = defaultdict(list)
        """What each write since the last sync replaced, the first of them first; neighbours are one."""
        self._lost: defaultdict[str, Pieces] = defaultdict(list)
        self._lost.update(read(notes))
        self._descriptor = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, name: str, start: int, before: bytes) -> None:
        """These bytes are about to be replaced."""
        with self._lock:
            pieces = self._before[name]
            if pieces and pieces[-1][0] + len(pieces[-1][1]) == start:
                pieces[-1][1].extend(before)
            else:
                pieces.append((start, bytearray(before)))

    def synced(self, name: str) -> None:
        """What was written since the last time is on the disk; what was dropped before is not."""
        with self._lock:
            for start, before in self._before.pop(name, ()):
                self._forget(name, start, start + len(before))

    def fail(self, name: str, *, shows_it: bool) -> Pieces:
        """A sync has failed, and dropped what was written; what the file must show now, unless it goes on as it was."""
        with self._lock:
            written = self._before.pop(name, [])
            for start, before in written:
                self._lose(name, start, bytes(before))
            if shows_it:
                return []
            shown: Pieces = []
            for start, before in written:
                shown += _within(self._lost[name], start, start + len(before))
                self._forget(name, start, start + len(before))
            return shown

    def cut(self, name: str, size: int) -> None:
        """The file is shorter now, or is a new one."""
        with self._lock:
            if name in self._before:
                kept = _without([(start, bytes(before)) for start, before in self._before[name]], size, None)
                self._before[name] = [(start, bytearray(before)) for start, before in kept]
            self._forget(name, size, None)

    def _lose(self, name: str, start: int, before: bytes) -> None:
        """But what was lost already, the disk never had."""
        added = [(start, before)]
        for at, lost in self._lost[name]:
            added = _without(added, at, at + len(lost))
        if added:
            self._lost[name] += added
            self._save(name, [(at, b64encode(lost).decode()) for at, lost in added])

    def _forget(self, name: str, start: int, end: int | None) -> None:
        lost = self._lost.get(name)
        if lost:
            left = _without(lost, start, end)
            if left != lost:
                self._lost[name] = left
                self._save(name, [(start, end)])

    def _save(self, name: str, pieces: list[tuple[int, str]] | list[tuple[int, int | None]]) -> None:
        os.write(self._descriptor, json.dumps([name, pieces]).encode() + b"\n")


def read(notes: Path) -> dict[str, Pieces]:
    """By the name of a file: what its disk has instead of what it shows."""
    lost: defaultdict[str, Pieces] = defaultdict(list)
    if not notes.exists():
        return lost
    for line in notes.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # its process was killed before anyone was told
        name, pieces = json.loads(line)
        for start, value in pieces:
            if isinstance(value, str):
                lost[name].append((start, b64decode(value)))
            else:
                lost[name] = _without(lost[name], start, value)
    return {name: pieces for name, pieces in lost.items() if pieces}


def restore(folder: Path, notes: Path) -> str:
    """Have the files show what their disk has; says what. The broker must not run."""
    done = []
    for name, pieces in read(notes).items():
        file = folder / name
        if file.exists():
            show(file, pieces)
            done.append(f"{name} lacks {sum(len(lost) for _, lost in pieces)} bytes that a failed sync dropped")
    notes.unlink(missing_ok=True)
    return ", ".join(done)


def show(file: Path, pieces: Pieces) -> None:
    """Write these, but do not make the file longer."""
    with file.open("r+b") as opened:
        length = os.fstat(opened.fileno()).st_size
        for start, data in pieces:
            if start < length:
                opened.seek(start)
                opened.write(data[: length - start])


def _without(pieces: Pieces, start: int, end: int | None) -> Pieces:
    """What of them is outside; without an end, before the start."""
    left: Pieces = []
    for at, data in pieces:
        if at < start:
            left.append((at, data[: start - at]))
        if end is not None and at + len(data) > end:
            skipped = max(0, end - at)
            left.append((at + skipped, data[skipped:]))
    return left


def _within(pieces: Pieces, start: int, end: int) -> Pieces:
    found: Pieces = []
    for at, data in pieces:
        begin, finish = max(at, start), min(at + len(data), end)
        if begin < finish:
            found.append((begin, data[begin - at : finish - at]))
    return found
