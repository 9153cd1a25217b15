"""One long read at a time for each connection, so that only one of its answers is in memory."""

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
    """Starts reads in the order of the requests, each when the one before it is done."""

    def __init__(self) -> None:
        self._current: object | None = None
        self._waiting: deque[tuple[Start, Fail]] = deque()

    def enter(self, start: Start, fail: Fail) -> None:
        """Call `start` now or in its turn. It calls `leave` when it is done; `fail` gets its errors."""
        self._waiting.append((start, fail))
        if self._current is None:
            self._next()

    def close(self) -> None:
        """The client is gone: fail the reads that have not started, so that none counts as under way."""
        while self._waiting:
            _, fail = self._waiting.popleft()
            fail(BrokerError("The client is gone."))

    def _next(self) -> None:
        while self._waiting and self._current is None:
            start, fail = self._waiting.popleft()
            turn = self._current = object()

            def leave(turn: object = turn) -> None:
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
