"""Promises on messages: none is lost, none comes that should not, none comes back, numbers are unique and in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import inf

from tools.chaos.books import Books, Violation, places
from tools.chaos.entities import DELETED, dead_letters
from tools.chaos.history import Delivery, Gesture, Outcome, Send, Settlement, Way


def lost(books: Books) -> Iterator[Violation]:
    """What was acknowledged was received, or was there at the end."""
    missing = 0
    for send in books.sends:
        if send.outcome is not Outcome.OK or send.key is not None:
            continue
        for entity, id in places(send):
            if books.may_be_cancelled(entity, id) or books.may_be_removed(entity, id) or books.is_damaged(entity, id):
                continue
            if entity == DELETED:
                missing += 1
            else:
                yield Violation("lost", f"{id} was acknowledged by {entity}, and was not there at the end")
    allowed = books.lost_credit[DELETED]
    if missing > allowed:
        yield Violation(
            "lost",
            f"{missing} messages acknowledged by {DELETED} never came, "
            f"and at most {allowed} were on their way when a connection broke",
        )


def unwanted(books: Books) -> Iterator[Violation]:
    """What came was sent, and its sender was not told that it was refused or rolled back."""
    for place, id in books.came:
        entity = place.removesuffix(dead_letters(""))
        send = books.sent.get((entity, id))
        if send is None:
            yield Violation("unwanted", f"{id} came from {place}, and nobody sent it there")
        elif send.outcome is Outcome.NO:
            reason = send.error or ("rolled back" if send.transaction else "refused")
            yield Violation("unwanted", f"{id} came from {place}, though its sender was told: {reason}")


def changed(books: Books) -> Iterator[Violation]:
    """What came is what was sent, byte for byte."""
    for delivery in books.deliveries.values():
        if delivery.changed:
            yield Violation(
                "changed",
                f"{delivery.id} ({delivery.entity} number {delivery.number}) came with {delivery.changed} changed",
            )


def damaged(books: Books) -> Iterator[Violation]:
    """What damage was done to one message is not said of others: copies of it count as one."""
    ids = sorted({id for _, id in books.damaged})
    if len(ids) > len(books.injuries):
        yield Violation(
            "damaged",
            f"{len(ids)} messages are reported as damaged, and {len(books.injuries)} times something was done to the "
            f"files: {ids}",
        )
    for (entity, id), report in books.damaged.items():
        for delivery in books.came.get((entity, id), ()):
            if delivery.start > report.end:
                yield Violation(
                    "damaged", f"{id} ({entity} number {report.number}) came after it was reported as damaged"
                )


def returned(books: Books) -> Iterator[Violation]:
    """What was confirmed as completed, deferred or dead-lettered, or was deleted, is not given out again."""
    for (entity, id), deliveries in books.came.items():
        for delivery in deliveries:
            if delivery.way is Way.DELETE:
                yield from _after(books, delivery.end, "it was received and deleted", delivery, deliveries)
            for settlement in books.settlements.get(delivery.name, ()):
                if settlement.outcome is not Outcome.OK or settlement.gesture in _BACK:
                    continue
                others = deliveries
                if settlement.gesture is Gesture.DEFER:
                    others = [other for other in deliveries if other.way is not Way.FETCH]
                yield from _after(books, settlement.end, _DONE[settlement.gesture], delivery, others)
        times = sum(delivery.way is Way.DELETE for delivery in deliveries)
        if times > 1:
            yield Violation("returned", f"{id} of {entity} was received and deleted {times} times")


_BACK = (Gesture.ABANDON, Gesture.RELEASE)
"""After these a message is given out again."""
_DONE = {
    Gesture.COMPLETE: "its completion was confirmed",
    Gesture.DEFER: "its deferral was confirmed",
    Gesture.DEAD_LETTER: "its way to the dead letters was confirmed",
}


def _after(books: Books, moment: float, what: str, delivery: Delivery, others: list[Delivery]) -> Iterator[Violation]:
    for other in others:
        if other is not delivery and other.way is not Way.DELETE and books.is_surely_later(other, moment):
            yield Violation(
                "returned",
                f"{delivery.id} ({delivery.entity} number {delivery.number}) came again as {other.name} "
                f"{other.end - moment:.0f} ms after {what}",
            )
            return


def numbers(books: Books) -> Iterator[Violation]:
    """A sequence number stands for one message of an entity, and a message has one."""
    owners: dict[tuple[str, int], str] = {}
    for send in books.sends:
        for id, number in zip(send.ids, send.numbers, strict=False):
            other = owners.setdefault((send.entity, number), id)
            if other != id:
                yield Violation("numbers", f"{send.entity} gave the number {number} to {other} and to {id}")
    for (entity, id), deliveries in books.came.items():
        for delivery in deliveries:
            other = owners.setdefault((entity, delivery.number), id)
            if other != id:
                yield Violation("numbers", f"{entity} number {delivery.number} is both {other} and {id}")
        found = {delivery.number for delivery in deliveries}
        if len(found) > 1:
            yield Violation("numbers", f"{id} is in {entity} more than once: {sorted(found)}")


def order(books: Books) -> Iterator[Violation]:
    """What was sent after something was acknowledged has the higher number."""
    placed: defaultdict[str, list[tuple[int, Send]]] = defaultdict(list)
    for (entity, id), deliveries in books.came.items():
        send = books.sent.get((entity, id))
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


def session_order(books: Books) -> Iterator[Violation]:
    """Who holds a session gets its messages in order, and none before one that waits."""
    of_session: defaultdict[tuple[str, str], dict[int, tuple[str, Send]]] = defaultdict(dict)
    for (entity, id), deliveries in books.came.items():
        send = books.sent.get((entity, id))
        first = deliveries[0]
        if send is not None and first.session is not None and send.outcome is Outcome.OK:
            of_session[entity, first.session][first.number] = (id, send)
    for hold in books.holds.values():
        messages = of_session[hold.entity, hold.session]
        waiting = sorted(number for number, (_, send) in messages.items() if send.end < hold.start)
        had: dict[int, Delivery] = {}
        highest = 0
        for delivery in books.of_hold[hold.name]:
            number = delivery.number
            if delivery.session != hold.session:
                yield Violation(
                    "session order", f"{delivery.id} of session {delivery.session} came to who holds {hold.session}"
                )
            if delivery.way is Way.FETCH:
                continue
            if number < highest and not _may_be_back(books, had.get(number)):
                yield Violation(
                    "session order",
                    f"number {number} ({delivery.id}) of session {hold.session} came after {highest} in {hold.name}",
                )
            for earlier in waiting:
                if earlier >= number:
                    break
                if earlier not in had and not _may_be_out(books, hold.entity, messages[earlier][0], delivery.end):
                    yield Violation(
                        "session order",
                        f"number {number} ({delivery.id}) of session {hold.session} came in {hold.name} before "
                        f"{earlier} ({messages[earlier][0]}), which was there",
                    )
                    break
            had[number] = delivery
            highest = max(highest, number)


def _may_be_back(books: Books, delivery: Delivery | None) -> bool:
    return delivery is not None and any(
        settlement.gesture in _BACK for settlement in books.settlements.get(delivery.name, ())
    )


def _may_be_out(books: Books, entity: str, id: str, moment: float) -> bool:
    """Whether something was asked for it by then after which it does not wait any more, or it is damaged."""

    def takes_out(settlement: Settlement) -> bool:
        return settlement.gesture not in _BACK and settlement.outcome is not Outcome.NO and settlement.start <= moment

    return books.is_damaged(entity, id) or any(
        takes_out(settlement)
        for delivery in books.came.get((entity, id), ())
        for settlement in books.settlements.get(delivery.name, ())
    )
