"""Promises on locks: locks of messages and of sessions are exclusive, and deliveries are counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf
from typing import Final

from tools.chaos.entities import WITH_SESSIONS
from tools.chaos.history import Delivery, Disposition, Hold, Outcome, Settlement, Way
from tools.chaos.history_index import LOCK_LOST, HistoryIndex, Violation

SLACK_MS: Final = 5
"""Difference allowed for the two readings of the broker's clock that a lock consists of."""


def message_locks(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a message is not delivered to a second receiver before its lock ends."""
    for (entity, id), deliveries in index.received.items():
        locked = [delivery for delivery in deliveries if delivery.until is not None]
        if entity in WITH_SESSIONS or len(locked) < 2:
            continue  # messages of a session have no locks of their own
        locked.sort(key=lambda delivery: delivery.end)
        for at, second in enumerate(locked):
            for first in locked[:at]:
                since = min(first.start, second.start)
                if index.may_have_restarted(since, second.end) or _may_have_ended(index, first, second.end):
                    continue
                until = index.locked_until(first)[0]
                if second.start <= first.end:  # the second may have been delivered first
                    until = min(until, index.locked_until(second)[0])
                left = until - since - index.clock.passed(since, second.end)
                if left > SLACK_MS:
                    yield Violation(
                        "message locks",
                        f"{id} ({entity} number {first.number}) was delivered as {second.name} while {first.name} "
                        f"had its lock for at least {left:.0f} ms more",
                    )
                    break


def _may_have_ended(index: HistoryIndex, delivery: Delivery, moment: float) -> bool:
    """Return whether the receiver may have ended the lock by then, or was answered that it is lost."""

    def may_end_it(settlement: Settlement) -> bool:
        if settlement.start > moment:
            return False
        # A settlement that the store refused leaves the lock unchanged.
        return settlement.outcome is not Outcome.NO or LOCK_LOST in settlement.error or bool(settlement.transaction)

    return any(may_end_it(settlement) for settlement in index.settlements.get(delivery.name, ()))


def late_settlements(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a receiver whose lock has expired settles nothing."""
    for delivery in index.deliveries.values():
        if delivery.entity in WITH_SESSIONS or delivery.until is None:
            continue
        if any(renewal.outcome is Outcome.UNKNOWN for renewal in index.renewals.get(delivery.name, ())):
            continue
        until = index.locked_until(delivery)[1]
        for settlement in index.settlements.get(delivery.name, ()):
            if settlement.outcome is not Outcome.OK:
                continue
            if settlement.start > until + SLACK_MS:
                yield Violation(
                    "message locks",
                    f"{settlement.disposition} of {delivery.name} ({delivery.id}) was confirmed after its lock",
                )


def session_locks(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a session has one holder: after another client has accepted it, the first can do nothing in it."""
    proofs = _proofs(index)
    of_session: defaultdict[tuple[str, str], list[Hold]] = defaultdict(list)
    for hold in index.holds.values():
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


def _proofs(index: HistoryIndex) -> dict[str, tuple[float, str]]:
    """Return, by hold, the start and the description of the last operation that succeeded because of the hold."""
    found: dict[str, tuple[float, str]] = {}

    def note(hold: str | None, start: float, what: str) -> None:
        if hold is not None and start > found.get(hold, (0.0, ""))[0]:
            found[hold] = (start, what)

    for delivery in index.deliveries.values():
        note(delivery.hold, delivery.start, f"a delivery ({delivery.name})")
        for settlement in index.settlements.get(delivery.name, ()):
            if settlement.outcome is Outcome.OK:
                note(delivery.hold, settlement.start, f"a settlement confirmed ({delivery.name})")
    for call in index.calls:
        if call.outcome is Outcome.OK:
            note(call.hold, call.start, f"an answer to {call.action}")
    return found


def counts(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a delivery count is not lower than the counts stored before."""
    for (entity, id), deliveries in index.received.items():
        for at, second in enumerate(deliveries):
            for first in deliveries[:at]:
                if second.start <= first.end:
                    continue
                least = first.count + _is_counted(index, first, second)
                if second.count < least:
                    yield Violation(
                        "counts",
                        f"{id} of {entity} was delivered as {second.name} with the count {second.count}; "
                        f"after {first.name} it must be at least {least}",
                    )
                    break


def _is_counted(index: HistoryIndex, first: Delivery, second: Delivery) -> bool:
    """Return whether the first delivery was certainly counted and stored before the second was made."""
    settlements = index.settlements.get(first.name, ())
    if any(
        settlement.disposition is Disposition.ABANDON
        and settlement.outcome is Outcome.OK
        and settlement.end < second.start
        for settlement in settlements
    ):
        return True
    # It was not settled, so its lock expired, unless a restart removed the lock before.
    return (
        not settlements
        and first.entity not in WITH_SESSIONS
        and first.way not in (Way.DELETE, Way.CLAIM)
        and not index.may_have_restarted(first.start, second.end)
    )
