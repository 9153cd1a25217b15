"""Promises on claims: a claim keeps its messages, as the broker answered, until its client removes or releases them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

from tools.chaos.history import Claim, ClaimEnd, ClaimList, Outcome, Way
from tools.chaos.history_index import HistoryIndex, Violation


def numbers_of(ranges: Sequence[int]) -> set[int]:
    """Return all numbers in ranges, which are given as alternating first and last numbers."""
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return {number for first, last in pairs for number in range(first, last + 1)}


def claims(index: HistoryIndex) -> Iterator[Violation]:
    made = _made(index)
    damaged: defaultdict[str, set[int]] = defaultdict(set)
    for (entity, _), report in index.damaged.items():
        damaged[entity].add(report.number)
    yield from _answered_alike(index)
    yield from _held(index, made)
    for listed in index.claim_lists:
        yield from _listed(index, made, listed, damaged[listed.entity])
    for read in index.claim_reads:
        missing = numbers_of(read.numbers) - set(read.found) - damaged[read.entity]
        if missing:
            yield Violation("claims", f"numbers {sorted(missing)} of the claim {read.claim} cannot be read")
    for id, ends in index.claim_ends.items():
        yield from _ended(id, ends)


def _made(index: HistoryIndex) -> dict[str, Claim]:
    """Return, by claim id, the first answer that has the claimed numbers."""
    made: dict[str, Claim] = {}
    for claim in index.claims:
        if claim.outcome is Outcome.OK and claim.numbers:
            made.setdefault(claim.id, claim)
    return made


def _answered_alike(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a repeated request gets the same answer."""
    first: dict[str, Claim] = {}
    for claim in index.claims:
        if claim.outcome is Outcome.OK and claim.numbers:
            other = first.setdefault(claim.id, claim)
            if other.numbers != claim.numbers:
                yield Violation("claims", f"the claim {claim.id} had {other.numbers}, and later {claim.numbers}")


def _held(index: HistoryIndex, made: dict[str, Claim]) -> Iterator[Violation]:
    """Check that claimed messages are delivered to no other client, and are in one claim only."""
    came: defaultdict[tuple[str, int], list[tuple[float, float, str]]] = defaultdict(list)
    for delivery in index.deliveries.values():
        if delivery.way is not Way.CLAIM:
            came[delivery.entity, delivery.number].append((delivery.start, delivery.end, delivery.name))
    for claim in made.values():
        for number in numbers_of(claim.numbers):
            came[claim.entity, number].append((claim.start, claim.end, claim.id))
    for claim in made.values():
        for number in numbers_of(claim.numbers):
            until = _until(index, claim.id, number)
            for start, end, receiver in came[claim.entity, number]:
                if receiver != claim.id and start > claim.end and end < until:
                    text = f"{claim.entity} number {number} of the claim {claim.id} was delivered to {receiver}"
                    yield Violation("claims", text)


def _until(index: HistoryIndex, id: str, number: int) -> float:
    """Return when a client first requested to end this part of the claim and was not refused."""
    asked = (end.start for end in index.claim_ends.get(id, ()) if end.outcome is not Outcome.NO and _is_of(end, number))
    return min(asked, default=inf)


def _is_of(end: ClaimEnd, number: int) -> bool:
    return not end.numbers or number in numbers_of(end.numbers)


def _listed(index: HistoryIndex, made: dict[str, Claim], listed: ClaimList, damaged: set[int]) -> Iterator[Violation]:
    for claim in made.values():
        if claim.entity != listed.entity or claim.end > listed.start or listed.name not in (None, claim.name):
            continue
        ends = [end for end in index.claim_ends.get(claim.id, ()) if end.outcome is not Outcome.NO]
        if any(end.start <= listed.end and not _is_sure(end, listed.start) for end in ends):
            continue  # whether some messages are still claimed is unknown
        left = numbers_of(claim.numbers)
        for end in ends:
            if end.end <= listed.start:
                left -= numbers_of(end.numbers) if end.numbers else left
        found = listed.claims.get(claim.id)
        if not left - damaged and found is not None and numbers_of(found) - damaged:
            yield Violation("claims", f"the claim {claim.id} is listed with {found}, but was ended")
        elif left - damaged and found is None:
            yield Violation("claims", f"the claim {claim.id} of {claim.entity} is not listed, but has {sorted(left)}")
        elif found is not None and numbers_of(found) - damaged != left - damaged:
            yield Violation("claims", f"the claim {claim.id} is listed with {found}, but has {sorted(left)}")


def _is_sure(end: ClaimEnd, moment: float) -> bool:
    return end.outcome is Outcome.OK and end.was_there and end.end <= moment


def _ended(id: str, ends: Sequence[ClaimEnd]) -> Iterator[Violation]:
    """Check that a claim exists until its client has ended it."""
    doubt = False
    for end in ends:
        if end.outcome is Outcome.OK and not end.was_there and not doubt:
            yield Violation("claims", f"the claim {id} no longer exists, although its client had not ended it")
        doubt = doubt or end.outcome is Outcome.UNKNOWN or (end.outcome is Outcome.OK and not end.numbers)
