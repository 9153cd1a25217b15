"""The stream reader that reads each message exactly once (`mode=claim`).

The driver claims messages and puts their sequence numbers into the offset. The tasks read them by number, repeatedly if
Spark requires it. The messages are removed when Spark shows that their batch is durable. `broker_claims` and `claims`
have the operations on the entity; this module decides when to call them.

It relies on a guarantee of Spark: the next batch is planned only after the last one is in the commit log. The start
offset of `latestOffset` and the start offset of a batch are therefore durable. Before 4.2 Spark also requests the
partitions between an offset and itself at a restart; that offset may not be durable.
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
from peeklock.spark.options import AUTO, BROKER, DEFER, Options
from peeklock.spark.progress import Progress
from peeklock.spark.taking import Part, TakingReader, share

log = logging.getLogger(__name__)


@dataclass
class ClaimPartition(InputPartition):
    """The sequence numbers that one task reads, by session if the entity has sessions."""

    parts: list[Part]
    message_size: int
    """The average size of a message in bytes."""


class ClaimReader(TakingReader):
    """Reads the stream. The driver keeps one connection; in the tasks each read opens one."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._kept_claims: Claims | BrokerClaims | None = None
        self._settled: dict[str, Any] | None = None
        """The newest offset whose claims are settled."""
        self._full: Limit | None = None
        """The limit that the newest batch reached, which means that there may be more messages; else None."""
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
        """The offset that Spark shows in the progress of a query. It is never used as a start offset."""
        removed = self._claims.removed
        return {"claimProtocol": self._protocol, **self._progress.report(removed)}

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
            if self._protocol == BROKER:
                log.info("claiming messages of '%s' by claims of the broker", self._options.address)
            elif self._options.claim_protocol == AUTO:
                log.warning(
                    "the service of '%s' does not offer claims (peeklock:claims): each message is deferred, which is "
                    "slower; set claimProtocol=defer to choose this",
                    self._options.address,
                )
            else:
                log.info("claiming messages of '%s' by deferral", self._options.address)
        return self._kept_claims

    @property
    def _protocol(self) -> str:
        """The protocol in use."""
        return BROKER if isinstance(self._kept_claims, BrokerClaims) else DEFER

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
        return offset.following(claim, self._claims.removing, self._claims.owner)
