"""The clients of a run: threads whose choices are determined by the run's seed and their name."""

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
from tools.chaos.history import Disposition, History, Outcome, Send, Settlement, Way, now

AHEAD: Final = 120
"""Unsettled messages of an entity, approximately, above which senders wait."""
SESSION_IDS: Final = tuple(f"s{number}" for number in range(6))


@dataclass
class RunContext:
    """State shared by the workers of a run."""

    address: str
    history: History
    seed: int
    offset: Callable[[], int]
    """Returns the milliseconds by which the broker's clock is ahead."""
    stopped: threading.Event = field(default_factory=threading.Event)
    load: Counter[str] = field(default_factory=Counter)
    """By entity, approximately: messages sent and not settled."""


class Worker(threading.Thread):
    """A thread that does one turn after the other until it is stopped. It connects again when its connection breaks."""

    ENTITY: ClassVar[str] = ""
    PACE: ClassVar[float] = 0.03
    """Seconds between turns, at most."""

    def __init__(self, context: RunContext, name: str, entity: str = "") -> None:
        super().__init__(name=name, daemon=True)
        self.entity = entity or self.ENTITY
        self.chance = Random(f"{context.seed}:{name}")
        self.failure: BaseException | None = None
        """An exception of the worker itself, not a fault of the broker."""
        self._context = context
        self.client = Client(name, context.address, context.history)

    def run(self) -> None:
        try:
            while not self._context.stopped.is_set():
                try:
                    self.turn()
                    self._context.stopped.wait(self.chance.uniform(0, self.PACE))
                except ClientError:
                    self.client.drop()
                    self._context.stopped.wait(self.chance.uniform(0.02, 0.15))
            self.client.drop()
        except BaseException as failure:
            self.failure = failure

    def turn(self) -> None:
        raise NotImplementedError  # abstract

    def chosen(self, **weights: int) -> str:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def broker_now(self) -> int:
        return int(now()) + self._context.offset()

    def sent(self, send: Send) -> None:
        if send.outcome is Outcome.OK:
            for entity in copies(self.entity):
                self._context.load[entity] += len(send.ids)

    def settle(self, taken: Taken, disposition: Disposition) -> Settlement:
        settlement = self.client.settle(taken, disposition)
        if disposition in (Disposition.COMPLETE, Disposition.DEAD_LETTER) and settlement.outcome is Outcome.OK:
            self._context.load[self.entity] -= 1
        return settlement

    def is_ahead(self) -> bool:
        if max(self._context.load[entity] for entity in copies(self.entity)) < AHEAD:
            return False
        self._context.stopped.wait(0.1)
        return True


class Sender(Worker):
    """Sends single messages and batches."""

    def turn(self) -> None:
        if not self.is_ahead():
            self.sent(self.client.send(self.entity, self.chance.choice((1, 1, 1, 2, 4))))


class PlainReceiver(Worker):
    """Settles messages in every way, or not at all; receives deferred messages by number."""

    ENTITY = PLAIN

    def __init__(self, context: RunContext, name: str, credit: int = 0) -> None:
        super().__init__(context, name)
        self._credit = credit
        self._deferred: deque[int] = deque()

    def turn(self) -> None:
        if self._deferred and self.chance.random() < 0.3:
            self._fetch()
            return
        for taken in self.client.receive(self.entity, self.chance.randint(1, 4), 0.4, credit=self._credit):
            action = self.chosen(complete=55, abandon=15, defer=12, dead_letter=5, renew=8, nothing=5)
            if action == "renew":
                self.client.renew(taken)
                self.settle(taken, Disposition.COMPLETE)
            elif action != "nothing":
                settlement = self.settle(taken, Disposition[action.upper()])
                if settlement.disposition is Disposition.DEFER and settlement.outcome is Outcome.OK:
                    self._deferred.append(taken.delivery.number)

    def _fetch(self) -> None:
        number = self._deferred.popleft()
        for taken in self.client.fetch(self.entity, [number]):
            action = self.chosen(complete=60, abandon=20, defer=10, nothing=10)
            if action != "nothing":
                self.settle(taken, Disposition[action.upper()])
            if action != "complete":
                self._deferred.append(number)


