"""Message ids for rows that come without one, the same at every attempt to write the same row.

An id names the write, the partition, and the row by a digest of what it says; rows of a partition that say the same are
counted. So a task that runs again, or a batch that is replayed, gives its rows the ids they had, in whatever order they
come, and an entity with duplicate detection takes each once. A row that says something else at the second attempt gets
another id: it is sent twice rather than mistaken for a different row and lost, as it would be if rows were numbered.

Knows nothing of Spark but what a task can ask it: the query, the batch and the partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, Protocol
from uuid import uuid4

MAX_REMEMBERED: Final = 1_000_000
"""Different rows of one partition that are told apart by counting those that say the same; about 120 MB. Later rows are
told apart by their place, so their ids are the same again only if they come in the same order."""

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
_DIGEST_BYTES: Final = 16
_size: Final = Struct(">Q").pack


class Task(Protocol):
    """What is asked of `pyspark.TaskContext`."""

    def partitionId(self) -> int: ...

    def getLocalProperty(self, key: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a DataFrame, made on the driver and carried to all its tasks and their attempts."""

    name: str | None = None
    """The user's; who writes again under the same name gets the same ids."""
    job: str = ""

    @classmethod
    def begin(cls, name: str | None = None) -> Write:
        return cls(name, str(uuid4()))

    def stamps(self, task: Task, *, streaming: bool) -> Stamps:
        """For the rows of one task. A stream knows its batch by the checkpoint, however often it is started."""
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if streaming and query and batch:
            write = f"{query}/{batch}"
        elif self.name is not None:
            # In a `foreachBatch` each batch is a write of its own under the one name.
            write = _digest(f"{self.name}\0{query or ''}\0{batch or ''}".encode())
        else:
            write = self.job
        return Stamps(f"{write}/{task.partitionId()}")


class Stamps:
    """Gives ids to the rows of one task, at most 121 characters long: the service takes 128."""

    def __init__(self, prefix: str, max_remembered: int = MAX_REMEMBERED) -> None:
        self.prefix = prefix
        """Names the write and the partition, the same at every attempt."""
        self._max_remembered = max_remembered
        self._seen: dict[bytes, int] = {}
        self._count = 0

    def stamp(self, *said: bytes) -> str:
        """The id for a row that says this."""
        return self.stamp_row(self.prefix_of(*said[:-1]), said[-1])

    @staticmethod
    def prefix_of(*said: bytes) -> bytes:
        """What a row says before the last part, as it is part of the digest: the same for many rows."""
        return b"".join([octets for part in said for octets in (_size(len(part)), part)])

    def stamp_row(self, prefix: bytes, last: bytes | memoryview) -> str:
        """The same, for the last part of what the row says behind the rest of it."""
        self._count += 1
        key = blake2b(b"".join((prefix, _size(len(last)), last)), digest_size=_DIGEST_BYTES).digest()
        before = self._seen.get(key)
        if before is None and len(self._seen) >= self._max_remembered:
            return f"{self.prefix}/{key.hex()}/at{self._count}"
        self._seen[key] = (before or 0) + 1
        return f"{self.prefix}/{key.hex()}" if before is None else f"{self.prefix}/{key.hex()}/{before}"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
