"""Damage to the files of a data folder, made while no broker runs, and undone when a broker refuses to start.

It is damage to synced files, by a disk or a person: a flipped bit, a missing segment of the log, a shortened segment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tools.chaos.log_tail import read

INDEX: Final = "peeklock.db"
WAL: Final = f"{INDEX}-wal"
CHECKS: Final = ("synced", "peeklock.sums")
"""Files with checksums and sizes of the other files."""
CHANGED_ANYWAY: Final = frozenset(("lock", f"{INDEX}-shm"))
"""Files that a refused start may change."""
RESERVE: Final = "reserve"
"""Space reserved for a full disk; the file has no content that matters."""

_NAMES: Final = re.compile(r"/(log-\d{10}|peeklock\.db|peeklock\.db-wal|peeklock\.sums|synced|lock)\b")
_TAIL_BYTES: Final = 1500
"""Size of the end of the log that holds the last records."""


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage that was done, with its description and the function that undoes it."""

    file: Path
    text: str
    undo: Callable[[], None]


Maker = Callable[[Path, Path, Random], Damage | None]
"""Damages a data folder, given the file that records unsynced bytes; returns None if there is nothing to damage."""


def flip_tail(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """Flip one bit of the records at the end of the log."""
    written = [(name, end) for name, (_, end) in read(notes).items() if name.startswith("log-")]
    name, end = max(written, default=("", 0))
    file = folder / name
    if not end or not file.exists():
        return None
    end = min(end, file.stat().st_size)
    return flip(file, chance.randrange(max(0, end - _TAIL_BYTES), end), chance.randrange(8))


def flip_log(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """Flip one bit anywhere in the log."""
    file = _segment(folder, chance)
    return None if file is None else _flip_in(file, _written(file, notes), chance)


def flip_index(folder: Path, notes: Path, chance: Random) -> Damage | None:
    return _flip_in(folder / INDEX, None, chance)


def flip_wal(folder: Path, notes: Path, chance: Random) -> Damage | None:
    return _flip_in(folder / WAL, None, chance)


def flip_checks(folder: Path, notes: Path, chance: Random) -> Damage | None:
    files = [folder / name for name in CHECKS if (folder / name).exists()]
    return _flip_in(chance.choice(files), None, chance) if files else None


def remove_segment(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """Move a segment of the log away."""
    file = _segment(folder, chance)
    if file is None:
        return None
    aside = folder.parent / f"aside-{file.name}"
    file.rename(aside)
    return Damage(file, f"{file.name} is missing", lambda: _replace(aside, file))


def shorten_segment(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """Cut off the end of a segment of the log."""
    file = _segment(folder, chance)
    if file is None:
        return None
    whole = file.read_bytes()
    length = chance.randrange(max(1, _written(file, notes)))
    os.truncate(file, length)
    return Damage(file, f"{file.name} ends at {length}, and had {len(whole)} bytes", lambda: _rewrite(file, whole))


def flip(file: Path, offset: int, bit: int) -> Damage:
    """Flip one bit of a file."""
    _flip(file, offset, bit)
    return Damage(file, f"bit {bit} of byte {offset} of {file.name} is flipped", lambda: _flip(file, offset, bit))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files that a refused start must not change."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in (*CHANGED_ANYWAY, RESERVE)
    }


def names_file(text: str) -> bool:
    """Return whether a text names a file of the data folder."""
    return _NAMES.search(text) is not None


def rewrite(folder: Path, whole: dict[str, bytes]) -> None:
    """Restore the files to these contents."""
    for name in contents(folder).keys() - whole.keys():
        (folder / name).unlink()
    for name, content in whole.items():
        (folder / name).write_bytes(content)


def _segment(folder: Path, chance: Random) -> Path | None:
    files = sorted(folder.glob("log-*"))
    return chance.choice(files) if files else None


def _written(file: Path, notes: Path) -> int:
    """Return how many bytes of a segment have been written, as far as that is recorded."""
    size = file.stat().st_size
    _, end = read(notes).get(file.name, (0, size))
    return min(end, size)


def _flip_in(file: Path, size: int | None, chance: Random) -> Damage | None:
    if not file.exists():
        return None
    size = file.stat().st_size if size is None else size
    return flip(file, chance.randrange(size), chance.randrange(8)) if size else None


def _flip(file: Path, offset: int, bit: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes((byte ^ 1 << bit,)))


def _replace(aside: Path, file: Path) -> None:
    aside.replace(file)


def _rewrite(file: Path, whole: bytes) -> None:
    """Write the contents in place, so that the inode stays the same."""
    with file.open("r+b") as opened:
        opened.write(whole)
