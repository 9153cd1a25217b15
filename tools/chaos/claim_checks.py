"""Promises on claims: what was set aside stays so, as it was answered, until its client removes or releases it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf

from tools.chaos.books import Books, Violation
from tools.chaos.history import Claim, ClaimEnd, ClaimList, Outcome, Way


def numbers_of(ranges: Sequence[int]) -> set[int]:
    """All numbers of ranges, which are first and last in turn."""
    pairs = zip(ranges[::2], ranges[1::2], strict=True)
    return {number for first, last in pairs for number in range(first, last + 1)}


def claims(books: Books) -> Iterator[Violation]:
    made = _made(books)
    damaged: defaultdict[str, set[int]] = defaultdict(set)
    for (entity, _), report in books.damaged.items():
        damaged[entity].add(report.number)
    yield from _answered_alike(books)
    yield from _held(books, made)
    for listed in books.claim_lists:
        yield from _listed(books, made, listed, damaged[listed.entity])
    for read in books.claim_reads:
        missing = numbers_of(read.numbers) - set(read.found) - damaged[read.entity]
        if missing:
            yield Violation("claims", f"the claim {read.claim} has {sorted(missing)}, which cannot be read")
    for id, ends in books.claim_ends.items():
        yield from _ended(id, ends)


def _made(books: Books) -> dict[str, Claim]:
    """By id, the first answer that said what was claimed."""
    made: dict[str, Claim] = {}
    for claim in books.claims:
        if claim.outcome is Outcome.OK and claim.numbers:
            made.setdefault(claim.id, claim)
    return made


def _answered_alike(books: Books) -> Iterator[Violation]:
    """A repeated request has the same answer."""
    first: dict[str, Claim] = {}
    for claim in books.claims:
        if claim.outcome is Outcome.OK and claim.numbers:
            other = first.setdefault(claim.id, claim)
            if other.numbers != claim.numbers:
                yield Violation("claims", f"the claim {claim.id} is {other.numbers}, and then {claim.numbers}")


def _held(books: Books, made: dict[str, Claim]) -> Iterator[Violation]:
    """What is claimed comes to nobody else, and is in one claim only."""
    came: defaultdict[tuple[str, int], list[tuple[float, float, str]]] = defaultdict(list)
    for delivery in books.deliveries.values():
        if delivery.way is not Way.CLAIM:
            came[delivery.entity, delivery.number].append((delivery.start, delivery.end, delivery.name))
    for claim in made.values():
        for number in numbers_of(claim.numbers):
            came[claim.entity, number].append((claim.start, claim.end, claim.id))
    for claim in made.values():
        for number in numbers_of(claim.numbers):
            until = _until(books, claim.id, number)
            for start, end, who in came[claim.entity, number]:
                if who != claim.id and start > claim.end and end < until:
                    yield Violation("claims", f"{claim.entity} number {number} of the claim {claim.id} came to {who}")


def _until(books: Books, id: str, number: int) -> float:
    """When a client first asked for an end of this part of the claim, and was not refused."""
    asked = (end.start for end in books.claim_ends.get(id, ()) if end.outcome is not Outcome.NO and _is_of(end, number))
    return min(asked, default=inf)


def _is_of(end: ClaimEnd, number: int) -> bool:
    return not end.numbers or number in numbers_of(end.numbers)


def _listed(books: Books, made: dict[str, Claim], listed: ClaimList, damaged: set[int]) -> Iterator[Violation]:
    for claim in made.values():
        if claim.entity != listed.entity or claim.end > listed.start or listed.name not in (None, claim.name):
            continue
        ends = [end for end in books.claim_ends.get(claim.id, ()) if end.outcome is not Outcome.NO]
        if any(end.start <= listed.end and not _is_sure(end, listed.start) for end in ends):
            continue  # some of it may or may not be gone
        left = numbers_of(claim.numbers)
        for end in ends:
            if end.end <= listed.start:
                left -= numbers_of(end.numbers) if end.numbers else left
        found = listed.claims.get(claim.id)
        if not left - damaged and found is not None and numbers_of(found) - damaged:
            yield Violation("claims", f"the claim {claim.id} is listed as {found}, and was ended")
        elif left - damaged and found is None:
            yield Violation("claims", f"the claim {claim.id} of {claim.entity} is not listed, and has {sorted(left)}")
        elif found is not None and numbers_of(found) - damaged != left - damaged:
            yield Violation("claims", f"the claim {claim.id} is listed as {found}, and has {sorted(left)}")


def _is_sure(end: ClaimEnd, moment: float) -> bool:
    return end.outcome is Outcome.OK and end.was_there and end.end <= moment


def _ended(id: str, ends: Sequence[ClaimEnd]) -> Iterator[Violation]:
    """A claim that its client has not ended is there to be ended."""
    doubt = False
    for end in ends:
        if end.outcome is Outcome.OK and not end.was_there and not doubt:
            yield Violation("claims", f"the claim {id} is not there any more, and nobody had ended it")
        doubt = doubt or end.outcome is Outcome.UNKNOWN or (end.outcome is Outcome.OK and not end.numbers)
