"""What clients do during a run: each a thread with choices of its own, which the seed of the run decides."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Final
from uuid import UUID

from peeklock.client import ClientError, LinkClosed
from tools.chaos import claiming
from tools.chaos.client import Client, HeldSession, Taken
from tools.chaos.entities import (
    CLAIMED,
    CLAIMED_SESSIONS,
    DELETED,
    INVOICES,
    ORDERS,
    PLAIN,
    SCHEDULED,
    SESSIONS,
    SUBSCRIPTIONS,
    TOPIC,
    UNIQUE,
    copies,
)
from tools.chaos.history import Gesture, History, Outcome, Send, Settlement, Way, now

AHEAD: Final = 120
"""Senders wait when an entity has about this many messages more than were settled."""
SESSION_IDS: Final = tuple(f"s{number}" for number in range(6))


@dataclass
class Surroundings:
    """What the workers of a run share."""

    address: str
    history: History
    seed: int
    offset: Callable[[], int]
    """How far the broker's clock is ahead."""
    stopped: threading.Event = field(default_factory=threading.Event)
    load: Counter[str] = field(default_factory=Counter)
    """By entity, about: messages sent and not settled."""


class Worker(threading.Thread):
    """Does one turn after the other until it is stopped, whatever happens to its connection."""

    ENTITY: ClassVar[str] = ""
    PACE: ClassVar[float] = 0.03
    """Seconds between turns, at most."""

    def __init__(self, around: Surroundings, name: str, entity: str = "") -> None:
        super().__init__(name=name, daemon=True)
        self.entity = entity or self.ENTITY
        self.chance = Random(f"{around.seed}:{name}")
        self.failure: BaseException | None = None
        """Ours, not the broker's."""
        self._around = around
        self.client = Client(name, around.address, around.history)

    def run(self) -> None:
        try:
            while not self._around.stopped.is_set():
                try:
                    self.turn()
                    self._around.stopped.wait(self.chance.uniform(0, self.PACE))
                except ClientError:
                    self.client.drop()
                    self._around.stopped.wait(self.chance.uniform(0.02, 0.15))
            self.client.drop()
        except BaseException as failure:
            self.failure = failure

    def turn(self) -> None:
        raise NotImplementedError  # abstract

    def chosen(self, **weights: int) -> str:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def broker_now(self) -> int:
        return int(now()) + self._around.offset()

    def sent(self, send: Send) -> None:
        if send.outcome is Outcome.OK:
            for entity in copies(self.entity):
                self._around.load[entity] += len(send.ids)

    def settle(self, taken: Taken, gesture: Gesture) -> Settlement:
        settlement = self.client.settle(taken, gesture)
        if gesture in (Gesture.COMPLETE, Gesture.DEAD_LETTER) and settlement.outcome is Outcome.OK:
            self._around.load[self.entity] -= 1
        return settlement

    def is_ahead(self) -> bool:
        if max(self._around.load[entity] for entity in copies(self.entity)) < AHEAD:
            return False
        self._around.stopped.wait(0.1)
        return True


class Sender(Worker):
    """Sends single messages and batches."""

    def turn(self) -> None:
        if not self.is_ahead():
            self.sent(self.client.send(self.entity, self.chance.choice((1, 1, 1, 2, 4))))


class PlainReceiver(Worker):
    """Settles in every way, or not at all; fetches what it deferred."""

    ENTITY = PLAIN

    def __init__(self, around: Surroundings, name: str, credit: int = 0) -> None:
        super().__init__(around, name)
        self._credit = credit
        self._deferred: deque[int] = deque()

    def turn(self) -> None:
        if self._deferred and self.chance.random() < 0.3:
            self._fetch()
            return
        for taken in self.client.receive(self.entity, self.chance.randint(1, 4), 0.4, credit=self._credit):
            deed = self.chosen(complete=55, abandon=15, defer=12, dead_letter=5, renew=8, nothing=5)
            if deed == "renew":
                self.client.renew(taken)
                self.settle(taken, Gesture.COMPLETE)
            elif deed != "nothing":
                settlement = self.settle(taken, Gesture[deed.upper()])
                if settlement.gesture is Gesture.DEFER and settlement.outcome is Outcome.OK:
                    self._deferred.append(taken.delivery.number)

    def _fetch(self) -> None:
        number = self._deferred.popleft()
        for taken in self.client.fetch(self.entity, [number]):
            deed = self.chosen(complete=60, abandon=20, defer=10, nothing=10)
            if deed != "nothing":
                self.settle(taken, Gesture[deed.upper()])
            if deed != "complete":
                self._deferred.append(number)


