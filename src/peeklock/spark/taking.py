"""The common part of the stream readers that remove messages from an entity.

The offset of a micro-batch has the sequence numbers of its messages, and nothing of earlier batches. Spark 4.2 and
later pass the start and a limit when they request the next offset. Older versions pass nothing, so the newest offset is
stored here. The subclasses take the messages, and act when a batch is durable.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from peeklock.spark import ranges
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import Options
from peeklock.spark.pages import Pages
from peeklock.spark.ranges import Ranges
from peeklock.spark.reach import SourceFailed
from peeklock.spark.rows import STATES, Page, arrow_schema, constant, rows_of
from peeklock.spark.triggers import AvailableNow, ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

LAST_LOOK_S: Final = 1.0
"""How long an AvailableNow run waits for a message that the service is slow to deliver."""

Part = tuple[str | None, Ranges]
"""Sequence numbers of one session, or of messages without a session."""


class TakingReader(DataSourceStreamReader, AvailableNow):
    """The driver keeps one reader for the whole query, and sends copies to the tasks."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._last: dict[str, Any] | None = None
        """The newest known offset: returned to Spark, or from the checkpoint."""
        self._ends: dict[int, int] | None = None
        """The last sequence numbers, by partition, that an AvailableNow run takes; 0 once it was taken."""
        self._looks = 0
        """How often Spark before 4.2 requested the latest offset."""
        self._driver = os.getppid()
        """The process of Spark's driver, which starts this process as its child."""

    def initialOffset(self) -> dict[str, Any]:
        claim = self._options.claim if self._options.mode == "claim" else ""
        return Offset(entity=self._options.address, claim=claim).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends = self._find_ends()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Take the next micro-batch and return its offset; `start` if there are no messages."""
        if start is None:
            self._looks += 1
            start = self.initialOffset() if self._last is None else self._last
        elif self._last is not None and self._last != start and self._last["batch"] > start["batch"]:
            return self._last  # it was returned before, and Spark has not used it yet
        self._on_durable(start)
        self._check_driver()
        claim = self._next(self._limit(limit))
        self._last = self._following(Offset.parse(start), claim).json() if claim.count else start
        self._on_taken(self._last, claim)
        return self._last

    @abstractmethod
    def _on_durable(self, offset: dict[str, Any]) -> None:
        """Called when everything up to this offset is durable in the sink."""

    @abstractmethod
    def _next(self, limit: Limit) -> Claim:
        """Take messages. An empty claim ends the run where `_ends_on_nothing` is true."""

    def _following(self, offset: Offset, claim: Claim) -> Offset:
        return offset.following(claim)

    def _check_driver(self) -> None:
        """Raise SourceFailed if Spark's driver has ended: no query would process further messages."""
        if not self._has_driver:
            raise SourceFailed(f"Spark's driver has ended: no more messages are read from '{self._options.address}'")

    @property
    def _has_driver(self) -> bool:
        return os.getppid() == self._driver

    def _on_taken(self, offset: dict[str, Any], claim: Claim) -> None:
        for partition, end in (self._ends or {}).items():
            if self._ends and ranges.contains(claim.parts.get(None, []), end):
                self._ends[partition] = 0  # messages with lower numbers were taken before it

    @property
    def _ends_on_nothing(self) -> bool:
        """Whether an empty claim may end the run. Before 4.2 Spark requests the offset of such a run only once."""
        return self._ends is not None or self._looks == 1

    @property
    def _wait_s(self) -> float:
        """How long to wait for a message."""
        if self._ends is None:
            poll_s = self._options.poll_interval_s
            return max(poll_s, LAST_LOOK_S) if self._ends_on_nothing else poll_s
        return LAST_LOOK_S if any(self._ends.values()) else 0.0

    def _limit(self, limit: ReadLimit | None) -> Limit:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return Limit(ends=self._find_ends() if self._ends is None else self._ends)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_messages_per_trigger
        size = limit.max_bytes if isinstance(limit, ReadMaxBytes) else options.max_bytes_per_trigger
        return Limit(messages=most, size=size, ends=self._ends)

    def _find_ends(self) -> dict[int, int]:
        with Pages(self._options) as pages:
            return pages.ends()

    def _rows(self, page: Page) -> pa.RecordBatch:
        """Decode the messages of a page, packed or not."""
        batch = rows_of(page, self._options, self._schema)
        at = self._schema.get_field_index("state")
        if at < 0:
            return batch
        # They were active when they were claimed. Claiming may have deferred them, which is not shown.
        return batch.set_column(at, self._schema.field(at), constant(STATES[0], batch.num_rows))


def share(offset: Offset, most: int) -> list[list[Part]]:
    """Divide the messages of an offset among at most so many tasks, about equally; a session is never divided."""
    shares: list[list[Part]] = [[(None, part)] for part in ranges.split(offset.claimed, most)]
    if offset.sessions:
        tasks: list[list[Part]] = [[] for _ in range(min(most, len(offset.sessions)))]
        loads = [0] * len(tasks)
        for session_id, numbers in sorted(offset.sessions.items(), key=lambda each: -ranges.count(each[1])):
            least = loads.index(min(loads))
            tasks[least].append((session_id, numbers))
            loads[least] += ranges.count(numbers)
        shares += tasks
    return shares
