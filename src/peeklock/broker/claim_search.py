"""Serves the requests for claims of one entity: the search for active messages, and the commit of the claim.

One request is served at a time. During its search the entity delivers no message that the search may find: a read of
the store must not return messages as active that are locked before the claim is staged. The search skips messages that
are locked or being removed when a read begins. If any message that was found changes before the end, the search starts
again. `claim_requests` has the order of the requests; `claims` has the claims, and the owners of their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from peeklock.broker.claim_lanes import ClaimLanes
from peeklock.broker.claim_records import Claim, Coverage, Parts, without
from peeklock.broker.claim_requests import ClaimRequests, Request, RequestHost
from peeklock.broker.errors import BrokerError, EntityNotFound, StorageFailed
from peeklock.broker.retries import CLAIM_RETRY_MS
from peeklock.broker.watches import Watches
from peeklock.limits.broker import MAX_CLAIM_RANGES
from peeklock.store.base import ACTIVE, CLAIMED, Range, Run, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery

SESSIONS_AT_ONCE: Final = 64
"""The number of sessions that are searched at the same time."""


class ClaimHost(RequestHost, Protocol):
    """The entity."""

    @property
    def id(self) -> int: ...

    @property
    def is_deleting(self) -> bool: ...

    @property
    def claim_lanes(self) -> ClaimLanes: ...

    def taken_numbers(self) -> list[int]:
        """Return the messages that are locked or being removed."""
        ...

    @property
    def watches(self) -> Watches: ...

    def on_claim_made(self, lane: str | None, runs: list[Run]) -> None:
        """These messages are claimed. The counters are updated already."""
        ...


class _Search:
    """The search of one request, and the messages that it has found so far."""

    def __init__(self, request: Request, lanes: Iterator[str | None], is_by_session: bool, watch: int) -> None:
        self.request = request
        self.lanes = lanes
        self._is_by_session = is_by_session
        self.searched: list[tuple[str | None, int]] = []
        """The lanes that are being read, each with the number after which its read begins."""
        self.answers: list[list[Run] | StoreError] = []
        self.watch = watch
        """The key of the watch on messages that change during the search."""
        self.parts: Parts = {}
        self.messages_left = request.count
        self.bytes_left = request.max_bytes
        self.runs = 0
        self.is_full = False

    def add(self, lane: str | None, runs: list[Run]) -> bool:
        """Add messages of a lane; return whether any were added.

        A session that does not fit is not claimed at all, unless it is the first: then it is claimed in part.
        """
        fitting = runs[: MAX_CLAIM_RANGES - self.runs]
        count, size = sum(run.count for run in fitting), sum(run.size for run in fitting)
        if self._is_by_session:
            if self.parts and (len(fitting) < len(runs) or count > self.messages_left or size > self.bytes_left):
                self.is_full = True
                return False
            if fitting:
                self.parts[lane] = fitting
        elif fitting:
            self.parts[None] = sorted([*self.parts.get(None, ()), *fitting], key=_first)
        self.messages_left -= count
        self.bytes_left -= size
        self.runs += len(fitting)
        self.is_full = self.messages_left <= 0 or self.bytes_left <= 0 or self.runs >= MAX_CLAIM_RANGES
        return bool(fitting)


def _first(run: Run) -> int:
    return run.first


class ClaimSearch:
    """Makes the claims of one entity."""

    def __init__(self, host: ClaimHost, machinery: Machinery, requests: ClaimRequests, is_by_session: bool) -> None:
        self._host = host
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self._call_soon = machinery.call_soon
        self._requests = requests
        requests.on_turn = self._begin
        self._is_by_session = is_by_session
        self.on_staged: Callable[[Claim], None] = lambda claim: None
        self.on_failed: Callable[[Claim], None] = lambda claim: None
        self._is_releasing_lane = False
        """Whether a lane is being released after a search. Its messages are not new."""
        self._staged: Coverage | None = None
        """The messages of the claim whose commit is under way."""
        self._damaged: list[int] = []
        """Messages of that claim that were found damaged since it was staged."""
        self._lanes: set[str | None] = set()
        """The lanes that are reserved for the request that is being served."""

    def covers(self, number: int) -> bool:
        """Return whether a claim that includes the message is being committed."""
        return self._staged is not None and self._staged.has(number)

    def is_reserved(self, lane: str | None) -> bool:
        """Return whether the lane is reserved for the request that is being served."""
        return lane in self._lanes

    def on_damaged(self, number: int) -> None:
        """The store found a damaged message, which it no longer returns."""
        if self.covers(number):
            self._damaged.append(number)

    @property
    def pending(self) -> int:
        """The number of requests without a claim. A request whose commit is under way has one."""
        return len(self._requests.all) - (self._staged is not None)

    def on_available(self) -> None:
        """Messages became active: new ones, or returned ones."""
        # A search that releases a lane found no messages there, or left them for later requests.
        if not self._is_releasing_lane:
            self._requests.on_available()

    # --- the search ---

    def _begin(self, request: Request) -> None:
        host = self._host
        self._requests.begin_search()
        if host.is_deleting:
            self._requests.end(EntityNotFound(host.path))
        elif host.claim_lanes.pause():
            self._search_lanes(self._new_search(request))
        else:
            self._agenda.after(CLAIM_RETRY_MS, partial(self._begin, request))

    def _search_lanes(self, search: _Search) -> None:
        """Search the next lanes."""
        host, request = self._host, search.request
        search.searched = []
        for lane in islice(search.lanes, SESSIONS_AT_ONCE if self._is_by_session else 1):
            after = host.claim_lanes.reserve(lane, request.name)
            if after is not None:
                self._lanes.add(lane)
                search.searched.append((lane, after))
        if search.searched:
            self._read(search)
        else:
            self._finish(search)

    def _read(self, search: _Search) -> None:
        host, request = self._host, search.request
        out, now = host.taken_numbers(), self._agenda.now()
        search.answers = [[] for _ in search.searched]
        left = len(search.searched)

        def found(at: int, answer: list[Run] | StoreError) -> None:
            nonlocal left
            search.answers[at] = answer
            left -= 1
            if not left:
                # In a turn of its own: a store may answer during `read_runs`, and calls would nest too deeply.
                self._call_soon(partial(self._found, search))

        for at, (lane, after) in enumerate(search.searched):
            wanted = Range(
                entity=host.id,
                after=after,
                through=request.through,
                limit=search.messages_left,
                max_bytes=search.bytes_left,
                state=ACTIVE,
                session_id=lane,
            )
            self._store.read_runs(wanted, partial(found, at), now, out)

    def _found(self, search: _Search) -> None:
        host = self._host
        failure: StoreError | None = None
        lanes: list[tuple[str | None, list[Run]]] = []
        for (lane, _), answer in zip(search.searched, search.answers, strict=True):
            if isinstance(answer, StoreError):
                failure = answer
            else:
                lanes.append((lane, answer))
        if host.is_deleting or failure is not None:
            why = f"The broker could not read from its store: {failure}"
            self._fail(search, EntityNotFound(host.path) if host.is_deleting else StorageFailed(why))
            return
        for lane, runs in lanes:
            if search.is_full or not search.add(lane, runs):
                self._release_lane(lane)
        if search.is_full:
            self._finish(search)
        else:
            self._search_lanes(search)

    def _finish(self, search: _Search) -> None:
        """End the search: stage the claim, or search again if messages that were found have changed meanwhile."""
        host, request = self._host, search.request
        if host.is_deleting:
            self._fail(search, EntityNotFound(host.path))
            return
        changed = host.watches.end(search.watch)
        has = Coverage(run for runs in search.parts.values() for run in runs).has
        if any(map(has, changed)) or any(map(has, host.taken_numbers())):
            self._release_lanes()
            self._call_soon(partial(self._search_lanes, self._new_search(request)))
        else:
            self._stage(search)

    def _new_search(self, request: Request) -> _Search:
        lanes = iter(self._host.claim_lanes.names(request.name, request.sessions))
        return _Search(request, lanes, self._is_by_session, self._host.watches.start())

    def _fail(self, search: _Search, failure: BrokerError) -> None:
        self._host.watches.end(search.watch)
        self._release_lanes()
        self._host.claim_lanes.resume()
        self._requests.end(failure)

    def _release_lane(self, lane: str | None) -> None:
        """Release a lane that was reserved for the search."""
        self._lanes.discard(lane)
        self._is_releasing_lane = True
        self._host.claim_lanes.on_undone(lane, [])
        self._is_releasing_lane = False

    def _release_lanes(self) -> None:
        for lane in list(self._lanes):
            self._release_lane(lane)

    # --- the commit ---

    def _stage(self, search: _Search) -> None:
        host, request = self._host, search.request
        if not search.parts or not request.waiters:
            self._release_lanes()
            host.claim_lanes.resume()
            self._requests.end_empty()
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
            lane.then(self._committed, claim)

        self._journal.all_or_nothing(stage)

    def _committed(self, claim: Claim, error: BrokerError | None) -> None:
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
        self._requests.end(claim if error is None else error)
        claim.end_change()
