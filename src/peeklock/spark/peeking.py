"""Read without removing: the batch read, and the stream that follows an entity by sequence number (`mode=peek`).

The driver finds the sequence numbers of the messages and divides them among the tasks, which peek. A batch read reads
the messages that were in the entity when it started.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from peeklock.spark import ranges
from peeklock.spark.narrowing import Bounds, narrow, pushes_filters
from peeklock.spark.option_values import MAX_NUMBER
from peeklock.spark.options import Options
from peeklock.spark.pages import PARTITION_BITS, Pages
from peeklock.spark.ranges import Ranges
from peeklock.spark.rows import ARROW_SCHEMA, arrow_schema, rows_of
from peeklock.spark.triggers import AvailableNow, ReadAllAvailable, ReadLimit, ReadMaxRows

_LOOKS: Final = 8
"""The parts of a task's share for which the driver searches gaps."""
_WORTH_LOOKING: Final = 10_000
"""The sequence numbers above which the driver searches gaps. For fewer, unequal shares cost less than the search."""


@dataclass
class NumbersPartition(InputPartition):
    """The sequence numbers that one task reads."""

    numbers: Ranges


def batch_reader(options: Options, schema: StructType) -> DataSourceReader:
    """Make the reader for `spark.read`. It accepts filters if Spark is going to push some down."""
    return FilteringPeekReader(options, schema) if pushes_filters() else PeekReader(options, schema)


class _Peeking:
    """The common part of both readers. It is sent to the tasks, so it has no connection."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._bounds = Bounds.of(options)

    def _shares(self, pages: Pages, extents: Ranges) -> list[InputPartition]:
        parts = self._options.num_partitions
        if ranges.count(extents) > _WORTH_LOOKING and parts > 1:
            extents = pages.without_gaps(extents, parts * _LOOKS)
        return [NumbersPartition(share) for share in ranges.split(extents, parts)]

    def _rows(self, numbers: Ranges) -> Iterator[pa.RecordBatch]:
        earliest = self._bounds.earliest_ms
        schema = self._schema
        if earliest is not None and "enqueued_time" not in schema.names:
            schema = schema.append(ARROW_SCHEMA.field("enqueued_time"))
        with Pages(self._options) as pages:
            for page in pages.read(numbers):
                batch = rows_of(page, self._options, schema)
                yield batch if earliest is None else self._since(batch, earliest)

    def _since(self, batch: pa.RecordBatch, earliest_ms: int) -> pa.RecordBatch:
        earliest = pa.scalar(earliest_ms * 1000, ARROW_SCHEMA.field("enqueued_time").type)
        kept = batch.filter(pc.greater_equal(batch.column("enqueued_time"), earliest))
        return pa.RecordBatch.from_arrays([kept.column(name) for name in self._schema.names], schema=self._schema)


class PeekReader(_Peeking, DataSourceReader):
    """The batch read."""

    def partitions(self) -> Sequence[InputPartition]:
        bounds = self._bounds
        if bounds.is_empty:
            return _NOTHING
        with Pages(self._options) as pages:
            extents = pages.extents(bounds.first, bounds.last)
            if self._options.sub_queue is None:  # messages in a sub-queue have the enqueued time of the entity
                extents = [self._by_time(pages, extent) for extent in extents]
            extents = [[first, last] for first, last in extents if first <= last]
            return self._shares(pages, extents) or _NOTHING

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, NumbersPartition)
        return self._rows(partition.numbers)

    def _by_time(self, pages: Pages, extent: list[int]) -> list[int]:
        first, last = extent
        if self._bounds.earliest_ms is not None:
            first = pages.enqueued_from(extent, self._bounds.earliest_ms)
        if self._bounds.latest_ms is not None:
            last = pages.enqueued_until(extent, self._bounds.latest_ms)
        return [first, last]


# Without a partition Spark makes one of another type.
_NOTHING: Final[list[InputPartition]] = [NumbersPartition([])]


class FilteringPeekReader(PeekReader):
    """The batch read for filters that Spark pushes down."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._bounds = narrow(self._bounds, filters)
        return filters  # the bounds are approximate, so Spark applies the filters again


class PeekStreamReader(_Peeking, DataSourceStreamReader, AvailableNow):
    """The stream by sequence number. Its offset is the next number to read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pages: Pages | None = None
        self._target: int | None = None
        self._asked_at = -1e9
        self._initial: dict[str, int] | None = None
        self._end: dict[str, int] | None = None
        """The end of the newest batch. Before 4.2 Spark calls `latestOffset` without the start."""

    def initialOffset(self) -> dict[str, int]:
        if self._initial is None:
            self._initial = {"next": self._first()}
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        most = self._options.max_messages_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, int] | None = None, limit: ReadLimit | None = None) -> dict[str, int]:
        """Return the end of the next micro-batch; `start` if there are no messages."""
        if start is None:
            start, limit = self._end or self.initialOffset(), self.getDefaultReadLimit()
        if time.monotonic() < self._asked_at + self._options.poll_interval_s:
            return start
        first = int(start["next"])
        reach = min(self._bounds.last, MAX_NUMBER if self._target is None else self._target)
        last = self._last(first, reach, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        if last is None:
            self._asked_at = time.monotonic()
            return start
        return {"next": last + 1}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._last(self._bounds.first, self._bounds.last, None) or 0

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        self._end = end
        first, last = int(start["next"]), int(end["next"]) - 1
        if last < first:
            return []
        return self._shares(self._looking(), [[first, last]])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, NumbersPartition)
        return self._rows(partition.numbers)

    def stop(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pages": None}

    def _first(self) -> int:
        first = self._bounds.first
        if self._bounds.earliest_ms is not None and self._options.sub_queue is None:
            last = self._looking().last(first)
            if last is not None:
                first = self._looking().enqueued_from([first, last], self._bounds.earliest_ms)
        return first

    def _last(self, first: int, reach: int, most: int | None) -> int | None:
        """Return the last number of the next micro-batch, or None. Limits count sequence numbers, including gaps."""
        pages = self._looking()
        seen = pages.look(first)
        if seen is None or seen.number > reach:
            return None
        if seen.number >> PARTITION_BITS:
            raise ValueError(
                f"'{self._options.address}' is partitioned, so its sequence numbers do not ascend in time and "
                "mode=peek cannot follow it: use mode=claim"
            )
        return pages.last(seen.number, reach if most is None else min(reach, seen.number + most - 1))

    def _looking(self) -> Pages:
        if self._pages is None:
            self._pages = Pages(self._options)
        return self._pages