class Completer(Worker):
    """Receives messages and completes most of them."""

    def turn(self) -> None:
        for taken in self.client.receive(self.entity, self.chance.randint(1, 5), 0.4):
            action = self.chosen(complete=88, abandon=8, nothing=4)
            if action != "nothing":
                self.settle(taken, Disposition[action.upper()])


class Deleter(Worker):
    """Receives and deletes."""

    ENTITY = DELETED

    def turn(self) -> None:
        taken = self.client.receive(self.entity, self.chance.randint(1, 4), 0.4, way=Way.DELETE)
        self._context.load[self.entity] -= len(taken)


class SessionSender(Worker):
    ENTITY = SESSIONS

    def turn(self) -> None:
        if not self.is_ahead():
            amount = self.chance.choice((1, 1, 3))
            self.sent(self.client.send(self.entity, amount, session=self.chance.choice(SESSION_IDS)))


class SessionReceiver(Worker):
    """Accepts a session, works in it for a while, and closes its link or the whole connection."""

    ENTITY = SESSIONS

    def turn(self) -> None:
        wanted = self.chance.choice(SESSION_IDS) if self.chance.random() < 0.3 else None
        try:
            held = self.client.accept(self.entity, wanted, 1.0)
        except LinkClosed:
            return  # another client holds it, or there is none
        deferred: deque[int] = deque()
        self.client.call_session(held, "get")
        for _ in range(self.chance.randint(1, 6)):
            if self._context.stopped.is_set():
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
            action = self.chosen(complete=80, abandon=8, defer=4, nothing=8)
            if action != "nothing":
                settlement = self.settle(taken, Disposition[action.upper()])
                if settlement.disposition is Disposition.DEFER and settlement.outcome is Outcome.OK:
                    deferred.append(taken.delivery.number)
        if deferred and self.chance.random() < 0.7:
            for taken in self.client.fetch(self.entity, [deferred.popleft()], held):
                self.settle(taken, Disposition.COMPLETE)


class Accountant(Worker):
    """Completes an order and sends invoices for it, in one transaction."""

    ENTITY = ORDERS

    def turn(self) -> None:
        client = self.client
        for taken in client.receive(self.entity, self.chance.randint(1, 2), 0.4):
            name, id = client.new_id(), client.declare()
            parts = self.chance.randint(1, 3)
            # A transaction belongs to the first entity that it uses. If it sends first, the settlement is refused.
            settles_first = self.chance.random() < 0.9
            if settles_first:
                client.settle(taken, Disposition.COMPLETE, name, id)
            for _ in range(parts):
                client.send(INVOICES, self.chance.choice((1, 1, 2)), transaction=name, transaction_id=id)
            if not settles_first:
                client.settle(taken, Disposition.COMPLETE, name, id)
            end = self.chosen(commit=80, rollback=14, leave=6)
            if end == "leave":
                client.drop()
                return
            discharge = client.discharge(name, id, commit=end == "commit")
            if discharge.commit and discharge.outcome is Outcome.OK:
                self._context.load[self.entity] -= 1
                self._context.load[INVOICES] += parts


class Scheduler(Worker):
    """Schedules messages a few seconds ahead, in both ways, and cancels some."""

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
            self._context.stopped.wait(self.chance.choice((0.0, 0.2, 1.0)))
            self.client.cancel(send)
            self._context.load[self.entity] -= amount


