"""Promises on several messages together, and on time: transactions, batches, topics, schedules, duplicates, states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tools.chaos.books import Books, Violation, places
from tools.chaos.entities import DELETED, UNIQUE, WINDOW_MS
from tools.chaos.history import Delivery, Outcome, Send, SessionCall

SLACK_MS: Final = 100
"""Between a message's time of arrival and that of its id in the history."""


def transactions(books: Books) -> Iterator[Violation]:
    """Of what a transaction sends all is there or nothing. (What it settles follows: see `books`.)"""
    for transaction, sends in books.transactions.items():
        sent = places(*sends)
        seen = [place for place in sent if books.observed(*place)]
        if 0 < len(seen) < len(sent):
            missing = sorted(id for path, id in sent if (path, id) not in seen)
            yield Violation("transactions", f"of transaction {transaction} came {len(seen)}, but not {missing}")


def together(books: Books) -> Iterator[Violation]:
    """What was sent as one is there with all its messages, and with all its copies, or not at all."""
    for send in books.sends:
        if send.transaction is not None or send.entity == DELETED:
            continue
        sent = places(send)
        if any(books.may_be_cancelled(*place) for place in sent):
            continue
        missing = [place for place in sent if not books.observed(*place)]
        if missing and len(missing) < len(sent):
            yield Violation("together", f"{send.ids} went to {send.entity} as one, and these never came: {missing}")


def schedules(books: Books) -> Iterator[Violation]:
    """A scheduled message does not come before its time, nor after it was taken back."""
    for (entity, id), deliveries in books.came.items():
        send = books.sent.get((entity, id))
        if send is None or send.due is None:
            continue
        for delivery in deliveries:
            highest = books.clock.highest_until(delivery.end)
            if highest < send.due:
                yield Violation("schedules", f"{id} came {send.due - highest:.0f} ms before its time, or more")
                break
            if delivery.enqueued < send.due:
                yield Violation("schedules", f"{id} was enqueued at {delivery.enqueued}, and scheduled for {send.due}")
                break
        cancelled = books.cancellations.get((entity, id))
        if cancelled is not None and cancelled.outcome is Outcome.OK:
            yield Violation("schedules", f"{id} came, though it was confirmed that it is taken back")


def duplicates(books: Books) -> Iterator[Violation]:
    """Within the window an id is stored once; and an id that was accepted is stored."""
    stored: defaultdict[str, list[Delivery]] = defaultdict(list)
    for (entity, id), deliveries in books.came.items():
        send = books.sent.get((entity, id))
        if entity == UNIQUE and send is not None and send.key is not None:
            stored[send.key].append(deliveries[0])
    for key, copied in stored.items():
        copied.sort(key=lambda delivery: books.sent[UNIQUE, delivery.id].start)
        for first, second in pairwise(copied):
            began = books.sent[UNIQUE, first.id].start
            send = books.sent[UNIQUE, second.id]
            # Nobody knows when one was stored that was not acknowledged, but that it was there when it came.
            ended = max(began, send.end if send.outcome is Outcome.OK else second.end)
            since = min(books.enqueued(first), default=began)
            passed = books.clock.passed(since, ended)
            if books.restarted(began, ended):  # what is read at a start is as old as the clock says
                passed += books.clock.spread(ended)
            if passed < WINDOW_MS - SLACK_MS:
                yield Violation(
                    "duplicates",
                    f"{key} is stored as {first.id} and, {second.enqueued - first.enqueued} ms later, as {second.id}",
                )
    unknown = {books.sent[UNIQUE, id].key for entity, id in books.damaged if (UNIQUE, id) in books.sent}
    for send in books.sends:
        if send.key in unknown:
            continue  # when a damaged message was enqueued nobody is told
        if send.key is not None and send.outcome is Outcome.OK and not _is_covered(books, send, stored[send.key]):
            yield Violation("duplicates", f"{send.ids} was accepted, and neither it nor another {send.key} is there")


def _is_covered(books: Books, send: Send, copied: list[Delivery]) -> bool:
    for delivery in copied:
        for enqueued in books.enqueued(delivery):
            window: float = WINDOW_MS + SLACK_MS
            if books.restarted(enqueued, send.end):  # where the clock was set back, it begins again
                window += books.clock.spread(send.end) + WINDOW_MS
            if send.start - window <= enqueued <= send.end + SLACK_MS:
                return True
    return False


def states(books: Books) -> Iterator[Violation]:
    """The state of a session is what was last set, or what may have been set since."""

    def moment(call: SessionCall) -> float:
        """What nobody confirmed may hold before its client gave up."""
        return call.start if call.outcome is Outcome.UNKNOWN else call.end

    possible: dict[tuple[str, str], set[str | None]] = {}
    for call in sorted(books.calls, key=moment):
        hold = books.holds[call.hold]
        values = possible.setdefault((hold.entity, hold.session), {None})
        if call.action == "set" and call.outcome is Outcome.OK:
            values.clear()
            values.add(call.value)
        elif call.action == "set" and call.outcome is Outcome.UNKNOWN:
            values.add(call.value)
        elif call.action == "get" and call.outcome is Outcome.OK and call.value not in values:
            expected = " or ".join(sorted(repr(value) for value in values))
            yield Violation(
                "states",
                f"in {hold.name} the state of session {hold.session} is {call.value!r}, and not {expected}",
            )


def leftovers(books: Books) -> Iterator[Violation]:
    """At the end nothing is there that is not given out."""
    for left in books.leftovers:
        yield Violation(
            "stuck", f"{left.id} ({left.entity} number {left.number}, state {left.state}) is there and does not come"
        )


def mishaps(books: Books) -> Iterator[Violation]:
    """The broker does not end by itself, and logs no failure of its own."""
    for mishap in books.mishaps:
        yield Violation("broker", mishap.text)
