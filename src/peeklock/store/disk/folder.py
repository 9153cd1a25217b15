"""The data folder: made with its parents, synced with its files, and held by one broker at a time."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..base import StoreError, StoreHeld

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWN: Final = ("log-*", "torn-*", "damaged-*", "synced", "reserve", "lock", "pin")
"""Files of the store; the index gives its own files their modes."""


class FolderLock:
    """One broker a folder: an exclusive flock, which ends with the process however that ends."""

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Over what is there: a full disk has no room for a block that was given back.
            os.pwrite(descriptor, b"%-15d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).strip()
            os.close(descriptor)
            who = f"process {holder.decode()}" if holder.isdigit() else "another process"
            raise StoreHeld(f"The data folder {folder} is in use by {who}.") from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        # The file stays: to delete it would let two brokers hold a lock on two files of one name.
        os.close(self._descriptor)


def make_folder(folder: Path) -> None:
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except FileExistsError:
        raise StoreError(f"The data folder {folder} is not a folder.") from None
    except OSError as error:
        raise StoreError(f"The data folder {folder} cannot be made: {error.strerror}.") from error


def keep_from_others(folder: Path) -> None:
    """Take away the rights that other users have to files of the store, which have messages and keys in them: a copy
    that a user made of a folder may be readable by all."""
    for pattern in _OWN:
        for file in folder.glob(pattern):
            with suppress(OSError):  # the file may belong to another user, as the folder then does
                if stat.S_IMODE(file.stat().st_mode) & _OTHERS:
                    file.chmod(0o600)


def sync_file(descriptor: int) -> None:
    """What was written to the file is durable, and how long it is."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS, where fsync() leaves it in the disk's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """What was made in the folder is found there after a power cut: syncing a file does not promise its name."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
