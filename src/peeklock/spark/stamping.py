"""Message ids for rows without one, which are the same at every attempt to write a row.

An id has the write, the partition, and a digest of the row's content; rows of a partition with equal content are
numbered. A task that runs again, or a batch that is replayed, therefore gives its rows the same ids in any order, and
an entity with duplicate detection stores each message once. A row with other content at the second attempt gets another
id and is sent twice. If rows were only numbered, it could get the id of another row, and be dropped as its duplicate.

This module uses only the query, the batch and the partition of a Spark task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import Final, Protocol
from uuid import uuid4

MAX_REMEMBERED: Final = 1_000_000
"""Different rows of one partition whose duplicates are counted; about 120 MB. Later rows are distinguished by their
place, so their ids are stable only if the rows come in the same order."""

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
_DIGEST_BYTES: Final = 16
SIZE: Final = Struct(">Q").pack
"""Written in front of each part of a row's content."""


class Task(Protocol):
    """The part of `pyspark.TaskContext` that is used."""

    def partitionId(self) -> int: ...

    def getLocalProperty(self, key: str) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Write:
    """One write of a DataFrame, made on the driver and carried to all its tasks and their attempts."""

    name: str | None = None
    """The name from the user; a repeated write with the same name has the same ids."""
    job: str = ""

    @classmethod
    def begin(cls, name: str | None = None) -> Write:
        return cls(name, str(uuid4()))

    def stamps(self, task: Task, *, streaming: bool) -> Stamps:
        """Make the ids for the rows of one task. A stream has its batch number from the checkpoint."""
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        if streaming and query and batch:
            write = f"{query}/{batch}"
        elif self.name is not None:
            # In a `foreachBatch` each batch is a separate write under the same name.
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

    def stamp(self, *content: bytes) -> str:
        """Return the id for a row with this content."""
        return self._named(blake2b(self.text_of(*content), digest_size=_DIGEST_BYTES).digest())

    def stamp_all(self, texts: Iterable[bytes | memoryview | None]) -> list[str | None]:
        """Return ids for rows with these contents, made by `text_of`; None for rows that have an id."""
        named = self._named
        return [None if text is None else named(blake2b(text, digest_size=_DIGEST_BYTES).digest()) for text in texts]

    @staticmethod
    def text_of(*content: bytes) -> bytes:
        """Join the parts of a row's content unambiguously."""
        return b"".join([octets for part in content for octets in (SIZE(len(part)), part)])

    def _named(self, key: bytes) -> str:
        self._count += 1
        seen = self._seen
        before = seen.get(key)
        if before is None:
            if len(seen) >= self._max_remembered:
                return f"{self.prefix}/{key.hex()}/at{self._count}"
            seen[key] = 1
            return f"{self.prefix}/{key.hex()}"
        seen[key] = before + 1
        return f"{self.prefix}/{key.hex()}/{before}"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