class Completer(Worker):
    """Completes what comes, most of the time."""

    def turn(self) -> None:
        for taken in self.client.receive(self.entity, self.chance.randint(1, 5), 0.4):
            deed = self.chosen(complete=88, abandon=8, nothing=4)
            if deed != "nothing":
                self.settle(taken, Gesture[deed.upper()])


class Deleter(Worker):
    """Receives and deletes."""

    ENTITY = DELETED

    def turn(self) -> None:
        taken = self.client.receive(self.entity, self.chance.randint(1, 4), 0.4, way=Way.DELETE)
        self._around.load[self.entity] -= len(taken)


class SessionSender(Worker):
    ENTITY = SESSIONS

    def turn(self) -> None:
        if not self.is_ahead():
            amount = self.chance.choice((1, 1, 3))
            self.sent(self.client.send(self.entity, amount, session=self.chance.choice(SESSION_IDS)))


class SessionReceiver(Worker):
    """Takes a session, works in it for a while, and closes it or lets it go."""

    ENTITY = SESSIONS

    def turn(self) -> None:
        wanted = self.chance.choice(SESSION_IDS) if self.chance.random() < 0.3 else None
        try:
            held = self.client.accept(self.entity, wanted, 1.0)
        except LinkClosed:
            return  # it is held by another, or there is none
        deferred: deque[int] = deque()
        self.client.call_session(held, "get")
        for _ in range(self.chance.randint(1, 6)):
            if self._around.stopped.is_set():
                break
            self._work(held, deferred)
            if self.chance.random() < 0.3:
                self.client.call_session(held, "set", self.client.new_id() if self.chance.random() < 0.9 else None)
            if self.chance.random() < 0.2:
                self.client.call_session(held, "renew")
        if self.chance.random() < 0.8:
            held.receiver.close()
        else:
            self.client.drop()

    def _work(self, held: HeldSession, deferred: deque[int]) -> None:
        for taken in self.client.receive_of(held, self.chance.randint(1, 5), 0.3):
            deed = self.chosen(complete=80, abandon=8, defer=4, nothing=8)
            if deed != "nothing":
                settlement = self.settle(taken, Gesture[deed.upper()])
                if settlement.gesture is Gesture.DEFER and settlement.outcome is Outcome.OK:
                    deferred.append(taken.delivery.number)
        if deferred and self.chance.random() < 0.7:
            for taken in self.client.fetch(self.entity, [deferred.popleft()], held):
                self.settle(taken, Gesture.COMPLETE)


class Accountant(Worker):
    """Takes an order and sends invoices for it, in a transaction."""

    ENTITY = ORDERS

    def turn(self) -> None:
        client = self.client
        for taken in client.receive(self.entity, self.chance.randint(1, 2), 0.4):
            name, id = client.new_id(), client.declare()
            parts = self.chance.randint(1, 3)
            # It belongs to the first entity that it touches; the other way round it is refused, and leaves nothing.
            settles_first = self.chance.random() < 0.9
            if settles_first:
                client.settle(taken, Gesture.COMPLETE, name, id)
            for _ in range(parts):
                client.send(INVOICES, self.chance.choice((1, 1, 2)), transaction=name, transaction_id=id)
            if not settles_first:
                client.settle(taken, Gesture.COMPLETE, name, id)
            end = self.chosen(commit=80, rollback=14, leave=6)
            if end == "leave":
                client.drop()
                return
            discharge = client.discharge(name, id, commit=end == "commit")
            if discharge.commit and discharge.outcome is Outcome.OK:
                self._around.load[self.entity] -= 1
                self._around.load[INVOICES] += parts


class Scheduler(Worker):
    """Schedules messages for soon, in both ways, and takes some back."""

    ENTITY = SCHEDULED
    PACE = 0.15

    def turn(self) -> None:
        if self.is_ahead():
            return
        due = self.broker_now() + self.chance.randint(300, 6000)
        amount = self.chance.randint(1, 3)
        if self.chance.random() < 0.4:
            self.sent(self.client.send(self.entity, amount, due=due))
            return
        send = self.client.schedule(self.entity, amount, due)
        self.sent(send)
        if send.numbers and self.chance.random() < 0.25:
            self._around.stopped.wait(self.chance.choice((0.0, 0.2, 1.0)))
            self.client.cancel(send)
            self._around.load[self.entity] -= amount


