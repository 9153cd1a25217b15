"""Promises on messages: none is lost, unwanted, changed or delivered again; numbers are unique and in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tools.chaos.entities import DELETED, dead_letters
from tools.chaos.history import Delivery, Disposition, Outcome, Send, Settlement, Way
from tools.chaos.history_index import HistoryIndex, Violation, places


def lost(index: HistoryIndex) -> Iterator[Violation]:
    """Check that acknowledged messages were received or existed at the end."""
    missing = 0
    for send in index.sends:
        if send.outcome is not Outcome.OK or send.key is not None:
            continue
        for entity, id in places(send):
            if index.may_be_cancelled(entity, id) or index.may_be_removed(entity, id) or index.is_damaged(entity, id):
                continue
            if entity == DELETED:
                missing += 1
            else:
                yield Violation("lost", f"{id} was acknowledged by {entity}, and did not exist at the end")
    allowed = index.lost_credit[DELETED]
    if missing > allowed:
        yield Violation(
            "lost",
            f"{missing} messages acknowledged by {DELETED} were never received, "
            f"but at most {allowed} were in flight when connections broke",
        )


def unwanted(index: HistoryIndex) -> Iterator[Violation]:
    """Check that received messages were sent, and were neither refused nor rolled back."""
    for place, id in index.received:
        entity = place.removesuffix(dead_letters(""))
        send = index.sent.get((entity, id))
        if send is None:
            yield Violation("unwanted", f"{id} was received from {place}, but was never sent to it")
        elif send.outcome is Outcome.NO:
            reason = send.error or ("rolled back" if send.transaction else "refused")
            yield Violation("unwanted", f"{id} was received from {place}, but the broker had answered: {reason}")


def changed(index: HistoryIndex) -> Iterator[Violation]:
    """Check that messages are received as they were sent, byte for byte."""
    for delivery in index.deliveries.values():
        if delivery.changed:
            yield Violation(
                "changed",
                f"{delivery.id} ({delivery.entity} number {delivery.number}) has {delivery.changed} changed",
            )


def damaged(index: HistoryIndex) -> Iterator[Violation]:
    """Check that no more messages are reported as damaged than files were damaged, and that none is delivered later.

    The copies of a message in several subscriptions count as one.
    """
    ids = sorted({id for _, id in index.damaged})
    if len(ids) > len(index.file_damages):
        yield Violation(
            "damaged",
            f"{len(ids)} messages are damaged, but files were damaged {len(index.file_damages)} times: {ids}",
        )
    for (entity, id), report in index.damaged.items():
        for delivery in index.received.get((entity, id), ()):
            if delivery.start > report.end:
                yield Violation(
                    "damaged", f"{id} ({entity} number {report.number}) was delivered after it was reported as damaged"
                )


def returned(index: HistoryIndex) -> Iterator[Violation]:
    """Check that messages are not delivered again after a confirmed complete, defer or dead-letter, or a delete."""
    for (entity, id), deliveries in index.received.items():
        for delivery in deliveries:
            if delivery.way is Way.DELETE:
                yield from _after(index, delivery.end, "it was received and deleted", delivery, deliveries)
            for settlement in index.settlements.get(delivery.name, ()):
                if settlement.outcome is not Outcome.OK or settlement.disposition in _BACK:
                    continue
                others = deliveries
                if settlement.disposition is Disposition.DEFER:
                    others = [other for other in deliveries if other.way is not Way.FETCH]
                yield from _after(index, settlement.end, _DONE[settlement.disposition], delivery, others)
        times = sum(delivery.way is Way.DELETE for delivery in deliveries)
        if times > 1:
            yield Violation("returned", f"{id} of {entity} was received and deleted {times} times")


_BACK = (Disposition.ABANDON, Disposition.RELEASE)
"""After these a message is delivered again."""
_DONE = {
    Disposition.COMPLETE: "its completion was confirmed",
    Disposition.DEFER: "its deferral was confirmed",
    Disposition.DEAD_LETTER: "its dead-lettering was confirmed",
}


def _after(
    index: HistoryIndex, moment: float, what: str, delivery: Delivery, others: list[Delivery]
) -> Iterator[Violation]:
    for other in others:
        if other is not delivery and other.way is not Way.DELETE and index.is_certainly_later(other, moment):
            yield Violation(
                "returned",
                f"{delivery.id} ({delivery.entity} number {delivery.number}) was delivered again as {other.name} "
                f"{other.end - moment:.0f} ms after {what}",
            )
            return


def numbers(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a sequence number belongs to one message of an entity, and that a message has one."""
    owners: dict[tuple[str, int], str] = {}
    for send in index.sends:
        for id, number in zip(send.ids, send.numbers, strict=False):
            other = owners.setdefault((send.entity, number), id)
            if other != id:
                yield Violation("numbers", f"{send.entity} assigned the number {number} to {other} and to {id}")
    for (entity, id), deliveries in index.received.items():
        for delivery in deliveries:
            other = owners.setdefault((entity, delivery.number), id)
            if other != id:
                yield Violation("numbers", f"{entity} number {delivery.number} is both {other} and {id}")
        found = {delivery.number for delivery in deliveries}
        if len(found) > 1:
            yield Violation("numbers", f"{id} is in {entity} more than once: {sorted(found)}")


