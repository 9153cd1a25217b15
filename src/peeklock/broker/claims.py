"""The claims of one entity, the owners of their names, and the end of claims.

A claim sets messages aside for one client until the client removes or releases them. It has no time-out. It is a record
in the store, which changes in the same commits as its messages. A name has one connected owner: two Spark queries under
one name would each treat the claims of the other as their own, left over from an earlier run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from peeklock.broker.claim_records import Claim, Coverage, Parts, Span, common, outside, without
from peeklock.broker.claim_requests import Claimed, ClaimRequests, Request
from peeklock.broker.claim_search import ClaimHost, ClaimSearch
from peeklock.broker.errors import BrokerError, ClaimNameInUse, EntityNotFound, InvalidProperty, QuotaExceeded
from peeklock.broker.reading import unreadable
from peeklock.limits.broker import MAX_ALL_CLAIM_RANGES, MAX_CLAIMS
from peeklock.store.base import ACTIVE, CLAIMED, MAX_NUMBER, Range, Run, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery

_NO_LIMIT: Final = 1 << 62

Ended = Callable[[int | BrokerError | None], None]
"""Called with the number of messages that were removed or released; None: there is no such claim."""


@dataclass(slots=True)
class _Owner:
    """The client that owns a claim name."""

    id: bytes
    holder: object
    """The link of the client."""


@dataclass(slots=True)
class _Ending:
    """The end of a claim, or of a part of it."""

    claim: Claim
    gone: Parts
    """The messages that are removed or released."""
    left: Parts
    """The messages that the claim keeps."""
    releases: bool
    done: Ended
    damaged: list[int] = field(default_factory=list)
    """Messages in `gone` that were found damaged since their runs were read."""

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.gone.values() for run in runs]


class Claims:
    """All claims of one entity."""

    def __init__(self, host: ClaimHost, machinery: Machinery, is_by_session: bool) -> None:
        self._host = host
        self._store = machinery.store
        self._journal = machinery.journal
        self._claims: dict[bytes, Claim] = {}
        """Claims by id, the oldest first, including those whose first commit is under way."""
        self._lanes: Counter[str | None] = Counter()
        """The number of claims that have messages of a session, by session."""
        self._owners: dict[str, _Owner] = {}
        """The owners by claim name."""
        self._holders: set[object] = set()
        self._endings: list[_Ending] = []
        """Endings whose commit is under way."""
        self._requests = ClaimRequests(host, machinery)
        self._search = ClaimSearch(host, machinery, self._requests, is_by_session)
        self._search.on_staged = self._add
        self._search.on_failed = self._on_failed

    # --- for the entity ---

    @property
    def is_waiting(self) -> bool:
        """Whether `on_available` must be called when messages become active."""
        return self._requests.is_waiting

    def on_available(self) -> None:
        """Messages became active: new ones, or returned ones."""
        self._search.on_available()

    def covers(self, number: int) -> bool:
        """Return whether a claim that includes the message is being committed."""
        return self._search.covers(number)

    def on_damaged(self, number: int) -> None:
        """The store found a damaged message, which it no longer returns."""
        self._search.on_damaged(number)
        for ending in self._endings:
            if Coverage(ending.runs).has(number):
                ending.damaged.append(number)

    def load(self, id: bytes, content: bytes) -> Claim:
        """At start: add a claim of the store."""
        claim = Claim.decode(id, content)
        self._add(claim)
        return claim

    def has_lane(self, lane: str | None) -> bool:
        """Return whether the session is reserved for claims: a claim has messages of it, or a request searches it.

        All claims of a session have one name.
        """
        return lane in self._lanes or self._search.is_reserved(lane)

    def close(self) -> None:
        """Remove all claims: the entity was deleted."""
        self._claims.clear()
        self._lanes.clear()
        self._owners.clear()
        self._requests.close()

    # --- lookups ---

    def of(self, name: str | None) -> list[Claim]:
        """Return the claims with a name, or all, the oldest first.

        Claims whose first commit is under way are not included.
        """
        return [
            claim
            for claim in self._claims.values()
            if (name is None or claim.name == name) and not self._is_being_made(claim)
        ]

    def is_owned(self, name: str) -> bool:
        """Return whether the owner of that name is connected."""
        return name in self._owners

    def state_of(self, span: Span) -> int | None:
        """Return CLAIMED if one claim covers the whole span; None if messages in the span may have any state."""
        first, last = span
        for claim in self._claims.values():
            if claim.coverage.has_all(first, last):
                return CLAIMED
        return None

    def _is_being_made(self, claim: Claim) -> bool:
        return claim.is_changing and self._requests.find(claim.id) is not None

    # --- making ---

    def claim(self, request: Request, owner: bytes, holder: object) -> None:
        """Claim messages for a client, whose id is `owner` and whose link is `holder`. The request gets the outcome."""
        host = self._host
        if host.is_deleting:
            raise EntityNotFound(host.path)
        known = self._claims.get(request.id)
        if known is not None and known.name != request.name:
            raise InvalidProperty("'claim-id' is that of a claim with another name.")
        self._own(request.name, owner, holder)
        request.holder = holder
        pending = self._requests.find(request.id)
        if pending is not None:
            pending.waiters += request.waiters
            pending.holder = holder
        elif known is not None:
            known.when_unchanging(partial(self._answer_again, request, owner, holder))
        elif len(self._claims) + self._search.pending >= MAX_CLAIMS:
            raise QuotaExceeded(f"'{host.path}' has {MAX_CLAIMS} claims and requests for them; no more are allowed.")
        elif sum(len(claim.runs) for claim in self._claims.values()) > MAX_ALL_CLAIM_RANGES:
            raise QuotaExceeded(
                f"The claims of '{host.path}' have more than {MAX_ALL_CLAIM_RANGES} ranges; remove some first."
            )
        else:
            self._requests.add(request)

    def add_holder(self, holder: object) -> bool:
        """Register a link, until `remove_holder`. Return whether it is new."""
        is_new = holder not in self._holders
        self._holders.add(holder)
        return is_new

    def remove_holder(self, holder: object) -> None:
        """Remove a link that detached. Cancel its requests, and release the claim names that its client owns."""
        self._holders.discard(holder)
        self._requests.cancel(holder)
        for name, owner in list(self._owners.items()):
            if owner.holder is holder:
                del self._owners[name]

    def _own(self, name: str, id: bytes, holder: object) -> None:
        owner = self._owners.get(name)
        if owner is not None and owner.id != id:
            raise ClaimNameInUse(
                f"Another client that is connected claims messages of '{self._host.path}' under the name '{name}'. "
                "Use another claim name, or stop that client."
            )
        if owner is None and len(self._owners) >= MAX_CLAIMS:
            raise QuotaExceeded(f"Clients claim under {MAX_CLAIMS} names at '{self._host.path}'; no more are allowed.")
        self._owners[name] = _Owner(id, holder)

    def _answer_again(self, request: Request, owner: bytes, holder: object) -> None:
        known = self._claims.get(request.id)
        try:
            if known is None:
                self.claim(request, owner, holder)  # the commit of the claim failed, or the claim was removed
            else:
                request.answer(known)
        except BrokerError as failure:
            request.answer(failure)

    def _on_failed(self, claim: Claim) -> None:
        if self._claims.pop(claim.id, None) is not None:
            self._leave_lanes(claim.parts)

    def _add(self, claim: Claim) -> None:
        self._claims[claim.id] = claim
        self._lanes.update(claim.parts.keys())

    def _leave_lanes(self, lanes: Iterable[str | None]) -> None:
        for lane in lanes:
            self._lanes[lane] -= 1
            if not self._lanes[lane]:
                del self._lanes[lane]

    # --- ending ---

    def remove(self, name: str, id: bytes, spans: Sequence[Span] | None, done: Ended) -> None:
        """Remove the messages of a claim in one commit. `spans`: only those with these numbers."""
        self._finish(name, id, spans, False, done)

    def release(self, name: str, id: bytes, spans: Sequence[Span] | None, done: Ended) -> None:
        """Make the messages of a claim active again in one commit. `spans`: only those with these numbers."""
        self._finish(name, id, spans, True, done)

    def _finish(self, name: str, id: bytes, spans: Sequence[Span] | None, releases: bool, done: Ended) -> None:
        claim = self._claims.get(id)
        if claim is None or claim.name != name:
            done(None)
        elif claim.is_changing:
            claim.when_unchanging(partial(self._finish, name, id, spans, releases, done))
        else:
            claim.is_changing = True
            self._read_runs(claim, spans, releases, done)

    def _read_runs(self, claim: Claim, spans: Sequence[Span] | None, releases: bool, done: Ended) -> None:
        """Find the runs that leave the claim and those that stay, with their sizes. Then stage the end.

        The claim has the size of whole runs only. The sizes of parts of runs are read from the store, and so are all
        sizes if the entity has damaged messages.
        """
        if spans is None and not self._host.counters.damaged:
            self._end(_Ending(claim, claim.parts, {}, releases, done))
            return
        gone: Parts = {}
        left: Parts = {}
        wanted: list[tuple[Parts, str | None, Span]] = []
        for lane, runs in claim.parts.items():
            leaving = [(run.first, run.last) for run in runs] if spans is None else common(runs, spans)
            staying = [] if spans is None else outside(runs, spans)
            wanted += [(gone, lane, span) for span in leaving]
            wanted += [(left, lane, span) for span in staying]
        missing = len(wanted)

        def found(parts: Parts, lane: str | None, answer: list[Run] | StoreError) -> None:
            nonlocal missing
            if missing < 0:
                return
            missing -= 1
            if isinstance(answer, StoreError):
                missing = -1
                done(unreadable(answer))
                claim.end_change()
                return
            if answer:
                parts[lane] = sorted([*parts.get(lane, ()), *answer], key=_first)
            if not missing:
                self._end(_Ending(claim, gone, left, releases, done))

        for parts, lane, (first, last) in wanted:
            span = Range(
                entity=self._host.id,
                after=first - 1,
                through=last,
                limit=last - first + 1,
                max_bytes=_NO_LIMIT,
                state=CLAIMED,
            )
            self._store.read_runs(span, partial(found, parts, lane))

    def _end(self, ending: _Ending) -> None:
        claim, entity = ending.claim, self._host.id
        if self._host.is_deleting:
            ending.done(EntityNotFound(self._host.path))
            claim.end_change()
            return
        self._endings.append(ending)

        def stage() -> None:
            lane = self._journal.rest
            changes = lane.changes
            if ending.releases:
                changes.run_updates += [(entity, run, CLAIMED, ACTIVE) for run in ending.runs]
            else:
                changes.run_removals += [(entity, run, CLAIMED) for run in ending.runs]
            rest = Claim(claim.id, claim.name, claim.since, ending.left)
            changes.claims[entity, claim.id] = rest.encode() if ending.left else None
            lane.then(self._ended, ending)

        self._journal.all_or_nothing(stage)

    def _ended(self, ending: _Ending, error: BrokerError | None) -> None:
        claim, counters = ending.claim, self._host.counters
        self._endings.remove(ending)
        if error is not None:
            ending.done(error)
            claim.end_change()
            return
        count = sum(run.count for run in ending.runs) - len(ending.damaged)
        counters.claimed -= count
        before = claim.parts
        claim.parts = ending.left
        if self._claims.get(claim.id) is claim:
            self._leave_lanes(before.keys() - ending.left.keys())
            if not ending.left:
                del self._claims[claim.id]
        if ending.releases:
            counters.active += count
        else:
            counters.size_in_bytes -= sum(run.size for run in ending.runs)
        for lane in before:
            back = without(ending.gone.get(lane, []), ending.damaged) if ending.releases else []
            self._host.claim_lanes.on_undone(lane, back)
        ending.done(count)
        claim.end_change()


def _first(run: Run) -> int:
    return run.first


def spans_of(numbers: Sequence[int]) -> list[Span]:
    """Convert the numbers of a request, first and last in turn, to spans. Raise InvalidProperty if they are invalid."""
    spans = list(zip(numbers[::2], numbers[1::2], strict=False))
    last = 0
    for first, end in spans:
        if not last < first <= end <= MAX_NUMBER:
            break
        last = end
    else:
        if len(numbers) % 2 == 0:
            return spans
    raise InvalidProperty(f"'ranges' must be pairs of first and last number, ascending, from 1 to {MAX_NUMBER}.")


__all__ = ["Claim", "Claimed", "Claims", "Request", "spans_of"]
