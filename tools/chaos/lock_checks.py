"""Promises on who has what: locks of messages and of sessions are exclusive, and deliveries are counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf
from typing import Final

from tools.chaos.books import LOCK_LOST, Books, Violation
from tools.chaos.entities import WITH_SESSIONS
from tools.chaos.history import Delivery, Gesture, Hold, Outcome, Settlement, Way

SLACK_MS: Final = 5
"""Between the two readings of the broker's clock that a lock is made of."""


def message_locks(books: Books) -> Iterator[Violation]:
    """A message is with one receiver at a time, as long as its lock was told to last."""
    for (entity, id), deliveries in books.came.items():
        locked = [delivery for delivery in deliveries if delivery.until is not None]
        if entity in WITH_SESSIONS or len(locked) < 2:
            continue  # in a session they are locked with it
        locked.sort(key=lambda delivery: delivery.end)
        for at, second in enumerate(locked):
            for first in locked[:at]:
                since = min(first.start, second.start)
                if books.restarted(since, second.end) or _may_have_ended(books, first, second.end):
                    continue
                until = books.locked_until(first)[0]
                if second.start <= first.end:  # it may be the other way round
                    until = min(until, books.locked_until(second)[0])
                left = until - since - books.clock.passed(since, second.end)
                if left > SLACK_MS:
                    yield Violation(
                        "message locks",
                        f"{id} ({entity} number {first.number}) came as {second.name} while {first.name} "
                        f"had it for at least {left:.0f} ms more",
                    )
                    break


def _may_have_ended(books: Books, delivery: Delivery, moment: float) -> bool:
    """Whether its receiver did something by then that may have ended the lock, or was told that it is over."""

    def may_end_it(settlement: Settlement) -> bool:
        if settlement.start > moment:
            return False
        # What the store could not keep leaves the lock as it was.
        return settlement.outcome is not Outcome.NO or LOCK_LOST in settlement.error or bool(settlement.transaction)

    return any(may_end_it(settlement) for settlement in books.settlements.get(delivery.name, ()))


def late_settlements(books: Books) -> Iterator[Violation]:
    """Who has lost the lock settles nothing."""
    for delivery in books.deliveries.values():
        if delivery.entity in WITH_SESSIONS or delivery.until is None:
            continue
        if any(renewal.outcome is Outcome.UNKNOWN for renewal in books.renewals.get(delivery.name, ())):
            continue
        until = books.locked_until(delivery)[1]
        for settlement in books.settlements.get(delivery.name, ()):
            if settlement.outcome is not Outcome.OK:
                continue
            if settlement.start > until + SLACK_MS:
                yield Violation(
                    "message locks",
                    f"{settlement.gesture} of {delivery.name} ({delivery.id}) was confirmed after its lock was over",
                )


def session_locks(books: Books) -> Iterator[Violation]:
    """A session has one holder: once another one has it, the first one gets nothing done in it."""
    proofs = _proofs(books)
    of_session: defaultdict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in books.holds.values():
        of_session[hold.entity, hold.session].append(hold)
    for (_, session), holds in of_session.items():
        holds.sort(key=lambda hold: hold.end)
        next_at = inf
        later: Hold | None = None
        for hold in reversed(holds):
            last = proofs.get(hold.name)
            if later is not None and last is not None and last[0] > next_at:
                yield Violation(
                    "session locks",
                    f"{hold.name} had {last[1]} in session {session} after {later.name} had accepted it",
                )
            next_at, later = hold.end, hold


def _proofs(books: Books) -> dict[str, tuple[float, str]]:
    """By hold: the start of the last thing that worked because it was held."""
    found: dict[str, tuple[float, str]] = {}

    def note(hold: str | None, start: float, what: str) -> None:
        if hold is not None and start > found.get(hold, (0.0, ""))[0]:
            found[hold] = (start, what)

    for delivery in books.deliveries.values():
        note(delivery.hold, delivery.start, f"a delivery ({delivery.name})")
        for settlement in books.settlements.get(delivery.name, ()):
            if settlement.outcome is Outcome.OK:
                note(delivery.hold, settlement.start, f"a settlement confirmed ({delivery.name})")
    for call in books.calls:
        if call.outcome is Outcome.OK:
            note(call.hold, call.start, f"an answer to {call.action}")
    return found


def counts(books: Books) -> Iterator[Violation]:
    """The delivery count is never lower than what was counted before, as far as that is on disk."""
    for (entity, id), deliveries in books.came.items():
        for at, second in enumerate(deliveries):
            for first in deliveries[:at]:
                if second.start <= first.end:
                    continue
                least = first.count + _is_counted(books, first, second)
                if second.count < least:
                    yield Violation(
                        "counts",
                        f"{id} of {entity} came as {second.name} with the count {second.count}; "
                        f"after {first.name} it is at least {least}",
                    )
                    break


def _is_counted(books: Books, first: Delivery, second: Delivery) -> bool:
    """Whether the first delivery was stored as one before the second was made."""
    settlements = books.settlements.get(first.name, ())
    if any(
        settlement.gesture is Gesture.ABANDON and settlement.outcome is Outcome.OK and settlement.end < second.start
        for settlement in settlements
    ):
        return True
    # Nothing was said of it, so its lock ran out; unless a restart had it forgotten.
    return (
        not settlements
        and first.entity not in WITH_SESSIONS
        and first.way not in (Way.DELETE, Way.CLAIM)
        and not books.restarted(first.start, second.end)
    )
