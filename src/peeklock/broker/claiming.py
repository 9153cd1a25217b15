"""How messages of one entity are claimed: the requests in their turn, the search for messages, and the one commit.

One request at a time looks for messages. While it does, the entity hands out none that it may find: a read of the store
must not see messages as active that are locked before the claim is staged. What is locked or leaving when a read begins
is left out; if anything that was found changes before the end, the search begins anew. A request that finds nothing
waits, if it asks to.

Knows nothing of names and owners; `claims` does.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from peeklock.broker.agenda import Appointment
from peeklock.broker.claim_lanes import ClaimLanes
from peeklock.broker.claim_records import Claim, Coverage, Parts, without
from peeklock.broker.errors import BrokerError, EntityNotFound, StorageFailed
from peeklock.broker.watches import Watches
from peeklock.limits.broker import MAX_CLAIM_RANGES
from peeklock.store.base import ACTIVE, CLAIMED, Counters, Range, Run, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery

log = logging.getLogger(__name__)

CLAIM_RETRY_MS: Final = 10
"""How soon a claim is tried again while the entity reads a page of messages."""
SESSIONS_AT_ONCE: Final = 64
"""Sessions that are looked into at the same time."""

Claimed = Callable[[Claim | BrokerError | None], None]
"""None: there was nothing to claim."""


class ClaimHost(Protocol):
    """The entity."""

    @property
    def id(self) -> int: ...

    @property
    def path(self) -> str: ...

    @property
    def is_deleting(self) -> bool: ...

    @property
    def counters(self) -> Counters: ...

    @property
    def claim_lanes(self) -> ClaimLanes: ...

    def taken_numbers(self) -> list[int]:
        """Messages that do not wait: locked, or leaving."""
        ...

    @property
    def watches(self) -> Watches: ...

    def on_claim_made(self, lane: str | None, runs: list[Run]) -> None:
        """They are set aside. The counters are right already."""
        ...


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
        self.max_bytes = max_bytes
        self.through = through
        """The highest sequence number that may be claimed."""
        self.sessions = sessions
        """At most so many."""
        self.wait_ms = wait_ms
        self.linger_ms = linger_ms
        """How long to wait for more, from the first message on."""
        self.holder: object = None
        """Its client's link."""
        self.waiters = [done]
        """More than one if a client asks again before it was answered."""
        self.deadline: Appointment | None = None
        """When it is answered that there is nothing."""
        self.lingering: Appointment | None = None

    def answer(self, outcome: Claim | BrokerError | None) -> None:
        for appointment in (self.deadline, self.lingering):
            if appointment is not None:
                appointment.cancel()
        waiters, self.waiters = self.waiters, []
        for done in waiters:
            done(outcome)


class _Search:
    """What a request has found so far."""

    def __init__(self, request: Request, lanes: Iterator[str | None], is_by_session: bool, watch: int) -> None:
        self.request = request
        self.lanes = lanes
        self._is_by_session = is_by_session
        self.asked: list[tuple[str | None, int]] = []
        """Lanes that are being looked into, and behind which number."""
        self.answers: list[list[Run] | StoreError] = []
        self.watch = watch
        """Of what changes since it began."""
        self.parts: Parts = {}
        self.room = request.count
        self.bytes = request.max_bytes
        self.runs = 0
        self.is_full = False

    def takes(self, lane: str | None, runs: list[Run]) -> bool:
        """Add what a lane has. A session that does not fit is left whole, unless it is the first."""
        fitting = runs[: MAX_CLAIM_RANGES - self.runs]
        count, size = sum(run.count for run in fitting), sum(run.size for run in fitting)
        if self._is_by_session:
            if self.parts and (len(fitting) < len(runs) or count > self.room or size > self.bytes):
                self.is_full = True
                return False
            if fitting:
                self.parts[lane] = fitting
        elif fitting:
            self.parts[None] = sorted([*self.parts.get(None, ()), *fitting], key=_first)
        self.room -= count
        self.bytes -= size
        self.runs += len(fitting)
        self.is_full = self.room <= 0 or self.bytes <= 0 or self.runs >= MAX_CLAIM_RANGES
        return bool(fitting)


def _first(run: Run) -> int:
    return run.first


