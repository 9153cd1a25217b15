"""A history made ready for questions: what was sent where, what came, what became of it.

Knows how transactions end, and what follows from not knowing it. Leaves judging to the checks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from tools.chaos.clocks import BrokerClock
from tools.chaos.entities import LOCK_MS, WITH_SESSIONS, copies, dead_letters
from tools.chaos.history import (
    Cancellation,
    Claim,
    ClaimEnd,
    ClaimList,
    ClaimRead,
    ClockSet,
    Damaged,
    Delivery,
    Discharge,
    Gesture,
    Hold,
    Injury,
    Leftover,
    LostCredit,
    Mishap,
    Outage,
    Outcome,
    Record,
    Renewal,
    Send,
    SessionCall,
    Settlement,
    Way,
)

LOCK_LOST: Final = "lock-lost"
"""In the conditions that say so."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept."""

    promise: str
    text: str


def places(*sends: Send) -> list[tuple[str, str]]:
    """Where each message of them is received, and its id."""
    return [(path, id) for send in sends for path in copies(send.entity) for id in send.ids]


class Books:
    """One run."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.deliveries: dict[str, Delivery] = {}
        self.came: defaultdict[tuple[str, str], list[Delivery]] = defaultdict(list)
        """By entity and id, in the order in which they were recorded."""
        self.of_hold: defaultdict[str, list[Delivery]] = defaultdict(list)
        self.renewals: defaultdict[str, list[Renewal]] = defaultdict(list)
        self.holds: dict[str, Hold] = {}
        self.calls: list[SessionCall] = []
        self.claims: list[Claim] = []
        self.claim_lists: list[ClaimList] = []
        self.claim_reads: list[ClaimRead] = []
        self.claim_ends: defaultdict[str, list[ClaimEnd]] = defaultdict(list)
        """By claim."""
        self.discharges: dict[str, Discharge] = {}
        self.cancellations: dict[tuple[str, str], Cancellation] = {}
        self.lost_credit: defaultdict[str, int] = defaultdict(int)
        self.outages: list[Outage] = []
        self.leftovers: list[Leftover] = []
        self.mishaps: list[Mishap] = []
        self.injuries: list[Injury] = []
        self.damaged: dict[tuple[str, str], Damaged] = {}
        """By entity and id: what the broker has, and has said not to give out."""
        sends: list[Send] = []
        settlements: list[Settlement] = []
        clock_sets: list[ClockSet] = []
        for record in records:
            match record:
                case Send():
                    sends.append(record)
                case Settlement():
                    settlements.append(record)
                case ClockSet():
                    clock_sets.append(record)
                case Delivery():
                    self.deliveries[record.name] = record
                    self.came[record.entity, record.id].append(record)
                    if record.hold is not None:
                        self.of_hold[record.hold].append(record)
                case Renewal():
                    self.renewals[record.delivery].append(record)
                case Hold():
                    self.holds[record.name] = record
                case SessionCall():
                    self.calls.append(record)
                case Claim():
                    self.claims.append(record)
                case ClaimList():
                    self.claim_lists.append(record)
                case ClaimRead():
                    self.claim_reads.append(record)
                case ClaimEnd():
                    self.claim_ends[record.claim].append(record)
                case Discharge():
                    self.discharges[record.transaction] = record
                case Cancellation():
                    self.cancellations.update({(record.entity, id): record for id in record.ids})
                case LostCredit():
                    self.lost_credit[record.entity] += record.count
                case Outage():
                    self.outages.append(record)
                case Leftover():
                    self.leftovers.append(record)
                case Mishap():
                    self.mishaps.append(record)
                case Injury():
                    self.injuries.append(record)
                case Damaged():
                    self.damaged[record.entity, record.id] = record
        self.clock = BrokerClock(clock_sets)
        self.transactions: defaultdict[str, list[Send]] = defaultdict(list)
        """What each of them was to send."""
        for send in sends:
            if send.transaction is not None:
                self.transactions[send.transaction].append(send)
        self._ends = {name: self._end_of(name) for name in self._named(sends, settlements)}
        self.sends = [self._resolved_send(send) for send in sends]
        self.sent = {place: send for send in self.sends for place in places(send)}
        """By where it is received, and id."""
        self.settlements: defaultdict[str, list[Settlement]] = defaultdict(list)
        """By delivery."""
        for settlement in settlements:
            self.settlements[settlement.delivery].append(self._resolved_settlement(settlement))

    def observed(self, entity: str, id: str) -> bool:
        """Whether it was seen there at all, or among the dead letters; what the broker reports as damaged is there."""
        return (entity, id) in self.came or (dead_letters(entity), id) in self.came or self.is_damaged(entity, id)

    def is_damaged(self, entity: str, id: str) -> bool:
        """Whether the broker has reported it, there or among the dead letters."""
        return (entity, id) in self.damaged or (dead_letters(entity), id) in self.damaged

    def may_be_cancelled(self, entity: str, id: str) -> bool:
        cancellation = self.cancellations.get((entity, id))
        return cancellation is not None and cancellation.outcome is not Outcome.NO

    def may_be_removed(self, entity: str, id: str) -> bool:
        """Whether something can have taken the message away, from the entity or from its dead letters."""
        return any(
            delivery.way is Way.DELETE
            or any(
                settlement.gesture is Gesture.COMPLETE and settlement.outcome is not Outcome.NO
                for settlement in self.settlements.get(delivery.name, ())
            )
            for place in (entity, dead_letters(entity))
            for delivery in self.came.get((place, id), ())
        )

    def restarted(self, start: float, end: float) -> bool:
        """Whether the broker may have been another process at some moment in between."""
        return any(outage.start <= end and outage.end >= start for outage in self.outages)

    def is_surely_later(self, delivery: Delivery, moment: float) -> bool:
        """Whether the broker gave it out after that moment: who prefetches may find later what came earlier."""
        if delivery.start > moment:
            return True
        locked_at = self.locked_at(delivery)
        return locked_at is not None and locked_at > self.clock.highest_until(moment)

    def locked_at(self, delivery: Delivery) -> float | None:
        """By the broker's clock. Messages of a session are locked with it, so they do not say."""
        if delivery.until is None or delivery.entity in WITH_SESSIONS:
            return None
        return delivery.until - LOCK_MS

    def locked_until(self, delivery: Delivery) -> tuple[float, float]:
        """When its lock ends, by our clock, if no more time passes than we count: at the earliest and at the latest.

        Locks last by a clock that nobody sets; when they began is known from what the receiver was told.
        """
        told = [delivery, *self.renewals.get(delivery.name, ())]
        begins = [self.clock.moments(each.until - LOCK_MS, each.end) for each in told if each.until is not None]
        earliest = max((min(moments, default=-inf) for moments in begins), default=-inf)
        latest = max((max(moments, default=inf) for moments in begins), default=inf)
        return earliest + LOCK_MS, latest + LOCK_MS

    def enqueued(self, delivery: Delivery) -> list[float]:
        """When it may have been enqueued, by our clock."""
        return self.clock.moments(delivery.enqueued, delivery.end)

    # --- how transactions end ---

    @staticmethod
    def _named(sends: list[Send], settlements: list[Settlement]) -> set[str]:
        named = {send.transaction for send in sends} | {settlement.transaction for settlement in settlements}
        return {name for name in named if name is not None}

    def _end_of(self, transaction: str) -> Discharge:
        """Its end, with the outcome that it had: what it sent tells, where its client was not told."""
        discharge = self.discharges.get(transaction)
        if discharge is None or not discharge.commit:
            return Discharge(transaction=transaction, commit=False, outcome=Outcome.NO, start=inf, end=inf)
        if discharge.outcome is not Outcome.UNKNOWN or not self.transactions[transaction]:
            return discharge
        sent = places(*self.transactions[transaction])
        seen = [delivery.end for place in sent for delivery in self.came.get(place, ())]
        seen += [self.damaged[place].end for place in sent if place in self.damaged]
        if seen:
            return replace(discharge, outcome=Outcome.OK, end=max(discharge.end, min(seen)))
        return replace(discharge, outcome=Outcome.NO, end=inf)

    def _resolved_send(self, send: Send) -> Send:
        if send.transaction is None:
            return send
        end = self._ends[send.transaction]
        return replace(send, start=end.start, end=end.end, outcome=end.outcome)

    def _resolved_settlement(self, settlement: Settlement) -> Settlement:
        if settlement.transaction is None or settlement.outcome is Outcome.NO:
            return settlement
        end = self._ends[settlement.transaction]
        start = settlement.start if end.start == inf else end.start
        return replace(settlement, start=start, end=end.end, outcome=end.outcome, error=end.error)
