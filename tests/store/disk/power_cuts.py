"""A simulated disk for the index, with power cuts and failed syncs at any time.

It records the writes, truncations and syncs of SQLite and of `os`, in blocks of 4 KiB. After a power cut the disk has
everything that was synced, a random selection of the blocks that were written since, and the old or the new length. A
failed sync leaves blocks marked as clean that are not on the disk; they may also be dropped from memory. The simulation
affects the whole process, so `run` is called in a process of its own.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from peeklock.store.base import StoreError
from peeklock.store.disk.folder import sync_folder
from peeklock.store.disk.index import database as database_module
from peeklock.store.disk.index.connections import WriterConnection, connect_writer
from peeklock.store.disk.index.database import Database
from peeklock.store.disk.index.pages import verify
from peeklock.store.disk.index.schema import create

BLOCK = 4096
POINTER = ctypes.c_void_p
OPEN = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, POINTER, ctypes.c_int, POINTER)
WRITE = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, POINTER, ctypes.c_int, ctypes.c_int64)
TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_int64)
SYNC = ctypes.CFUNCTYPE(ctypes.c_int, POINTER, ctypes.c_int)
OPEN_AT = 40
"""The offset of `xOpen` in `sqlite3_vfs`, with pointers of eight bytes."""
METHODS = 19
"""The indexes of function pointers in `sqlite3_io_methods`, after its version."""


@dataclass
class File:
    durable: bytes
    dirty: set[int] = field(default_factory=set)


class Disk:
    """Records the changes of the files of one folder, from the call of `watch` on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, File] = {}
        self.on_event: Callable[[bool], None] = lambda is_important: None
        self.fails: Callable[[str], bool] = lambda name: False
        """Return whether a sync of this file fails now."""
        self.evicts = False
        self.syncs = 0
        self._names: dict[int, str] = {}
        self._kept: list[Any] = []
        self._methods: dict[int, Any] = {}
        self._pwrite, self._fsync = os.pwrite, os.fsync

    def install(self) -> None:
        find = ctypes.CDLL(_sqlite3.__file__).sqlite3_vfs_find
        find.restype, find.argtypes = POINTER, [ctypes.c_char_p]
        place = POINTER.from_address(find(None) + OPEN_AT)
        ours = OPEN(partial(self._open, OPEN(place.value)))
        self._kept.append(ours)
        place.value = ctypes.cast(ours, POINTER).value
        setattr(os, "pwrite", self._os_write)  # noqa: B010
        setattr(os, "fsync", self._os_sync)  # noqa: B010

    def watch(self) -> None:
        """Start recording: the current contents of all files count as synced."""
        for file in self.folder.iterdir():
            if not file.name.endswith("-shm"):
                self.files[file.name] = File(file.read_bytes())

    def after_power_cut(self, chance: Random, kept: float) -> dict[str, bytes]:
        """Cut the power: each block that is not synced is kept with this probability."""
        found = {}
        for name, file in self.files.items():
            current = (self.folder / name).read_bytes()
            length = (
                len(chance.choice((file.durable, current))) if 0 < kept < 1 else len((file.durable, current)[kept > 0])
            )
            content = bytearray(file.durable[:length].ljust(length, b"\0"))
            for block in file.dirty:
                if kept == 1 or chance.random() < kept:
                    at = slice(block * BLOCK, min((block + 1) * BLOCK, length))
                    content[at] = current[at].ljust(max(0, at.stop - at.start), b"\0")
            found[name] = bytes(content)
        return found

    def _wrote(self, name: str, offset: int, size: int) -> None:
        if name in self.files:
            self.files[name].dirty.update(range(offset // BLOCK, (offset + size - 1) // BLOCK + 1))
            self.on_event(False)

    def _truncated(self, name: str, size: int) -> None:
        if name in self.files:
            file = self.files[name]
            file.dirty = {block for block in file.dirty if block * BLOCK < size}
            self.on_event(True)

    def _syncs(self, name: str) -> bool:
        """Sync a file. Return False if the sync fails."""
        if name not in self.files:
            return True
        self.on_event(True)
        self.syncs += 1
        file, path = self.files[name], self.folder / name
        current = path.read_bytes()
        if self.fails(name):
            if self.evicts:
                with path.open("r+b") as opened:
                    for block in file.dirty:
                        at = slice(block * BLOCK, min((block + 1) * BLOCK, len(current)))
                        opened.seek(at.start)
                        opened.write(file.durable[at].ljust(max(0, at.stop - at.start), b"\0"))
            file.dirty.clear()
            return False
        content = bytearray(file.durable[: len(current)].ljust(len(current), b"\0"))
        for block in file.dirty:
            at = slice(block * BLOCK, (block + 1) * BLOCK)
            content[at] = current[at]
        file.durable = bytes(content)
        file.dirty.clear()
        self.on_event(True)
        return True

    def _os_write(self, descriptor: int, data: bytes, offset: int) -> int:
        written = self._pwrite(descriptor, data, offset)
        self._wrote(self._name(descriptor), offset, written)
        return written

    def _os_sync(self, descriptor: int) -> None:
        if not self._syncs(self._name(descriptor)):
            raise OSError(5, "Input/output error")

    def _name(self, descriptor: int) -> str:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        return path.name if path.parent == self.folder else ""

    def _open(self, original: Any, vfs: int, path: int | None, file: int, flags: int, out: int | None) -> int:
        result: int = original(vfs, path, file, flags, out)
        name = Path("" if path is None else os.fsdecode(ctypes.string_at(path)))
        if result == sqlite3.SQLITE_OK and name.parent == self.folder:
            self._names[file] = name.name
            methods = POINTER.from_address(file)
            address = methods.value
            assert address is not None
            if address not in self._methods:
                copy = (POINTER * METHODS).from_buffer_copy(ctypes.string_at(address, 8 * METHODS))
                for at, kind, ours in (
                    (3, WRITE, self._sqlite_write),
                    (4, TRUNCATE, self._sqlite_truncate),
                    (5, SYNC, self._sqlite_sync),
                ):
                    called = kind(partial(ours, kind(copy[at])))
                    self._kept.append(called)
                    copy[at] = ctypes.cast(called, POINTER)
                self._methods[address] = copy
            methods.value = ctypes.addressof(self._methods[address])
        return result

    def _sqlite_write(self, original: Any, file: int, data: int, size: int, offset: int) -> int:
        result: int = original(file, data, size, offset)
        self._wrote(self._names[file], offset, size)
        return result

    def _sqlite_truncate(self, original: Any, file: int, size: int) -> int:
        result: int = original(file, size)
        self._truncated(self._names[file], size)
        return result

    def _sqlite_sync(self, original: Any, file: int, flags: int) -> int:
        return sqlite3.SQLITE_OK if self._syncs(self._names[file]) else sqlite3.SQLITE_IOERR_FSYNC


def connect(file: Path) -> WriterConnection:
    connection = connect_writer(file)
    create(connection)
    return connection


def dump(connection: sqlite3.Connection) -> str:
    """Read all rows of all tables."""
    content = sha256()
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    for (table,) in tables:
        content.update(table.encode())
        for row in connection.execute(f'SELECT * FROM "{table}" ORDER BY 1'):
            content.update(repr(row).encode())
    return content.hexdigest()


def commit_of(connection: sqlite3.Connection) -> int:
    (commit,) = connection.execute('SELECT "commit" FROM log').fetchone()
    return int(commit)


class Run:
    """Makes commits and checkpoints, with power cuts in between."""

    def __init__(self, folder: str, seed: int) -> None:
        self.chance = Random(seed)
        self.file = Path(folder).resolve() / "data" / "peeklock.db"
        self.file.parent.mkdir()
        self.disk = Disk(self.file.parent)
        self.disk.install()
        self.database = Database(connect(self.file), self.file, lambda connection: None)
        sync_folder(self.file.parent)
        self.database.checkpoint()
        self.disk.watch()
        self.commits = 0
        self.states = {0: dump(self.database.connected())}
        self.freed = 0
        """The commit that the index must not lose, because segments were freed after it."""
        self.cuts: list[tuple[dict[str, bytes], int]] = []
        self.disk.on_event = self.cut

    def cut(self, is_important: bool) -> None:
        if self.chance.random() < (0.5 if is_important else 0.02):
            kept = self.chance.choice((0.0, 0.5, 0.9, 1.0))
            self.cuts.append((self.disk.after_power_cut(self.chance, kept), self.freed))

    def commit(self) -> None:
        connection = self.database.begin()
        for _ in range(self.chance.randrange(1, 60)):
            row = self.chance.randrange(1, 2000), self.chance.randbytes(self.chance.randrange(1, 400))
            connection.execute("INSERT OR REPLACE INTO history VALUES (?, ?)", row)
        connection.execute("DELETE FROM history WHERE key % 97 = ?", (self.chance.randrange(97),))
        connection.execute('UPDATE log SET "commit" = ?', (self.commits + 1,))
        self.states[self.commits + 1] = dump(connection)
        connection.execute("COMMIT")
        self.commits += 1
        self.database.applied = self.commits

    def checkpoint(self) -> None:
        self.database.checkpoint()
        self.freed = self.commits

    def restart_log(self) -> None:
        """Restart the WAL, as if the disk were full: it is overwritten from its start and not truncated."""
        if self.database.restart_wal():
            self.freed = self.commits

    def check_cuts(self) -> None:
        """Check the folder after each power cut: it can be opened, and has a committed state that is not too old."""
        folder = self.file.parent.parent / "cut"
        folder.mkdir()
        for number, (contents, freed) in enumerate(self.cuts):
            for file in folder.iterdir():
                file.unlink()
            for name, content in contents.items():
                (folder / name).write_bytes(content)
            file = folder / "peeklock.db"
            verify(file)
            with closing(connect(file)) as connection:
                commit = commit_of(connection)
                assert dump(connection) == self.states[commit], f"cut {number} has a state that never was"
                assert freed <= commit, f"cut {number} is at {commit}, and segments up to {freed} were freed"
        print(f"{len(self.cuts)} power cuts")


def run(folder: str, seed: int, failing: int | None = None, evicts: bool = False) -> None:
    """Make the sync with this number fail, and continue."""
    run = Run(folder, seed)
    run.disk.evicts = evicts
    first = run.disk.syncs
    run.disk.fails = lambda name: failing is not None and run.disk.syncs - first == failing
    database_module._MAX_WAL_BYTES = 200_000
    failures = 0
    for step in range(40):
        try:
            if step % 7 == 6:
                run.checkpoint()
            elif step % 11 == 4:
                run.restart_log()
            else:
                run.commit()
                run.database.checkpoint_if_long()
        except (StoreError, sqlite3.Error) as error:
            failures += 1
            if isinstance(error, sqlite3.Error):
                run.database.failed(error)
            if run.database.fatal is not None:
                break
    run.check_cuts()
    print(f"{failures} failures, {run.disk.syncs - first} syncs, lost: {run.database.fatal}", file=sys.stderr)
