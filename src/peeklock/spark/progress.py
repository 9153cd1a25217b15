"""The progress of a claiming stream, which Spark shows in the progress of the query.

Spark 4.2 and later requests the newest offset from a Python source, and shows it as `latestOffset` without using it.
Spark has no metrics for such sources, so the figures are fields of that offset.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from peeklock.client import ClientError
from peeklock.spark.offsets import Claim
from peeklock.spark.options import Options
from peeklock.spark.pages import Pages
from peeklock.spark.reach import Reach, SourceFailed
from peeklock.spark.sending import Patience

log = logging.getLogger(__name__)

LOOKED_S: Final = 1.0
"""The shortest time between two searches for the newest message, which take about forty requests each."""
_AT_ONCE: Final = Patience(retries=0)


class Progress:
    """Counts claimed messages since the start, and finds waiting messages over its own connection."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pages: Pages | None = None
        self._claimed = 0
        self._bytes = 0
        self._highest = 0
        """The highest number that was claimed."""
        self._is_idle = False
        self._waiting: dict[str, Any] = {}
        self._looked_at = -LOOKED_S

    def on_claimed(self, claim: Claim) -> None:
        """Count a claim, which may be empty."""
        self._claimed += claim.count
        self._bytes += claim.size
        self._highest = max([self._highest, *(last for part in claim.parts.values() for _, last in part)])
        self._is_idle = not claim.count

    def report(self, removed: int) -> dict[str, Any]:
        figures = {"claimedMessages": self._claimed, "claimedBytes": self._bytes, "removedMessages": removed}
        return {**self._look(), **figures}

    def close(self) -> None:
        pages, self._pages = self._pages, None
        if pages is not None:
            pages.close()

    def _look(self) -> dict[str, Any]:
        """Count the sequence numbers after the highest claimed one, including gaps."""
        if self._is_idle:
            return {"waitingMessages": 0, "oldestSeconds": 0.0}
        now = time.monotonic()
        if now >= self._looked_at + LOOKED_S:
            self._looked_at = now
            try:
                self._waiting = self._found()
            except (ClientError, SourceFailed) as error:  # the query itself may work
                log.warning("cannot count the waiting messages of '%s': %s", self._options.address, error)
                self._waiting = {}
        return self._waiting

    def _found(self) -> dict[str, Any]:
        if self._pages is None:
            self._pages = Pages(self._options, Reach(self._options, patience=_AT_ONCE))
        oldest = self._pages.look(self._highest + 1)
        if oldest is None:
            return {"waitingMessages": 0, "oldestSeconds": 0.0}
        newest = self._pages.last(oldest.number) or oldest.number
        age_s = max(0.0, time.time() - oldest.enqueued_ms / 1000)
        return {"waitingMessages": newest - oldest.number + 1, "oldestSeconds": round(age_s, 1)}
