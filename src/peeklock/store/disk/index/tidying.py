"""Room in the log: segments that no message needs are freed, and those that few need are emptied first.

Messages mostly leave in the order in which they came, and whole segments with them. What stays behind, dead letters and
what waits for its day, is moved to the end of the log, so that it does not keep alive what lies around it.
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

_CHECKED: Final = 4
"""Segments that are looked at at a time, so that no question waits long."""
_PAUSE: Final = 0.5
"""Seconds until a segment that was needed is looked at again, unless another was filled meanwhile. Where messages were
rewritten and so left a segment, a look at it goes through all of them."""
_FEW: Final = 0.5
"""A segment with less than this part of it needed is emptied."""
_MOVED_ROWS: Final = 1024
_MOVED_BYTES: Final = 8 * 1024 * 1024
"""What is moved at a time; one message may be longer."""


class Tidying:
    """The thread of the index uses it, and tells it when moves were applied."""

    def __init__(
        self,
        writer: Writer,
        segments: Segments,
        pin: Pin,
        commit: Callable[[Batch], None],
        examine: Callable[[int, int], None],
    ) -> None:
        self._writer = writer
        self._segments = segments
        self._pin = pin
        self._commit = commit
        """Writes moves to the log; `moved` is to be called once they are applied, or failed."""
        self._examine_message = examine
        """Reports the message with this entity and number if it is damaged."""
        self._checked = 0
        self._unchecked = 0
        """How many segments were not looked at since something was applied."""
        self._looked_at = -inf
        """When segments were looked at last."""
        self._needed_at: dict[int, float] = {}
        """When segments were found to be needed, since one was filled."""
        self._current = 0
        """The segment that was written when segments were examined last."""
        self._examined = 0
        self._unexamined: list[int] = []
        self._emptied: int | None = None
        self._is_moving = False
        self._damaged_messages: set[int] = set()
        self._damaged_bodies: set[int] = set()
        """Keys of what could not be moved."""

    @property
    def has_work(self) -> bool:
        return not self._is_moving and (self._emptied is not None or bool(self._unexamined))

    @property
    def timeout(self) -> float | None:
        """Seconds until `resume` is to be called; None when all segments were looked at."""
        return max(0.0, self._looked_at + _PAUSE - monotonic()) if self._unchecked > 0 else None

    def moved(self, *, failed: bool) -> None:
        self._is_moving = False
        if failed:
            self._emptied = None

    def free_some(self, applied: LogPosition) -> None:
        """Look at a few of the segments behind what is applied; whenever something was."""
        behind = self._segments.before(applied.segment)
        self._unchecked = len(behind)
        if not behind:
            return
        if applied.segment != self._current:
            self._current = applied.segment
            self._needed_at.clear()
            self._examine(behind)
        self._look(behind)

    def resume(self, applied: LogPosition) -> None:
        """Look at a few more, when nothing was applied for a while."""
        self._look(self._segments.before(applied.segment))

    def _look(self, behind: list[int]) -> None:
        now = monotonic()
        due = [segment for segment in behind if self._needed_at.get(segment, -inf) + _PAUSE <= now]
        if due:
            checked = _next(due, self._checked)
            self._checked = checked[-1]
            self._unchecked -= len(checked)
            self._looked_at = now
            self._free({due[0], *checked})
        elif not behind:
            self._unchecked = 0

    def _examine(self, behind: list[int]) -> None:
        """To see how much of a segment is needed takes a look at every message in it: only where there is waste."""
        try:
            if self._segments.is_wasteful(self._writer.kept_bytes()):
                self._unexamined = _next(behind, self._examined)
                self._examined = self._unexamined[-1]
        except StoreError as error:
            log.warning("the log could not be tidied: %s", error)

    def free_all(self, applied: LogPosition) -> None:
        """At the end, when nothing is written any more. The last one stays, to be written on at the next start."""
        self._free(set(self._segments.before(applied.segment)))

    def empty_some(self) -> None:
        """Move some of what is needed out of a segment that is mostly not."""
        try:
            if self._emptied is None:
                segment = self._unexamined.pop(0)
                if self._writer.needed_bytes(segment) < self._segments.size(segment) * _FEW:
                    self._emptied = segment
            else:
                self._move(self._emptied)
        except Exception as error:  # whatever it is: the thread of the index must go on
            log.warning("the log could not be tidied: %s", error)
            self._unexamined, self._emptied = [], None

    def _move(self, segment: int) -> None:
        """What is damaged stays where it is, and the segment with it: its checksum must not be made to fit."""
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
            self._emptied = None

    def _report(self, keys: list[int]) -> None:
        for key in keys:
            self._examine_message(key >> NUMBER_BITS, key & MAX_NUMBER)

    def _free(self, candidates: set[int]) -> None:
        try:
            needed = {segment for segment in candidates if self._writer.is_needed(segment)}
            self._needed_at.update(dict.fromkeys(needed, self._looked_at))
            unneeded = sorted(candidates - needed)
            if unneeded:
                with self._pin.try_hold() as is_held:
                    if is_held:  # else a backup is copying them; they are freed later
                        self._writer.forget_segments(unneeded)
                        for segment in unneeded:
                            self._segments.free(segment)
        except Exception as error:  # as above
            log.warning("the log could not be tidied: %s", error)


def _next(segments: list[int], after: int) -> list[int]:
    """A few of them, in turn."""
    following = [segment for segment in segments if segment > after]
    return (following + segments[: len(segments) - len(following)])[:_CHECKED]
