"""The requests for claims of one entity, one at a time: queued for their turn, or waiting until messages arrive.

It does not know how a request is served: `claim_search` searches messages and commits the claim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from peeklock.broker.agenda import Appointment
from peeklock.broker.claim_records import Claim
from peeklock.broker.errors import BrokerError, EntityNotFound
from peeklock.store.base import Counters

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery

Claimed = Callable[[Claim | BrokerError | None], None]
"""Called with the claim or the error; None: there were no messages to claim."""


class RequestHost(Protocol):
    """The entity."""

    @property
    def path(self) -> str: ...

    @property
    def counters(self) -> Counters: ...


class Request:
    """One request for a claim."""

    def __init__(
        self,
        id: bytes,
        name: str,
        *,
        count: int,
        max_bytes: int,
        through: int,
        sessions: int,
        wait_ms: int,
        linger_ms: int,
        done: Claimed,
    ) -> None:
        self.id = id
        self.name = name
        self.count = count
        """The most messages to claim."""
        self.max_bytes = max_bytes
        self.through = through
        """The highest sequence number that may be claimed."""
        self.sessions = sessions
        """The most sessions to claim messages of."""
        self.wait_ms = wait_ms
        """The milliseconds to wait for the first message."""
        self.linger_ms = linger_ms
        """The milliseconds to wait for more messages after the first one."""
        self.holder: object = None
        """The link of the client."""
        self.waiters = [done]
        """Callbacks for the outcome. There are several if the client repeats the request before the answer."""
        self.deadline: Appointment | None = None
        """The appointment at which the request ends without a claim."""
        self.lingering: Appointment | None = None
        """The appointment at which the request stops waiting for more messages."""

    def answer(self, outcome: Claim | BrokerError | None) -> None:
        for appointment in (self.deadline, self.lingering):
            if appointment is not None:
                appointment.cancel()
        waiters, self.waiters = self.waiters, []
        for done in waiters:
            done(outcome)


class ClaimRequests:
    """The requests of one entity: the current one, queued ones, and those that wait for messages."""

    def __init__(self, host: RequestHost, machinery: Machinery) -> None:
        self._host = host
        self._agenda = machinery.agenda
        self._call_soon = machinery.call_soon
        self.on_turn: Callable[[Request], None] = lambda request: None
        """Called with the next request, which is then the current one. `end` or `end_empty` ends its turn."""
        self.current: Request | None = None
        self._queue: deque[Request] = deque()
        """Requests that will be served when the current one has ended."""
        self._waiting: dict[Request, None] = {}
        """Requests that wait for messages, in the order in which they arrived."""
        self._is_waking = False
        """Whether a call of `_wake` is scheduled."""
        self._has_new_messages = False
        """Whether messages became available during the search of the current request, which may have missed them."""

    @property
    def is_waiting(self) -> bool:
        """Whether `on_available` must be called when messages become available."""
        return bool(self._waiting) or self.current is not None

    @property
    def all(self) -> list[Request]:
        return [*self._queue, *self._waiting, *([self.current] if self.current is not None else [])]

    def find(self, id: bytes) -> Request | None:
        """Return the unanswered request for the claim with that id; None if there is none."""
        return next((request for request in self.all if request.id == id), None)

    def add(self, request: Request) -> None:
        """Serve a request in its turn, or let it wait for messages."""
        if request.wait_ms:
            request.deadline = self._agenda.after(request.wait_ms, partial(self._on_deadline, request))
        if self._host.counters.active and not self._lingers(request):
            self._queue.append(request)
            self._begin_next()
        else:
            self._wait_or_end(request)

    def cancel(self, holder: object) -> None:
        """Cancel the requests of a client that detached. A claim whose commit is under way stays."""
        for request in self.all:
            if request.holder is holder:
                self._waiting.pop(request, None)
                if request in self._queue:
                    self._queue.remove(request)
                request.answer(None)  # the answer frees the memory that is counted for the request

    def on_available(self) -> None:
        """Messages became active: new ones, or returned ones."""
        self._has_new_messages = True
        if self._waiting and not self._is_waking:
            self._is_waking = True
            self._call_soon(self._wake)

    def begin_search(self) -> None:
        """Record from now on whether messages become available: the search of the current request may miss them."""
        self._has_new_messages = False

    def end(self, outcome: Claim | BrokerError) -> None:
        """Answer the current request, and begin the next."""
        request, self.current = self.current, None
        assert request is not None
        request.answer(outcome)
        self._begin_next()

    def end_empty(self) -> None:
        """End the turn of the current request, for which no messages were found. Begin the next."""
        request, self.current = self.current, None
        assert request is not None
        if self._has_new_messages and request.waiters and request.wait_ms:
            self._queue.append(request)
        else:
            self._wait_or_end(request)
        self._begin_next()

    def close(self) -> None:
        """Answer the requests that have no turn yet: the entity was deleted."""
        requests = [*self._queue, *self._waiting]
        self._queue.clear()
        self._waiting.clear()
        for request in requests:
            request.answer(EntityNotFound(self._host.path))

    def _begin_next(self) -> None:
        if self.current is None and self._queue:
            self.current = self._queue.popleft()
            self.on_turn(self.current)

    # --- waiting ---

    def _wait_or_end(self, request: Request) -> None:
        if request.waiters and (request.wait_ms or (request.lingering is not None and request.linger_ms)):
            self._waiting[request] = None
        else:
            request.answer(None)

    def _wake(self) -> None:
        self._is_waking = False
        if self._host.counters.active:
            for request in list(self._waiting):
                if not self._lingers(request):
                    self._waiting.pop(request, None)
                    self._queue.append(request)
            self._begin_next()

    def _lingers(self, request: Request) -> bool:
        """Return whether the request waits for more messages than there are. Start its linger time if it does."""
        if not request.linger_ms or not 0 < self._host.counters.active < request.count:
            return False
        if request.lingering is None:
            request.lingering = self._agenda.after(request.linger_ms, partial(self._on_lingered, request))
        return True

    def _on_lingered(self, request: Request) -> None:
        request.linger_ms = 0
        if request in self._waiting:
            del self._waiting[request]
            self._queue.append(request)
            self._begin_next()

    def _on_deadline(self, request: Request) -> None:
        request.wait_ms = 0
        if request in self._waiting and (request.lingering is None or not request.linger_ms):
            del self._waiting[request]
            request.answer(None)
