"""The stream reader that reads each message at most once (`mode=receiveAndDelete`): fast, but messages can be lost.

The driver receives and deletes the messages of a micro-batch, and passes them to the tasks in their partitions. A task
that is run again gets them again. If the driver ends, they are lost; the offset has their sequence numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from peeklock.client import ClientError, ReceivedMessage, ReceiveMode, Receiver
from peeklock.spark import ranges
from peeklock.spark.intake import Intake
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import Options
from peeklock.spark.reach import Reach
from peeklock.spark.rows import number_of
from peeklock.spark.taking import TakingReader, share

log = logging.getLogger(__name__)

ROWS_AT_ONCE: Final = 1000
_RECEIVING: Final = "receiving messages of"


@dataclass(repr=False)
class PayloadPartition(InputPartition):
    """The messages of one task."""

    payloads: list[bytes]


class DeletingReader(TakingReader):
    """Reads the stream. The driver keeps a connection and the messages of the newest batch; the tasks keep neither."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._reach: Reach | None = None
        self._intake: Intake | None = None
        self._taken: dict[int, bytes] = {}
        """Messages of the newest batch, by number. Earlier batches are durable."""

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        is_ours = end == self._last
        self._last = end
        if start == end:
            return []
        offset = Offset.parse(end)
        if not is_ours or not self._taken:
            if offset.count:
                named = {id or "": numbers for id, numbers in offset.parts()}
                log.error(
                    "%d messages of '%s' were received before a restart and are lost (mode=receiveAndDelete): %s",
                    offset.count,
                    offset.entity,
                    named if offset.sessions else offset.claimed,
                )
            return []
        return [
            PayloadPartition([self._taken[number] for _, part in parts for number in ranges.numbers(part)])
            for parts in share(offset, self._options.num_partitions)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PayloadPartition)
        for at in range(0, len(partition.payloads), ROWS_AT_ONCE):
            yield self._rows(partition.payloads[at : at + ROWS_AT_ONCE])

    def stop(self) -> None:
        reach, self._reach, self._intake = self._reach, None, None
        if reach is not None:
            reach.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reach": None, "_intake": None, "_taken": {}}

    def _on_durable(self, offset: dict[str, Any]) -> None:
        self._taken = {}

    def _next(self, limit: Limit) -> Claim:
        claim = Claim()
        taken: dict[int, bytes] = {}
        is_past = False

        def keep(_: Receiver, session_id: str | None, messages: list[ReceivedMessage]) -> bool:
            nonlocal is_past
            for message in messages:
                number = number_of(message.payload)
                claim.add(session_id, number, len(message.payload))
                taken[number] = message.payload
                is_past = is_past or not limit.allows(number)
            return not is_past

        while True:
            if self._ends is not None and not any(self._ends.values()):
                break  # all messages were received
            if self._reach is None or self._intake is None:
                self._reach = Reach(self._options)
                self._intake = Intake(self._options, self._reach, ReceiveMode.RECEIVE_AND_DELETE)
            try:
                self._intake.fill(claim, limit, self._wait_s, keep)
                self._reach.succeeded(_RECEIVING)
                break
            except ClientError as error:
                self._reach.failed(_RECEIVING, error)
                if claim.count:
                    break  # these were deleted from the entity, and must be returned
                self._check_driver()
        if is_past and self._ends is not None:
            self._ends = dict.fromkeys(self._ends, 0)
        self._taken = taken
        return claim