class Repeater(Worker):
    """Sends messages with message ids that were used before."""

    ENTITY = UNIQUE
    KEYS: ClassVar[int] = 40
    ERA_TURNS: ClassVar[int] = 300
    """Turns after which the keys are replaced by new ones."""

    def __init__(self, context: RunContext, name: str) -> None:
        super().__init__(context, name)
        self._turns = 0

    def turn(self) -> None:
        if not self.is_ahead():
            # All repeaters use the same keys, and new ones from time to time.
            self._turns += 1
            era = self._turns // self.ERA_TURNS - self.chance.randint(0, 1)
            send = self.client.send(self.entity, key=f"key-{era}-{self.chance.randrange(self.KEYS)}")
            if self.chance.random() < 0.2:  # about this part is no duplicate, and is stored
                self.sent(send)


class Claimer(Worker):
    """Claims messages, reads them, and removes or releases all or some. It repeats a claim that was not answered."""

    def __init__(self, context: RunContext, name: str, entity: str) -> None:
        super().__init__(context, name, entity)
        self._owner = UUID(int=self.chance.getrandbits(128))
        self._asked: tuple[UUID, int] | None = None
        """The id and the count of a claim request without an answer, which is repeated."""
        self._open: dict[str, list[int]] = {}
        """By claim id: the ranges of its numbers, as alternating first and last numbers."""

    def turn(self) -> None:
        action = self.chosen(claim=45, end=45, list=10)
        if self._asked is not None or (action == "claim" and len(self._open) < 3) or not self._open:
            self._claim()
        elif action == "list":
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
        action = self.chosen(remove=65, remove_some=15, release=15, nothing=5)
        if action == "nothing":
            return
        some: list[int] = []
        left = self._open.pop(id)  # without an answer it is unknown what is left; the end of the run releases it
        if action == "remove_some":
            at = 2 * self.chance.randrange(len(left) // 2)
            some, left = left[at : at + 2], left[:at] + left[at + 2 :]
            deliveries = [each for each in deliveries if some[0] <= each.number <= some[1]]
        disposition = Disposition.RELEASE if action == "release" else Disposition.COMPLETE
        ended = claiming.end(self.client, self.entity, self.name, id, disposition, deliveries, some)
        if ended.outcome is Outcome.NO:
            self._open[id] = sorted([*some, *left])
            return
        if disposition is Disposition.COMPLETE:
            self._context.load[self.entity] -= len(deliveries)
        if some and left:
            self._open[id] = left


def all_workers(context: RunContext) -> list[Worker]:
    """Return the workers of a run."""
    return [
        Sender(context, "plain-sender-1", PLAIN),
        Sender(context, "plain-sender-2", PLAIN),
        PlainReceiver(context, "plain-receiver-1"),
        PlainReceiver(context, "plain-receiver-2"),
        PlainReceiver(context, "plain-receiver-3", credit=5),
        Sender(context, "deleted-sender", DELETED),
        Deleter(context, "deleter"),
        SessionSender(context, "session-sender-1"),
        SessionSender(context, "session-sender-2"),
        SessionReceiver(context, "session-receiver-1"),
        SessionReceiver(context, "session-receiver-2"),
        SessionReceiver(context, "session-receiver-3"),
        Sender(context, "order-sender", ORDERS),
        Accountant(context, "accountant-1"),
        Accountant(context, "accountant-2"),
        Completer(context, "invoice-receiver", INVOICES),
        Scheduler(context, "scheduler"),
        Completer(context, "scheduled-receiver", SCHEDULED),
        Repeater(context, "repeater-1"),
        Repeater(context, "repeater-2"),
        Completer(context, "unique-receiver", UNIQUE),
        Sender(context, "claimed-sender", CLAIMED),
        Claimer(context, "claimer-1", CLAIMED),
        Claimer(context, "claimer-2", CLAIMED),
        Completer(context, "claimed-receiver", CLAIMED),
        SessionSender(context, "claimed-session-sender", CLAIMED_SESSIONS),
        Claimer(context, "claimer-3", CLAIMED_SESSIONS),
        Claimer(context, "claimer-4", CLAIMED_SESSIONS),
        Sender(context, "news-sender", TOPIC),
        Completer(context, "first-receiver", SUBSCRIPTIONS[0]),
        Completer(context, "second-receiver", SUBSCRIPTIONS[1]),
    ]