class Claiming:
    """The requests of one entity."""

    def __init__(self, host: ClaimHost, machinery: Machinery, is_by_session: bool) -> None:
        self._host = host
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self._call_soon = machinery.call_soon
        self._is_by_session = is_by_session
        self.on_staged: Callable[[Claim], None] = lambda claim: None
        self.on_failed: Callable[[Claim], None] = lambda claim: None
        self._queue: deque[Request] = deque()
        self._current: Request | None = None
        self._waiting: dict[Request, None] = {}
        """Requests that found nothing, in the order in which they came."""
        self._is_waked = False
        self._has_news = False
        """Messages came while the current request was looking, perhaps behind it."""
        self._is_giving_up = False
        """A lane is given back, which is no news."""
        self._staged: Coverage | None = None
        """What is being claimed at the moment."""
        self._damaged: list[int] = []
        """Those of them that were found damaged meanwhile."""
        self._lanes: set[str | None] = set()
        """Those that are kept for the request that looks for messages."""

    @property
    def is_waiting(self) -> bool:
        """Whether anybody wants to hear of messages that can be claimed."""
        return bool(self._waiting) or self._current is not None

    def covers(self, number: int) -> bool:
        """Whether that message is being claimed at the moment."""
        return self._staged is not None and self._staged.has(number)

    def keeps(self, lane: str | None) -> bool:
        """Whether the request that looks for messages has that lane."""
        return lane in self._lanes

    def on_damaged(self, number: int) -> None:
        if self.covers(number):
            self._damaged.append(number)

    @property
    def pending(self) -> int:
        """Requests that have no claim yet; one whose commit is on its way has."""
        return len(self._queue) + len(self._waiting) + (self._current is not None and self._staged is None)

    def find(self, id: bytes) -> Request | None:
        """The request for that claim, if it is not answered yet."""
        return next((request for request in self._requests() if request.id == id), None)

    def ask(self, request: Request) -> None:
        if request.wait_ms:
            request.deadline = self._agenda.after(request.wait_ms, partial(self._on_deadline, request))
        if self._host.counters.active and not self._lingers(request):
            self._queue.append(request)
            self._next()
        else:
            self._wait_or_end(request)

    def give_up(self, holder: object) -> None:
        """A client is gone, and asks no more. What is staged for it stays claimed."""
        for request in self._requests():
            if request.holder is holder:
                self._waiting.pop(request, None)
                if request in self._queue:
                    self._queue.remove(request)
                request.answer(None)  # nobody hears it; but what the request costs is counted until it is answered

    def on_available(self) -> None:
        """Messages came, or came back."""
        if self._is_giving_up:
            return  # there was nothing, or what was there is for those who come later
        self._has_news = True
        if self._waiting and not self._is_waked:
            self._is_waked = True
            self._call_soon(self._wake)

    def close(self) -> None:
        """The entity is gone."""
        requests = [*self._queue, *self._waiting]
        self._queue.clear()
        self._waiting.clear()
        for request in requests:
            request.answer(EntityNotFound(self._host.path))

    def _requests(self) -> list[Request]:
        return [*self._queue, *self._waiting, *([self._current] if self._current is not None else [])]

    # --- turns ---

    def _wake(self) -> None:
        self._is_waked = False
        if self._host.counters.active:
            for request in list(self._waiting):
                if not self._lingers(request):
                    self._waiting.pop(request, None)
                    self._queue.append(request)
            self._next()

    def _lingers(self, request: Request) -> bool:
        """Whether it waits for more messages than there are."""
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
            self._next()

    def _on_deadline(self, request: Request) -> None:
        request.wait_ms = 0
        if request in self._waiting and (request.lingering is None or not request.linger_ms):
            del self._waiting[request]
            request.answer(None)

    def _wait_or_end(self, request: Request) -> None:
        if request.waiters and (request.wait_ms or (request.lingering is not None and request.linger_ms)):
            self._waiting[request] = None
        else:
            request.answer(None)

    def _next(self) -> None:
        if self._current is None and self._queue:
            self._current = self._queue.popleft()
            self._begin(self._current)

    def _begin(self, request: Request) -> None:
        host = self._host
        self._has_news = False
        if host.is_deleting:
            self._end(request, EntityNotFound(host.path))
        elif host.claim_lanes.pause():
            self._look(self._search(request))
        else:
            self._agenda.after(CLAIM_RETRY_MS, partial(self._begin, request))

    def _end(self, request: Request, outcome: Claim | BrokerError) -> None:
        self._current = None
        request.answer(outcome)
        self._next()

    # --- looking ---

    def _look(self, search: _Search) -> None:
        """Into the next lanes."""
        host, request = self._host, search.request
        search.asked = []
        for lane in islice(search.lanes, SESSIONS_AT_ONCE if self._is_by_session else 1):
            after = host.claim_lanes.keep(lane, request.name)
            if after is not None:
                self._lanes.add(lane)
                search.asked.append((lane, after))
        if search.asked:
            self._read(search)
        else:
            self._finish(search)

    def _read(self, search: _Search) -> None:
        host, request = self._host, search.request
        out, now = host.taken_numbers(), self._agenda.now()
        search.answers = [[] for _ in search.asked]
        left = len(search.asked)

        def found(at: int, answer: list[Run] | StoreError) -> None:
            nonlocal left
            search.answers[at] = answer
            left -= 1
            if not left:
                # Not at once: a store may answer in the same turn.
                self._call_soon(partial(self._found, search))

        for at, (lane, after) in enumerate(search.asked):
            wanted = Range(
                entity=host.id,
                after=after,
                through=request.through,
                limit=search.room,
                max_bytes=search.bytes,
                state=ACTIVE,
                session_id=lane,
            )
            self._store.read_runs(wanted, partial(found, at), now, out)

    def _found(self, search: _Search) -> None:
        host = self._host
        failure: StoreError | None = None
        lanes: list[tuple[str | None, list[Run]]] = []
        for (lane, _), answer in zip(search.asked, search.answers, strict=True):
            if isinstance(answer, StoreError):
                failure = answer
            else:
                lanes.append((lane, answer))
        if host.is_deleting or failure is not None:
            why = f"The broker could not read from its store: {failure}"
            self._abandon(search, EntityNotFound(host.path) if host.is_deleting else StorageFailed(why))
            return
        for lane, runs in lanes:
            if search.is_full or not search.takes(lane, runs):
                self._give_up_lane(lane)
        if search.is_full:
            self._finish(search)
        else:
            self._look(search)

    def _finish(self, search: _Search) -> None:
        """All that is to be claimed is found. If some of it left meanwhile, or is leaving, begin anew."""
        host, request = self._host, search.request
        if host.is_deleting:
            self._abandon(search, EntityNotFound(host.path))
            return
        changed = host.watches.end(search.watch)
        has = Coverage(run for runs in search.parts.values() for run in runs).has
        if any(map(has, changed)) or any(map(has, host.taken_numbers())):
            self._give_up_lanes()
            self._call_soon(partial(self._look, self._search(request)))
        else:
            self._stage(search)

    def _search(self, request: Request) -> _Search:
        lanes = iter(self._host.claim_lanes.names(request.name, request.sessions))
        return _Search(request, lanes, self._is_by_session, self._host.watches.start())

    def _abandon(self, search: _Search, failure: BrokerError) -> None:
        self._host.watches.end(search.watch)
        self._give_up_lanes()
        self._host.claim_lanes.resume()
        self._end(search.request, failure)

    def _give_up_lane(self, lane: str | None) -> None:
        self._lanes.discard(lane)
        self._is_giving_up = True
        self._host.claim_lanes.on_undone(lane, [])
        self._is_giving_up = False

    def _give_up_lanes(self) -> None:
        for lane in list(self._lanes):
            self._give_up_lane(lane)

    # --- the commit ---

    def _stage(self, search: _Search) -> None:
        host, request = self._host, search.request
        if not search.parts or not request.waiters:
            self._give_up_lanes()
            host.claim_lanes.resume()
            self._current = None
            if self._has_news and request.waiters and request.wait_ms:
                self._queue.append(request)
            else:
                self._wait_or_end(request)
            self._next()
            return
        claim = Claim(request.id, request.name, self._agenda.now(), search.parts)
        claim.is_changing = True
        self._staged, self._damaged = Coverage(claim.runs), []
        self.on_staged(claim)
        for lane, runs in claim.parts.items():
            host.claim_lanes.on_staged(lane, runs)

        def stage() -> None:
            lane = self._journal.rest
            lane.changes.run_updates += [(host.id, run, ACTIVE, CLAIMED) for run in claim.runs]
            lane.changes.claims[host.id, claim.id] = claim.encode()
            lane.then(self._committed, (request, claim))

        self._journal.all_or_nothing(stage)

    def _committed(self, argument: tuple[Request, Claim], error: BrokerError | None) -> None:
        request, claim = argument
        host = self._host
        self._staged = None
        self._lanes.clear()
        if error is None:
            count = claim.count - len(self._damaged)
            host.counters.active -= count
            host.counters.claimed += count
            for lane, runs in claim.parts.items():
                host.on_claim_made(lane, runs)
        else:
            self.on_failed(claim)
            for lane, runs in claim.parts.items():
                host.claim_lanes.on_undone(lane, without(runs, self._damaged))
        host.claim_lanes.resume()
        self._end(request, claim if error is None else error)
        claim.changed()
