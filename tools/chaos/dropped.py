"""Bytes that failed syncs have dropped: their pages count as clean, so no later sync writes them to the disk.

After such a failure a file still shows the written bytes (ext4, XFS) or the earlier ones (Btrfs). In both cases the
disk has the bytes of the last successful sync, until the same range is written and synced again. Where a file differs
from its disk, the disk's bytes are recorded in a file beside the data folder, which survives the process. A simulated
power cut (`restore`) writes them into the files.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections import defaultdict
from pathlib import Path
from threading import Lock

Pieces = list[tuple[int, bytes]]
"""Offsets in a file, with bytes."""


class Dropped:
    """The bytes before each unsynced write, and the bytes on disk where a file shows others, by the file's name."""

    def __init__(self, notes: Path) -> None:
        self._lock = Lock()
        self._before: defaultdict[str, list[tuple[int, bytearray]]] = defaultdict(list)
        """Bytes replaced by each write since the last sync, in order of the writes; adjacent ones are merged."""
        self._lost: defaultdict[str, Pieces] = defaultdict(list)
        self._lost.update(read(notes))
        self._descriptor = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, name: str, start: int, before: bytes) -> None:
        """Record the bytes that a write is about to replace."""
        with self._lock:
            pieces = self._before[name]
            if pieces and pieces[-1][0] + len(pieces[-1][1]) == start:
                pieces[-1][1].extend(before)
            else:
                pieces.append((start, bytearray(before)))

    def synced(self, name: str) -> None:
        """Note a successful sync: bytes written since the last sync are on the disk, bytes dropped before are not."""
        with self._lock:
            for start, before in self._before.pop(name, ()):
                self._forget(name, start, start + len(before))

    def fail(self, name: str, *, shows_it: bool) -> Pieces:
        """Note a failed sync that dropped the written bytes.

        Returns the bytes that the file must show now; none if it `shows_it`, that is, still shows the written bytes.
        """
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
        """Note that a file was truncated or created."""
        with self._lock:
            if name in self._before:
                kept = _without([(start, bytes(before)) for start, before in self._before[name]], size, None)
                self._before[name] = [(start, bytearray(before)) for start, before in kept]
            self._forget(name, size, None)

    def _lose(self, name: str, start: int, before: bytes) -> None:
        """Record bytes on disk that the file no longer shows, except in ranges that were dropped before."""
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
    """Return, by the file's name, the bytes on disk where the file shows others."""
    lost: defaultdict[str, Pieces] = defaultdict(list)
    if not notes.exists():
        return lost
    for line in notes.read_text().splitlines(keepends=True):
        if not line.endswith("\n"):
            break  # the process was killed while it wrote this line
        name, pieces = json.loads(line)
        for start, value in pieces:
            if isinstance(value, str):
                lost[name].append((start, b64decode(value)))
            else:
                lost[name] = _without(lost[name], start, value)
    return {name: pieces for name, pieces in lost.items() if pieces}


def restore(folder: Path, notes: Path) -> str:
    """Write into the files what their disk has. Returns a description. The broker must not run."""
    done = []
    for name, pieces in read(notes).items():
        file = folder / name
        if file.exists():
            show(file, pieces)
            done.append(f"{name} lacks {sum(len(lost) for _, lost in pieces)} bytes that a failed sync dropped")
    notes.unlink(missing_ok=True)
    return ", ".join(done)


def show(file: Path, pieces: Pieces) -> None:
    """Write the pieces, without making the file longer."""
    with file.open("r+b") as opened:
        length = os.fstat(opened.fileno()).st_size
        for start, data in pieces:
            if start < length:
                opened.seek(start)
                opened.write(data[: length - start])


def _without(pieces: Pieces, start: int, end: int | None) -> Pieces:
    """Return the parts of the pieces outside the range; without an end, only those before its start."""
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
