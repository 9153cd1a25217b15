"""One long read at a time for each connection: however much a client asks for at once, one answer is in memory."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from peeklock.broker.errors import BrokerError

log = logging.getLogger(__name__)

Leave = Callable[[], None]
Start = Callable[[Leave], None]
Fail = Callable[[BrokerError], None]


class Turnstile:
    """Starts reads in the order in which they were asked for, each when the one before it has left."""

    def __init__(self) -> None:
        self._current: object | None = None
        self._waiting: deque[tuple[Start, Fail]] = deque()

    def enter(self, start: Start, fail: Fail) -> None:
        """Start now, or in its turn, with what to call when it is done; `fail` hears what it raises."""
        self._waiting.append((start, fail))
        if self._current is None:
            self._next()

    def close(self) -> None:
        """The client is gone: what has not started never does. It fails, so that nobody counts it as under way."""
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
                fail(BrokerError("The broker failed at this request."))
                leave()