class Repeater(Worker):
    """Sends messages under ids that it has used before."""

    ENTITY = UNIQUE
    KEYS: ClassVar[int] = 40
    AN_ERA: ClassVar[int] = 300

    def __init__(self, around: Surroundings, name: str) -> None:
        super().__init__(around, name)
        self._turns = 0

    def turn(self) -> None:
        if not self.is_ahead():
            # The same keys for all who do this, and new ones as time goes by.
            self._turns += 1
            era = self._turns // self.AN_ERA - self.chance.randint(0, 1)
            send = self.client.send(self.entity, key=f"key-{era}-{self.chance.randrange(self.KEYS)}")
            if self.chance.random() < 0.2:  # about as many as are kept
                self.sent(send)


class Claimer(Worker):
    """Claims, reads, and removes or releases: all or some at a time. Knows after a failure what it had claimed."""

    def __init__(self, around: Surroundings, name: str, entity: str) -> None:
        super().__init__(around, name, entity)
        self._owner = UUID(int=self.chance.getrandbits(128))
        self._asked: tuple[UUID, int] | None = None
        """A request that was not answered: to be repeated."""
        self._open: dict[str, list[int]] = {}
        """Numbers of claims, first and last in turn."""

    def turn(self) -> None:
        deed = self.chosen(claim=45, end=45, list=10)
        if self._asked is not None or (deed == "claim" and len(self._open) < 3) or not self._open:
            self._claim()
        elif deed == "list":
            claiming.list_claims(self.client, self.entity, self.name)
        else:
            self._end(self.chance.choice(list(self._open)))

    def _claim(self) -> None:
        if self._asked is None:
            self._asked = UUID(int=self.chance.getrandbits(128)), self.chance.choice((1, 5, 20))
        id, count = self._asked
        claim = claiming.claim(self.client, self.entity, self.name, self._owner, id, count, wait_ms=400)
        self._asked = None
        if claim.numbers:
            self._open[claim.id] = list(claim.numbers)

    def _end(self, id: str) -> None:
        deliveries = claiming.read(self.client, self.entity, id, self._open[id])
        deed = self.chosen(remove=65, remove_some=15, release=15, nothing=5)
        if deed == "nothing":
            return
        some: list[int] = []
        left = self._open.pop(id)  # if it is not answered, nobody knows what is left; that is for the end of the run
        if deed == "remove_some":
            at = 2 * self.chance.randrange(len(left) // 2)
            some, left = left[at : at + 2], left[:at] + left[at + 2 :]
            deliveries = [each for each in deliveries if some[0] <= each.number <= some[1]]
        gesture = Gesture.RELEASE if deed == "release" else Gesture.COMPLETE
        ended = claiming.end(self.client, self.entity, self.name, id, gesture, deliveries, some)
        if ended.outcome is Outcome.NO:
            self._open[id] = sorted([*some, *left])
            return
        if gesture is Gesture.COMPLETE:
            self._around.load[self.entity] -= len(deliveries)
        if some and left:
            self._open[id] = left


def crew(around: Surroundings) -> list[Worker]:
    """All who work in a run."""
    return [
        Sender(around, "plain-sender-1", PLAIN),
        Sender(around, "plain-sender-2", PLAIN),
        PlainReceiver(around, "plain-receiver-1"),
        PlainReceiver(around, "plain-receiver-2"),
        PlainReceiver(around, "plain-receiver-3", credit=5),
        Sender(around, "deleted-sender", DELETED),
        Deleter(around, "deleter"),
        SessionSender(around, "session-sender-1"),
        SessionSender(around, "session-sender-2"),
        SessionReceiver(around, "session-receiver-1"),
        SessionReceiver(around, "session-receiver-2"),
        SessionReceiver(around, "session-receiver-3"),
        Sender(around, "order-sender", ORDERS),
        Accountant(around, "accountant-1"),
        Accountant(around, "accountant-2"),
        Completer(around, "invoice-receiver", INVOICES),
        Scheduler(around, "scheduler"),
        Completer(around, "scheduled-receiver", SCHEDULED),
        Repeater(around, "repeater-1"),
        Repeater(around, "repeater-2"),
        Completer(around, "unique-receiver", UNIQUE),
        Sender(around, "claimed-sender", CLAIMED),
        Claimer(around, "claimer-1", CLAIMED),
        Claimer(around, "claimer-2", CLAIMED),
        Completer(around, "claimed-receiver", CLAIMED),
        SessionSender(around, "claimed-session-sender", CLAIMED_SESSIONS),
        Claimer(around, "claimer-3", CLAIMED_SESSIONS),
        Claimer(around, "claimer-4", CLAIMED_SESSIONS),
        Sender(around, "news-sender", TOPIC),
        Completer(around, "first-receiver", SUBSCRIPTIONS[0]),
        Completer(around, "second-receiver", SUBSCRIPTIONS[1]),
    ]
