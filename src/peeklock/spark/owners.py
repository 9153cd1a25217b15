"""The owner of claims by deferral: which query claims under a name, and which queries before it have ended.

A service that knows no claims does not know who is connected either. So the owner is kept in two places. Each message
that a query without a `claimName` defers is marked with the query's id, which its checkpoint has, too. And on each
machine a lock file lets one query at a time claim under a name. The kernel releases the lock when the process ends. The
file has the ids of the queries that held the lock, so that the next one knows that they have ended. About queries on
other machines nothing is known.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from typing import Final
from uuid import uuid4

from peeklock.client import parse_endpoint
from peeklock.spark.options import Options

try:
    import fcntl
except ImportError:  # not on Windows: the ids in the messages still tell the queries apart
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger(__name__)

_SEPARATOR: Final = "#"
_ID: Final = re.compile(r"[0-9a-f]{32}")
_MOST_IDS: Final = 1000
"""Ids in a lock file."""


class Owner:
    """The owner of the claims of one name on one entity."""

    def __init__(self, options: Options) -> None:
        self.id = "" if options.claim_name else uuid4().hex
        """Empty if the user has named the claims, and is thus responsible for using the name once."""
        self._options = options
        self._file: int | None = None
        self._ended: set[str] = set()
        self._is_unlocked = fcntl is None
        """Whether this machine has no lock files."""

    @property
    def mark(self) -> str:
        """The value that marks a deferred message."""
        return f"{self._options.claim}{_SEPARATOR}{self.id}" if self.id else self._options.claim

    def continues(self, id: str) -> None:
        """Take the id from a checkpoint: its query and this one are the same."""
        if not self.id or not _ID.fullmatch(id) or id == self.id:
            return
        self.id = id
        self._record()

    def owns(self, mark: object) -> bool:
        """Whether a message with this mark is claimed by this query. Raises NotOwned if that cannot be known."""
        claim = self._options.claim
        if not isinstance(mark, str) or mark == claim:
            return mark == claim  # without an id it is from an older version, or was named by the user
        name, _, id = mark.rpartition(_SEPARATOR)
        if name != claim or not _ID.fullmatch(id):
            return False
        if not self.id or id == self.id or id in self._ended:
            return True
        raise NotOwned

    def acquire(self) -> bool:
        """Become the owner on this machine. False if another process, or another object of this one, is the owner."""
        if self._file is not None or self._is_unlocked:
            return True
        try:
            file = os.open(_folder() / self._file_name(), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            log.warning("claims of '%s' have no lock file on this machine: %s", self._options.address, error)
            self._is_unlocked = True
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return False
        self._file = file
        self._ended = set(_ids(file))
        self._record()
        return True

    def release(self) -> None:
        """Let another query become the owner."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def __del__(self) -> None:
        self.release()

    def _record(self) -> None:
        """Write the id into the lock file, for the query that holds the lock after this one."""
        if self._file is None or not self.id:
            return
        kept = [id for id in _ids(self._file) if id != self.id]
        text = "".join(f"{id}\n" for id in [*kept[1 - _MOST_IDS :], self.id])
        with suppress(OSError):  # a full disk; the next query is refused if it finds these claims
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)

    def _file_name(self) -> str:
        endpoint = parse_endpoint(self._options.connection_string)
        named = f"{endpoint.host}:{endpoint.port}/{self._options.address}\n{self._options.claim}"
        return f"{sha256(named.encode()).hexdigest()}.lock"


class NotOwned(Exception):
    """Messages are claimed by another query that may still run."""


def _folder() -> Path:
    """Return the folder of the lock files, which belongs to this user."""
    folder = Path(tempfile.gettempdir(), f"peeklock-claims-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    state = folder.lstat()
    if not S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or S_IMODE(state.st_mode) & 0o022:
        raise PermissionError(f"{folder} must be a folder of this user that no other user can change")
    return folder


def _ids(file: int) -> list[str]:
    size = os.fstat(file).st_size
    return _ID.findall(os.pread(file, size, 0).decode("ascii", "replace"))
