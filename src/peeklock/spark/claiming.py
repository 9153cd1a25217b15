"""The stream that takes each message exactly once (`mode=claim`), as Spark sees it.

The driver claims messages and puts their numbers into the offset; the tasks look at them by number, as often as Spark
likes; they are removed once Spark shows that their batch is durable. How that is done with the entity is in
`broker_claims` and `claims`; here is when.

What Spark promises, and this relies on: the next batch is planned only after the last one is in the commit log. So the
offset that `latestOffset` starts from, and the one where a batch begins, are durable. Before 4.2 Spark also asks for
the partitions between an offset and itself, at a restart; that one need not be.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from peeklock.spark.broker_claims import BrokerClaims, claims_of
from peeklock.spark.claims import ClaimLost, Claims
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import Options
from peeklock.spark.progress import Progress
from peeklock.spark.taking import Part, TakingReader, share

log = logging.getLogger(__name__)


@dataclass
class ClaimPartition(InputPartition):
    """What one task reads: numbers, by session where there are sessions."""

    parts: list[Part]
    message_size: int
    """Bytes of a message, on average."""


class ClaimReader(TakingReader):
    """In the driver it has a connection; in the tasks each read has one."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._kept_claims: Claims | BrokerClaims | None = None
        self._settled: dict[str, Any] | None = None
        """The newest offset whose claims are settled."""
        self._full: Limit | None = None
        """The limit that the newest batch reached: there is more to be claimed."""
        self._progress = Progress(options)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._last = end
        if start == end:
            return []
        self._on_durable(start)
        offset = Offset.parse(end)
        if self._full is not None:
            self._claims.claim_ahead(self._full)
        size = offset.size // max(1, offset.count)
        return [ClaimPartition(parts, size) for parts in share(offset, self._options.num_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ClaimPartition)
        with claims_of(self._options) as claims:
            for session_id, numbers in partition.parts:
                try:
                    for page in claims.read(numbers, session_id, partition.message_size):
                        yield self._rows(page)
                except ClaimLost as loss:
                    if self._options.fail_on_data_loss:
                        raise
                    log.error("%s (failOnDataLoss is false)", loss)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What Spark shows in the progress of a query; no offset to start from."""
        return self._progress.report(self._claims.removed)

    def commit(self, end: dict[str, Any]) -> None:
        self._on_durable(end)

    def stop(self) -> None:
        self._progress.close()
        claims, self._kept_claims = self._kept_claims, None
        if claims is not None:
            if self._has_driver:
                claims.release()
            claims.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept_claims": None, "_progress": None}

    @property
    def _claims(self) -> Claims | BrokerClaims:
        if self._kept_claims is None:
            self._kept_claims = claims_of(self._options)
            kept = "the broker" if isinstance(self._kept_claims, BrokerClaims) else "deferring each message"
            log.info("messages of '%s' are claimed by %s", self._options.address, kept)
        return self._kept_claims

    def _on_durable(self, offset: dict[str, Any]) -> None:
        if offset != self._settled:
            self._claims.settle(Offset.parse(offset))
            self._settled = offset

    def _next(self, limit: Limit) -> Claim:
        claims = self._claims
        while True:
            claim = claims.next(limit, wait_s=self._wait_s)
            if claim.count or not self._ends_on_nothing or claims.is_searched:
                self._progress.on_claimed(claim)
                self._full = limit if claim.count and not claim.has_room(limit) else None
                return claim
            self._check_driver()

    def _following(self, offset: Offset, claim: Claim) -> Offset:
        return offset.following(claim, self._claims.removing)
