"""The claims of one entity: which there are, who owns their names, and how they end.

A claim sets messages aside for one client until it removes or releases them, however long that takes. It is a record in
the store, made and ended in the same commits as the messages change. A name has one live owner: two queries under one
name would take each other's claims for forgotten ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from peeklock.broker.claim_records import Claim, Coverage, Parts, Span, common, outside, without
from peeklock.broker.claiming import Claimed, ClaimHost, Claiming, Request
from peeklock.broker.errors import BrokerError, ClaimNameInUse, EntityNotFound, InvalidProperty, QuotaExceeded
from peeklock.broker.reading import unreadable
from peeklock.limits.broker import MAX_ALL_CLAIM_RANGES, MAX_CLAIMS
from peeklock.store.base import ACTIVE, CLAIMED, MAX_NUMBER, Range, Run, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery

_NO_LIMIT: Final = 1 << 62

Ended = Callable[[int | BrokerError | None], None]
"""How many messages were removed or released; None: there is no such claim."""


@dataclass(slots=True)
class _Owner:
    id: bytes
    holder: object
    """What lives as long as the owner is connected: its link."""


@dataclass(slots=True)
class _Ending:
    """Messages of a claim that leave it."""

    claim: Claim
    gone: Parts
    left: Parts
    releases: bool
    done: Ended
    damaged: list[int] = field(default_factory=list)
    """Those that were found damaged since they were looked at."""

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
        """By id, the oldest first; also those whose commit is on its way."""
        self._lanes: Counter[str | None] = Counter()
        """How many claims have messages of a session."""
        self._owners: dict[str, _Owner] = {}
        self._holders: set[object] = set()
        self._endings: list[_Ending] = []
        """Whose commit is on its way."""
        self._claiming = Claiming(host, machinery, is_by_session)
        self._claiming.on_staged = self._on_staged
        self._claiming.on_failed = self._on_failed

    # --- for the entity ---

    @property
    def is_waiting(self) -> bool:
        """Whether somebody waits for messages to claim."""
        return self._claiming.is_waiting

    def on_available(self) -> None:
        """Messages came, or came back."""
        self._claiming.on_available()

    def covers(self, number: int) -> bool:
        """Whether that message is being claimed at the moment."""
        return self._claiming.covers(number)

    def on_damaged(self, number: int) -> None:
        """The store does not have the bytes of that message any more, and counts it as damaged."""
        self._claiming.on_damaged(number)
        for ending in self._endings:
            if Coverage(ending.runs).has(number):
                ending.damaged.append(number)

    def load(self, id: bytes, content: bytes) -> Claim:
        """At start: what the store has."""
        claim = Claim.decode(id, content)
        self._add(claim)
        return claim

    def has_lane(self, lane: str | None) -> bool:
        """Whether a claim has messages of that session, or is about to. All such claims have one name."""
        return lane in self._lanes or self._claiming.keeps(lane)

    def close(self) -> None:
        """The entity is gone."""
        self._claims.clear()
        self._lanes.clear()
        self._owners.clear()
        self._claiming.close()

    # --- looking ---

    def of(self, name: str | None) -> list[Claim]:
        """Those with that name, or all, the oldest first; without those that are being made."""
        return [
            claim
            for claim in self._claims.values()
            if (name is None or claim.name == name) and not self._is_being_made(claim)
        ]

    def is_owned(self, name: str) -> bool:
        """Whether the owner of that name is connected."""
        return name in self._owners

    def state_of(self, span: Span) -> int | None:
        """CLAIMED, if one claim has all numbers between these; else messages in any state may be there."""
        first, last = span
        for claim in self._claims.values():
            if claim.coverage.has_all(first, last):
                return CLAIMED
        return None

    def _is_being_made(self, claim: Claim) -> bool:
        return claim.is_changing and self._claiming.find(claim.id) is not None

    # --- making ---

    def claim(self, request: Request, owner: bytes, holder: object) -> None:
        """Claim messages for that owner, whose link is the holder; the request hears of the outcome."""
        host = self._host
        if host.is_deleting:
            raise EntityNotFound(host.path)
        known = self._claims.get(request.id)
        if known is not None and known.name != request.name:
            raise InvalidProperty("'claim-id' is that of a claim with another name.")
        self._own(request.name, owner, holder)
        request.holder = holder
        asked = self._claiming.find(request.id)
        if asked is not None:
            asked.waiters += request.waiters
            asked.holder = holder
        elif known is not None:
            known.when_unchanging(partial(self._answer_again, request, owner, holder))
        elif len(self._claims) + self._claiming.pending >= MAX_CLAIMS:
            raise QuotaExceeded(f"'{host.path}' has {MAX_CLAIMS} claims and requests for them; no more are allowed.")
        elif sum(len(claim.runs) for claim in self._claims.values()) > MAX_ALL_CLAIM_RANGES:
            raise QuotaExceeded(
                f"The claims of '{host.path}' have more than {MAX_ALL_CLAIM_RANGES} ranges; remove some first."
            )
        else:
            self._claiming.ask(request)

    def joins(self, holder: object) -> bool:
        """Whether that holder is new here. From now on it is known, until it leaves."""
        is_new = holder not in self._holders
        self._holders.add(holder)
        return is_new

    def leave(self, holder: object) -> None:
        """A holder is gone, and with it its requests and what it owns."""
        self._holders.discard(holder)
        self._claiming.give_up(holder)
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
                self.claim(request, owner, holder)  # it failed, or was removed
            else:
                request.answer(known)
        except BrokerError as failure:
            request.answer(failure)

    def _on_staged(self, claim: Claim) -> None:
        self._add(claim)

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
        """Remove the messages of a claim, or those of these numbers, in one commit."""
        self._finish(name, id, spans, False, done)

    def release(self, name: str, id: bytes, spans: Sequence[Span] | None, done: Ended) -> None:
        """As `remove`; the messages are active again."""
        self._finish(name, id, spans, True, done)

    def _finish(self, name: str, id: bytes, spans: Sequence[Span] | None, releases: bool, done: Ended) -> None:
        claim = self._claims.get(id)
        if claim is None or claim.name != name:
            done(None)
        elif claim.is_changing:
            claim.when_unchanging(partial(self._finish, name, id, spans, releases, done))
        else:
            claim.is_changing = True
            self._look(claim, spans, releases, done)

    def _look(self, claim: Claim, spans: Sequence[Span] | None, releases: bool, done: Ended) -> None:
        """What is to leave and what stays, with sizes: from the claim or, where it does not say, from the store."""
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
                claim.changed()
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
            claim.changed()
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
            claim.changed()
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
        claim.changed()


def _first(run: Run) -> int:
    return run.first


def spans_of(numbers: Sequence[int]) -> list[Span]:
    """First and last numbers in turn, as a request has them; InvalidProperty."""
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
