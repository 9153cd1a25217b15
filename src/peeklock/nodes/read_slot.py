"""Limits each connection to one long read at a time, so that only one of its answers is in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from peeklock.broker.errors import BrokerError

log = logging.getLogger(__name__)

Leave = Callable[[], None]
Start = Callable[[Leave], None]
Fail = Callable[[BrokerError], None]


class ReadSlot:
    """Starts the reads of a connection in the order of the requests, each when the previous one is done."""

    def __init__(self) -> None:
        self._current: object | None = None
        self._waiting: deque[tuple[Start, Fail]] = deque()
        self._is_starting = False

    def enter(self, start: Start, fail: Fail) -> None:
        """Call `start` now or in its turn, with a function to call when the read is done. `fail` gets its errors."""
        self._waiting.append((start, fail))
        if self._current is None:
            self._next()

    def close(self) -> None:
        """Fail the reads that have not started, because the connection is closed. Their memory is then released."""
        while self._waiting:
            _, fail = self._waiting.popleft()
            fail(BrokerError("The connection is closed."))

    def _next(self) -> None:
        """Start waiting reads until one is under way.

        In a loop, because a read that ends at once would otherwise start the next one, up to Python's recursion limit.
        """
        if self._is_starting:
            return
        self._is_starting = True
        try:
            while self._waiting and self._current is None:
                self._start(*self._waiting.popleft())
        finally:
            self._is_starting = False

    def _start(self, start: Start, fail: Fail) -> None:
        turn = self._current = object()

        def leave() -> None:
            if self._current is turn:
                self._current = None
                self._next()

        try:
            start(leave)
        except BrokerError as failure:
            fail(failure)
            leave()
        except Exception:
            log.exception("a request failed")
            fail(BrokerError("The broker failed at this request; see its log."))
            leave()
