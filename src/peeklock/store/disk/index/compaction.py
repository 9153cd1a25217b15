"""Compaction of the log: frees segments without messages, and moves the last messages out of sparse segments.

Messages are mostly removed in the order in which they arrived, so most segments become free as a whole. Messages that
stay long, such as dead letters and scheduled messages, are written again at the end of the log, so that their segments
can be freed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Final

from ...base import Changes, StoreError
from ..commits.batch import Batch
from ..keys import MAX_NUMBER, NUMBER_BITS
from ..log.segments import LogPosition, Segments
from ..pin import Pin
from .writer import Writer

log = logging.getLogger(__name__)

_FAILED: Final = "segments of the log could not be freed: %s"

_CHECKED_AT_ONCE: Final = 4
"""How many segments are checked at once, so that no read waits long."""
_PAUSE: Final = 0.5
"""Seconds until a segment that is still needed is checked again, unless the log started a new segment meanwhile. If
messages of the segment were rewritten to other segments, a check reads the rows of all of them."""
_SPARSE: Final = 0.5
"""Messages are moved out of a segment if less than this fraction of it is needed."""
_MOVED_ROWS: Final = 1024
_MOVED_BYTES: Final = 8 * 1024 * 1024
"""The most messages and bytes of one move; a single message may be longer."""


class Compaction:
    """Frees segments. Used by the index thread, which calls `moved` when a move was committed."""

    def __init__(
        self,
        writer: Writer,
        segments: Segments,
        pin: Pin,
        commit: Callable[[Batch], None],
        report: Callable[[int, int], None],
    ) -> None:
        self._writer = writer
        self._segments = segments
        self._pin = pin
        self._commit = commit
        """Commits moves; `moved` must be called when they are committed or failed."""
        self._report_message = report
        """Reports the message with this entity id and sequence number if it is damaged."""
        self._checked = 0
        """The segment that was checked last."""
        self._unchecked = 0
        """How many segments were not checked since entries were applied."""
        self._checked_at = -inf
        """When segments were checked last."""
        self._needed_at: dict[int, float] = {}
        """When each segment was last found to be needed, since the log started its current segment."""
        self._current = 0
        """The last segment of the log when sparse segments were last searched for."""
        self._examined = 0
        """The segment that was last added to the candidates."""
        self._candidates: list[int] = []
        """Segments that may be sparse."""
        self._source: int | None = None
        """The sparse segment that messages are being moved out of."""
        self._is_moving = False
        self._damaged_messages: set[int] = set()
        self._damaged_bodies: set[int] = set()
        """Keys of damaged messages and bodies, which are not moved."""

    @property
    def has_work(self) -> bool:
        return not self._is_moving and (self._source is not None or bool(self._candidates))

    @property
    def timeout(self) -> float | None:
        """Seconds until `continue_freeing` must be called; None if all segments were checked."""
        return max(0.0, self._checked_at + _PAUSE - monotonic()) if self._unchecked > 0 else None

    def moved(self, *, failed: bool) -> None:
        """Continue after a move was committed or failed."""
        self._is_moving = False
        if failed:
            self._source = None

    def free_some(self, applied: LogPosition) -> None:
        """Check some of the segments before the applied position. Called whenever entries were applied."""
        behind = self._segments.before(applied.segment)
        self._unchecked = len(behind)
        if not behind:
            return
        if applied.segment != self._current:
            self._current = applied.segment
            self._needed_at.clear()
            self._find_sparse(behind)
        self._check(behind)

    def continue_freeing(self, applied: LogPosition) -> None:
        """Check some more segments, when nothing was applied for a while."""
        self._check(self._segments.before(applied.segment))

    def _check(self, behind: list[int]) -> None:
        now = monotonic()
        due = [segment for segment in behind if self._needed_at.get(segment, -inf) + _PAUSE <= now]
        if due:
            checked = _next(due, self._checked)
            self._checked = checked[-1]
            self._unchecked -= len(checked)
            self._checked_at = now
            self._free({due[0], *checked})
        elif not behind:
            self._unchecked = 0

    def _find_sparse(self, behind: list[int]) -> None:
        """Choose candidates if the log is wasteful: to compute the needed part of a segment reads all its messages."""
        try:
            if self._segments.is_wasteful(self._writer.stored_bytes()):
                self._candidates = _next(behind, self._examined)
                self._examined = self._candidates[-1]
        except StoreError as error:
            log.warning(_FAILED, error)

    def free_all(self, applied: LogPosition) -> None:
        """Check all segments at the stop. The last segment stays: the next start continues in it."""
        self._free(set(self._segments.before(applied.segment)))

    def move_some(self) -> None:
        """Find a sparse segment, or move some messages out of the one that was found."""
        try:
            if self._source is None:
                segment = self._candidates.pop(0)
                if self._writer.needed_bytes(segment) < self._segments.size(segment) * _SPARSE:
                    self._source = segment
            else:
                self._move(self._source)
        except Exception as error:  # any error: the index thread must continue
            log.warning(_FAILED, error)
            self._candidates, self._source = [], None

    def _move(self, segment: int) -> None:
        """Move some messages and bodies out of a segment.

        Damaged ones stay, and the segment with them: writing them again would give them a valid checksum.
        """
        batch = Batch(Changes())
        messages, bodies = self._writer.needed(segment, _MOVED_ROWS, self._damaged_messages, self._damaged_bodies)
        for key, place in messages:
            if batch.size < _MOVED_BYTES:
                (content,) = self._segments.read(segment, [place])
                if content is None:
                    self._damaged_messages.add(key)
                    self._report([key])
                else:
                    batch.move(key, content, segment)
        for key, place in bodies:
            if batch.size < _MOVED_BYTES:
                (content,) = self._segments.read(segment, [place])
                if content is None:
                    self._damaged_bodies.add(key)
                    self._report(self._writer.messages_with(key))
                else:
                    batch.move_body(key, content, segment)
        if batch.size or batch.rows:
            self._is_moving = True
            self._commit(batch)
        elif not messages and not bodies:
            self._source = None

    def _report(self, keys: list[int]) -> None:
        for key in keys:
            self._report_message(key >> NUMBER_BITS, key & MAX_NUMBER)

    def _free(self, candidates: set[int]) -> None:
        """Free the segments that no message needs."""
        try:
            needed = {segment for segment in candidates if self._writer.is_needed(segment)}
            self._needed_at.update(dict.fromkeys(needed, self._checked_at))
            unneeded = sorted(candidates - needed)
            if unneeded:
                with self._pin.try_hold() as is_held:
                    if is_held:  # otherwise a backup is copying segments, and they are freed later
                        self._writer.forget_segments(unneeded)
                        for segment in unneeded:
                            self._segments.free(segment)
        except Exception as error:  # any error: the index thread must continue
            log.warning(_FAILED, error)


def _next(segments: list[int], after: int) -> list[int]:
    """Return the next segments after this one, starting again at the first, at most `_CHECKED_AT_ONCE`."""
    following = [segment for segment in segments if segment > after]
    return (following + segments[: len(segments) - len(following)])[:_CHECKED_AT_ONCE]
