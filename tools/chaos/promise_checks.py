"""Promises on transactions, batches, topics, schedules, duplicates and session states, and on the broker itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from tools.chaos.entities import DELETED, UNIQUE, WINDOW_MS
from tools.chaos.history import Delivery, Outcome, Send, SessionCall
from tools.chaos.history_index import HistoryIndex, Violation, places

SLACK_MS: Final = 100
"""Difference allowed between a message's enqueued time and the time of its id in the duplicate detection history."""


def transactions(index: HistoryIndex) -> Iterator[Violation]:
    """Check that all messages of a transaction exist, or none. (Its settlements follow: see `history_index`.)"""
    for transaction, sends in index.transactions.items():
        sent = places(*sends)
        seen = [place for place in sent if index.observed(*place)]
        if 0 < len(seen) < len(sent):
            missing = sorted(id for path, id in sent if (path, id) not in seen)
            text = f"{len(seen)} messages of transaction {transaction} were received, but not {missing}"
            yield Violation("transactions", text)


def together(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a batch is stored with all its messages, in all subscriptions, or not at all."""
    for send in index.sends:
        if send.transaction is not None or send.entity == DELETED:
            continue
        sent = places(send)
        if any(index.may_be_cancelled(*place) for place in sent):
            continue
        missing = [place for place in sent if not index.observed(*place)]
        if missing and len(missing) < len(sent):
            yield Violation("together", f"{send.ids} was one batch to {send.entity}; these never came: {missing}")


def schedules(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a scheduled message is not delivered before its time, nor after it was cancelled."""
    for (entity, id), deliveries in index.received.items():
        send = index.sent.get((entity, id))
        if send is None or send.due is None:
            continue
        for delivery in deliveries:
            highest = index.clock.highest_until(delivery.end)
            if highest < send.due:
                yield Violation("schedules", f"{id} came {send.due - highest:.0f} ms or more before its time")
                break
            if delivery.enqueued < send.due:
                yield Violation("schedules", f"{id} was enqueued at {delivery.enqueued}, but scheduled for {send.due}")
                break
        cancelled = index.cancellations.get((entity, id))
        if cancelled is not None and cancelled.outcome is Outcome.OK:
            yield Violation("schedules", f"{id} was delivered after its cancellation was confirmed")


def duplicates(index: HistoryIndex) -> Iterator[Violation]:
    """Check that an id is stored once within the window, and that an accepted id is stored."""
    stored: defaultdict[str, list[Delivery]] = defaultdict(list)
    for (entity, id), deliveries in index.received.items():
        send = index.sent.get((entity, id))
        if entity == UNIQUE and send is not None and send.key is not None:
            stored[send.key].append(deliveries[0])
    for key, copied in stored.items():
        copied.sort(key=lambda delivery: index.sent[UNIQUE, delivery.id].start)
        for first, second in pairwise(copied):
            began = index.sent[UNIQUE, first.id].start
            send = index.sent[UNIQUE, second.id]
            # An unacknowledged message was stored at an unknown time, but not after its first delivery.
            ended = max(began, send.end if send.outcome is Outcome.OK else second.end)
            since = min(index.enqueued(first), default=began)
            passed = index.clock.passed(since, ended)
            if index.may_have_restarted(began, ended):  # the age of ids read at a start follows from the system's clock
                passed += index.clock.spread(ended)
            if passed < WINDOW_MS - SLACK_MS:
                yield Violation(
                    "duplicates",
                    f"{key} is stored as {first.id} and, {second.enqueued - first.enqueued} ms later, as {second.id}",
                )
    unknown = {index.sent[UNIQUE, id].key for entity, id in index.damaged if (UNIQUE, id) in index.sent}
    for send in index.sends:
        if send.key in unknown:
            continue  # the enqueued time of a damaged message is unknown
        if send.key is not None and send.outcome is Outcome.OK and not _is_covered(index, send, stored[send.key]):
            yield Violation("duplicates", f"{send.ids} was accepted, but neither it nor another {send.key} is stored")


def _is_covered(index: HistoryIndex, send: Send, copied: list[Delivery]) -> bool:
    for delivery in copied:
        for enqueued in index.enqueued(delivery):
            window: float = WINDOW_MS + SLACK_MS
            if index.may_have_restarted(enqueued, send.end):  # if the clock was set back, the window begins again
                window += index.clock.spread(send.end) + WINDOW_MS
            if send.start - window <= enqueued <= send.end + SLACK_MS:
                return True
    return False


def states(index: HistoryIndex) -> Iterator[Violation]:
    """Check that the state of a session is the last one set, or one that may have been set since."""

    def moment(call: SessionCall) -> float:
        """Return when a call may have taken effect: at its start already if it was not confirmed."""
        return call.start if call.outcome is Outcome.UNKNOWN else call.end

    possible: dict[tuple[str, str], set[str | None]] = {}
    for call in sorted(index.calls, key=moment):
        hold = index.holds[call.hold]
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
                f"in {hold.name} the state of session {hold.session} is {call.value!r}, not {expected}",
            )


def leftovers(index: HistoryIndex) -> Iterator[Violation]:
    """Check that every message that can be peeked at the end is delivered."""
    for left in index.leftovers:
        yield Violation(
            "stuck", f"{left.id} ({left.entity} number {left.number}, state {left.state}) is never delivered"
        )


def broker_failures(index: HistoryIndex) -> Iterator[Violation]:
    """Check that the broker did not end by itself, and that its log has no traceback."""
    for failure in index.broker_failures:
        yield Violation("broker", failure.text)
