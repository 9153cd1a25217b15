"""Damage to the files of a data folder, done while no broker runs, and undone again when a broker refuses to start.

What a disk or a person does to files that were synced: one bit is another, a part of the log is missing or is cut off.
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
"""What the other files are checked by."""
CHANGED_ANYWAY: Final = frozenset(("lock", f"{INDEX}-shm"))
"""What a start may write that then refuses."""
RESERVE: Final = "reserve"
"""Room for a full disk: nothing is in it."""

_NAMES: Final = re.compile(r"/(log-\d{10}|peeklock\.db|peeklock\.db-wal|peeklock\.sums|synced|lock)\b")
_TAIL_BYTES: Final = 1500
"""Some records at the end of the log."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done, and how it is undone."""

    file: Path
    text: str
    undo: Callable[[], None]


Maker = Callable[[Path, Path, Random], Damage | None]
"""Does it to a folder, given also where unsynced bytes are noted; None when there is nothing to do it to."""


def flip_tail(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """One bit of the records at the end of the log."""
    written = [(name, end) for name, (_, end) in read(notes).items() if name.startswith("log-")]
    name, end = max(written, default=("", 0))
    file = folder / name
    if not end or not file.exists():
        return None
    end = min(end, file.stat().st_size)
    return flip(file, chance.randrange(max(0, end - _TAIL_BYTES), end), chance.randrange(8))


def flip_log(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """One bit of what was written to the log."""
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
    """A part of the log is not there any more."""
    file = _segment(folder, chance)
    if file is None:
        return None
    aside = folder.parent / f"aside-{file.name}"
    file.rename(aside)
    return Damage(file, f"{file.name} is missing", lambda: _replace(aside, file))


def shorten_segment(folder: Path, notes: Path, chance: Random) -> Damage | None:
    """The end of a part of the log is not there any more."""
    file = _segment(folder, chance)
    if file is None:
        return None
    whole = file.read_bytes()
    length = chance.randrange(max(1, _written(file, notes)))
    os.truncate(file, length)
    return Damage(file, f"{file.name} ends at {length}, and had {len(whole)} bytes", lambda: _rewrite(file, whole))


def flip(file: Path, offset: int, bit: int) -> Damage:
    """One bit is another."""
    _flip(file, offset, bit)
    return Damage(file, f"bit {bit} of byte {offset} of {file.name} is flipped", lambda: _flip(file, offset, bit))


def contents(folder: Path) -> dict[str, bytes]:
    """Of all files that a refused start must leave as they are."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.name not in (*CHANGED_ANYWAY, RESERVE)
    }


def names_file(text: str) -> bool:
    """Whether somebody who reads it knows where to look."""
    return _NAMES.search(text) is not None


def rewrite(folder: Path, whole: dict[str, bytes]) -> None:
    """Have the files as they were."""
    for name in contents(folder).keys() - whole.keys():
        (folder / name).unlink()
    for name, content in whole.items():
        (folder / name).write_bytes(content)


def _segment(folder: Path, chance: Random) -> Path | None:
    files = sorted(folder.glob("log-*"))
    return chance.choice(files) if files else None


def _written(file: Path, notes: Path) -> int:
    """How much of a part of the log has been written to, as far as that is known."""
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
    """In place: it stays the same file."""
    with file.open("r+b") as opened:
        opened.write(whole)
