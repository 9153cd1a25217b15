"""The records of a history, indexed by entity, message, delivery, session and transaction.

This module also concludes how transactions ended, where the client does not know. The checks decide what is a
violation.
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
    BrokerFailure,
    Cancellation,
    Claim,
    ClaimEnd,
    ClaimList,
    ClaimRead,
    ClockSet,
    Damaged,
    Delivery,
    Discharge,
    Disposition,
    FileDamage,
    Hold,
    Leftover,
    LostCredit,
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
"""Part of the conditions for a lost message or session lock."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise."""

    promise: str
    text: str


def places(*sends: Send) -> list[tuple[str, str]]:
    """Return, for each message of the sends, the entities where it is received, with its id."""
    return [(path, id) for send in sends for path in copies(send.entity) for id in send.ids]


class HistoryIndex:
    """The indexed records of one run."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.deliveries: dict[str, Delivery] = {}
        self.received: defaultdict[tuple[str, str], list[Delivery]] = defaultdict(list)
        """Deliveries by entity and message id, in the order in which they were recorded."""
        self.of_hold: defaultdict[str, list[Delivery]] = defaultdict(list)
        self.renewals: defaultdict[str, list[Renewal]] = defaultdict(list)
        self.holds: dict[str, Hold] = {}
        self.calls: list[SessionCall] = []
        self.claims: list[Claim] = []
        self.claim_lists: list[ClaimList] = []
        self.claim_reads: list[ClaimRead] = []
        self.claim_ends: defaultdict[str, list[ClaimEnd]] = defaultdict(list)
        """By claim id."""
        self.discharges: dict[str, Discharge] = {}
        self.cancellations: dict[tuple[str, str], Cancellation] = {}
        self.lost_credit: defaultdict[str, int] = defaultdict(int)
        self.outages: list[Outage] = []
        self.leftovers: list[Leftover] = []
        self.broker_failures: list[BrokerFailure] = []
        self.file_damages: list[FileDamage] = []
        self.damaged: dict[tuple[str, str], Damaged] = {}
        """By entity and message id: messages that the broker reported as damaged, and therefore does not deliver."""
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
                    self.received[record.entity, record.id].append(record)
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
                case BrokerFailure():
                    self.broker_failures.append(record)
                case FileDamage():
                    self.file_damages.append(record)
                case Damaged():
                    self.damaged[record.entity, record.id] = record
        self.clock = BrokerClock(clock_sets)
        self.transactions: defaultdict[str, list[Send]] = defaultdict(list)
        """Sends by the transaction that they belong to."""
        for send in sends:
            if send.transaction is not None:
                self.transactions[send.transaction].append(send)
        self._ends = {name: self._end_of(name) for name in self._named(sends, settlements)}
        self.sends = [self._resolved_send(send) for send in sends]
        self.sent = {place: send for send in self.sends for place in places(send)}
        """Sends by the entity where the message is received, and the message id."""
        self.settlements: defaultdict[str, list[Settlement]] = defaultdict(list)
        """By the name of the delivery."""
        for settlement in settlements:
            self.settlements[settlement.delivery].append(self._resolved_settlement(settlement))

    def observed(self, entity: str, id: str) -> bool:
        """Return whether the message was received from the entity or its dead-letter queue, or reported as damaged."""
        return (
            (entity, id) in self.received or (dead_letters(entity), id) in self.received or self.is_damaged(entity, id)
        )

    def is_damaged(self, entity: str, id: str) -> bool:
        """Return whether the broker reported the message as damaged, in the entity or its dead-letter queue."""
        return (entity, id) in self.damaged or (dead_letters(entity), id) in self.damaged

    def may_be_cancelled(self, entity: str, id: str) -> bool:
        cancellation = self.cancellations.get((entity, id))
        return cancellation is not None and cancellation.outcome is not Outcome.NO

    def may_be_removed(self, entity: str, id: str) -> bool:
        """Return whether a client may have removed the message from the entity or its dead-letter queue."""
        return any(
            delivery.way is Way.DELETE
            or any(
                settlement.disposition is Disposition.COMPLETE and settlement.outcome is not Outcome.NO
                for settlement in self.settlements.get(delivery.name, ())
            )
            for place in (entity, dead_letters(entity))
            for delivery in self.received.get((place, id), ())
        )

    def may_have_restarted(self, start: float, end: float) -> bool:
        """Return whether the broker's process may have been replaced between two moments."""
        return any(outage.start <= end and outage.end >= start for outage in self.outages)

    def is_certainly_later(self, delivery: Delivery, moment: float) -> bool:
        """Return whether the broker certainly made the delivery after that moment.

        With prefetch, a client may record a delivery long after the broker made it.
        """
        if delivery.start > moment:
            return True
        locked_at = self.locked_at(delivery)
        return locked_at is not None and locked_at > self.clock.highest_until(moment)

    def locked_at(self, delivery: Delivery) -> float | None:
        """Return when the message was locked, by the broker's clock; None in a session, which is locked as a whole."""
        if delivery.until is None or delivery.entity in WITH_SESSIONS:
            return None
        return delivery.until - LOCK_MS

    def locked_until(self, delivery: Delivery) -> tuple[float, float]:
        """Return the earliest and the latest end of the delivery's lock, by the run's clock.

        Locks last by a monotonic clock. Their begin is known from the `locked-until` of the delivery and its renewals.
        """
        answers = [delivery, *self.renewals.get(delivery.name, ())]
        begins = [self.clock.moments(each.until - LOCK_MS, each.end) for each in answers if each.until is not None]
        earliest = max((min(moments, default=-inf) for moments in begins), default=-inf)
        latest = max((max(moments, default=inf) for moments in begins), default=inf)
        return earliest + LOCK_MS, latest + LOCK_MS

    def enqueued(self, delivery: Delivery) -> list[float]:
        """Return the moments when the message may have been enqueued, by the run's clock."""
        return self.clock.moments(delivery.enqueued, delivery.end)

    # --- how transactions end ---

    @staticmethod
    def _named(sends: list[Send], settlements: list[Settlement]) -> set[str]:
        named = {send.transaction for send in sends} | {settlement.transaction for settlement in settlements}
        return {name for name in named if name is not None}

    def _end_of(self, transaction: str) -> Discharge:
        """Return the end of a transaction. If its client got no answer, the outcome follows from the messages sent."""
        discharge = self.discharges.get(transaction)
        if discharge is None or not discharge.commit:
            return Discharge(transaction=transaction, commit=False, outcome=Outcome.NO, start=inf, end=inf)
        if discharge.outcome is not Outcome.UNKNOWN or not self.transactions[transaction]:
            return discharge
        sent = places(*self.transactions[transaction])
        seen = [delivery.end for place in sent for delivery in self.received.get(place, ())]
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
