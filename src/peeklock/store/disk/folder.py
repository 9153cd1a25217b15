"""The data folder: creating it, locking it for one process, file permissions and syncs."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from ..base import StoreError, StoreLocked

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_OWN: Final = ("log-*", "torn-*", "damaged-*", "synced", "reserve", "lock", "pin")
"""Files whose permissions are set here; the index sets those of its own files."""


class FolderLock:
    """An exclusive lock on the data folder: a flock, which the kernel releases when the process ends."""

    def __init__(self, folder: Path) -> None:
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Overwrite without truncating: a full disk may have no free block for the file afterwards.
            os.pwrite(descriptor, b"%-15d\n" % os.getpid(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).strip()
            os.close(descriptor)
            user = f"process {holder.decode()}" if holder.isdigit() else "another process"
            raise StoreLocked(f"The data folder {folder} is in use by {user}.") from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        # The file is not deleted: otherwise two processes could each lock a different file of the same name.
        os.close(self._descriptor)


def make_folder(folder: Path) -> None:
    """Create the folder and its missing parents, and sync their names. Raise StoreError."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for made in missing:
            sync_folder(made.parent)
    except FileExistsError:
        raise StoreError(f"The data folder {folder} is not a folder.") from None
    except OSError as error:
        raise StoreError(f"The data folder {folder} cannot be created: {error.strerror}.") from error


def restrict_permissions(folder: Path) -> None:
    """Remove all permissions of other users from the files of the store.

    The files contain messages and keys, and a folder that a user has copied may be readable by everyone.
    """
    for pattern in _OWN:
        for file in folder.glob(pattern):
            with suppress(OSError):  # the files may belong to another user
                if stat.S_IMODE(file.stat().st_mode) & _OTHERS:
                    file.chmod(0o600)


def sync_file(descriptor: int) -> None:
    """Sync the file's contents and metadata to disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # on macOS, fsync() does not flush the disk's own cache
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries, so that new and renamed files are found after a power cut.

    Syncing a file does not make its name durable.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