def order(index: HistoryIndex) -> Iterator[Violation]:
    """Check that a message has a higher number than the messages acknowledged before it was sent."""
    placed: defaultdict[str, list[tuple[int, Send]]] = defaultdict(list)
    for (entity, id), deliveries in index.received.items():
        send = index.sent.get((entity, id))
        if send is not None and send.due is None and send.outcome is not Outcome.NO:
            placed[entity].append((deliveries[0].number, send))
    for entity, messages in placed.items():
        messages.sort(key=lambda each: each[0])
        soonest, first = inf, messages[-1]
        for number, send in reversed(messages):
            if soonest < send.start:
                yield Violation(
                    "order",
                    f"{send.ids} has number {number} of {entity}, lower than {first[0]} of {first[1].ids}, "
                    "which was acknowledged before it was sent",
                )
            if send.outcome is Outcome.OK and send.end < soonest:
                soonest, first = send.end, (number, send)


def session_order(index: HistoryIndex) -> Iterator[Violation]:
    """Check that the holder of a session receives its messages in order, without leaving out an active one."""
    of_session: defaultdict[tuple[str, str], dict[int, tuple[str, Send]]] = defaultdict(dict)
    for (entity, id), deliveries in index.received.items():
        send = index.sent.get((entity, id))
        first = deliveries[0]
        if send is not None and first.session is not None and send.outcome is Outcome.OK:
            of_session[entity, first.session][first.number] = (id, send)
    for hold in index.holds.values():
        messages = of_session[hold.entity, hold.session]
        waiting = sorted(number for number, (_, send) in messages.items() if send.end < hold.start)
        had: dict[int, Delivery] = {}
        highest = 0
        for delivery in index.of_hold[hold.name]:
            number = delivery.number
            if delivery.session != hold.session:
                yield Violation(
                    "session order", f"{delivery.id} of session {delivery.session} came to the holder of {hold.session}"
                )
            if delivery.way is Way.FETCH:
                continue
            if number < highest and not _may_be_back(index, had.get(number)):
                yield Violation(
                    "session order",
                    f"number {number} ({delivery.id}) of session {hold.session} came after {highest} in {hold.name}",
                )
            for earlier in waiting:
                if earlier >= number:
                    break
                if earlier not in had and not _may_be_out(index, hold.entity, messages[earlier][0], delivery.end):
                    yield Violation(
                        "session order",
                        f"number {number} ({delivery.id}) of session {hold.session} came in {hold.name} before "
                        f"{earlier} ({messages[earlier][0]}), which was active",
                    )
                    break
            had[number] = delivery
            highest = max(highest, number)


def _may_be_back(index: HistoryIndex, delivery: Delivery | None) -> bool:
    return delivery is not None and any(
        settlement.disposition in _BACK for settlement in index.settlements.get(delivery.name, ())
    )


def _may_be_out(index: HistoryIndex, entity: str, id: str, moment: float) -> bool:
    """Return whether the message may no longer be active at that moment: because of a settlement, or of damage."""

    def takes_out(settlement: Settlement) -> bool:
        return (
            settlement.disposition not in _BACK and settlement.outcome is not Outcome.NO and settlement.start <= moment
        )

    return index.is_damaged(entity, id) or any(
        takes_out(settlement)
        for delivery in index.received.get((entity, id), ())
        for settlement in index.settlements.get(delivery.name, ())
    )
