"""Histories written by hand, for tests of the checker: one operation after the other, on a clock of their own."""

from __future__ import annotations

from itertools import count
from typing import Any

from tools.chaos.checker import check
from tools.chaos.entities import CLAIMED, INVOICES, LOCK_MS, ORDERS, PLAIN, SESSIONS
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
    Disposition,
    FileDamage,
    Hold,
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


class Story:
    """A history whose operations take 10 ms each, one after the other."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.now = 1_000_000.0
        self.offset = 0
        self._names = count(1)

    @property
    def broken(self) -> list[str]:
        """The broken promises, as the checker finds them."""
        return [violation.promise for violation in check(self.records)]

    def wait(self, ms: float) -> None:
        self.now += ms

    def send(self, *ids: str, entity: str = PLAIN, outcome: Outcome = Outcome.OK, **more: Any) -> Send:
        return self._add(Send(entity=entity, ids=ids, outcome=outcome, **self._span(), **more))

    def receive(self, id: str, number: int = 1, *, entity: str = PLAIN, way: Way = Way.LOCK, **more: Any) -> Delivery:
        """Deliver it; its lock begins at the end of the call."""
        span = self._span() | {key: more.pop(key) for key in ("start", "end") if key in more}
        values: dict[str, Any] = {"count": 0, "enqueued": int(span["start"]) + self.offset}
        if way is not Way.DELETE:
            values["until"] = int(span["end"]) + self.offset + LOCK_MS
        name = f"d{next(self._names)}"
        return self._add(
            Delivery(name=name, entity=entity, id=id, number=number, way=way, **{**values, **span, **more})
        )

    def settle(
        self,
        delivery: Delivery,
        disposition: Disposition = Disposition.COMPLETE,
        outcome: Outcome = Outcome.OK,
        **more: Any,
    ) -> Settlement:
        return self._add(
            Settlement(delivery=delivery.name, disposition=disposition, outcome=outcome, **self._span(), **more)
        )

    def finish(self, *ids: str, entity: str = PLAIN, first: int = 1, **more: Any) -> None:
        """Receive and complete what is left, long after everything else."""
        self.wait(60_000)
        for number, id in enumerate(ids, first):
            self.settle(self.receive(id, number, entity=entity, **more))

    def renew(self, delivery: Delivery, outcome: Outcome = Outcome.OK) -> None:
        span = self._span()
        until = int(span["end"]) + self.offset + LOCK_MS if outcome is Outcome.OK else None
        self._add(Renewal(delivery=delivery.name, outcome=outcome, until=until, **span))

    def accept(self, session: str = "s") -> Hold:
        return self._add(Hold(name=f"h{next(self._names)}", entity=SESSIONS, session=session, **self._span()))

    def receive_of(self, hold: Hold, id: str, number: int, **more: Any) -> Delivery:
        return self.receive(id, number, entity=SESSIONS, session=hold.session, hold=hold.name, **more)

    def call(self, hold: Hold, action: str, value: str | None = None, outcome: Outcome = Outcome.OK) -> None:
        self._add(SessionCall(hold=hold.name, action=action, value=value, outcome=outcome, **self._span()))

    def trade(self, *invoices: str, commit: bool = True, outcome: Outcome | None = Outcome.OK) -> None:
        """Add a transaction that completes `order` and sends invoices; without an outcome it is not discharged."""
        taken = self.receive("order", entity=ORDERS)
        self.settle(taken, transaction="t")
        for invoice in invoices:
            self.send(invoice, entity=INVOICES, transaction="t")
        if outcome is not None:
            self._add(Discharge(transaction="t", commit=commit, outcome=outcome, **self._span()))

    def cancel(self, send: Send, outcome: Outcome = Outcome.OK) -> None:
        self._add(Cancellation(entity=send.entity, ids=send.ids, outcome=outcome, **self._span()))

    def claim(self, *numbers: int, id: str = "c", outcome: Outcome = Outcome.OK) -> Claim:
        """Add a claim; `numbers` alternates first and last numbers of ranges."""
        return self._add(Claim(entity=CLAIMED, name="n", id=id, numbers=numbers, outcome=outcome, **self._span()))

    def list_claims(self, **claims: list[int]) -> None:
        names = dict.fromkeys(claims, "n")
        self._add(ClaimList(entity=CLAIMED, name="n", claims=claims, names=names, **self._span()))

    def read_claim(self, claim: Claim, *found: int) -> None:
        self._add(ClaimRead(entity=CLAIMED, claim=claim.id, numbers=claim.numbers, found=found, **self._span()))

    def end_claim(
        self, claim: Claim, *numbers: int, outcome: Outcome = Outcome.OK, was_there: bool = True, releases: bool = False
    ) -> None:
        disposition = Disposition.RELEASE if releases else Disposition.COMPLETE
        end = ClaimEnd(
            claim=claim.id,
            disposition=disposition,
            numbers=numbers,
            outcome=outcome,
            was_there=was_there,
            **self._span(),
        )
        self._add(end)

    def lose(self, entity: str, amount: int) -> None:
        self._add(LostCredit(entity=entity, count=amount, **self._span()))

    def damage_files(self) -> None:
        """Damage the broker's files, so that it still starts."""
        self._add(FileDamage(text="a bit is flipped", **self._span()))

    def report(self, id: str, number: int = 1, *, entity: str = PLAIN) -> None:
        """Let the broker report a message as damaged."""
        self._add(Damaged(entity=entity, id=id, number=number, **self._span()))

    def restart(self) -> None:
        self._add(Outage(**self._span()))

    def set_clock(self, offset: int, passed: int = 0) -> None:
        self._add(ClockSet(offset=offset, passed=passed, **self._span()))
        self.offset = offset

    def _span(self) -> dict[str, float]:
        start, self.now = self.now + 1, self.now + 11
        return {"start": start, "end": self.now}

    def _add(self, record: Any) -> Any:
        self.records.append(record)
        return record
