"""Random operations in random order: counters equal those of the store, and no message is lost or duplicated."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from broker.windows import check_windows
from broker.world import (
    MINUTE,
    SECOND,
    BodySelector,
    Consumer,
    FlakyStore,
    Receiver,
    SelectingReceiver,
    SessionReceiver,
    World,
    body,
    incoming,
    session_queue,
    settlement,
)
from peeklock.amqp.message import Header
from peeklock.broker.claims import Request
from peeklock.broker.errors import BrokerError
from peeklock.broker.locks import Lock
from peeklock.broker.transactions import Scope, Transactions
from peeklock.broker.window_budget import Budget
from peeklock.entities.definitions import QueueDefinition
from peeklock.store.base import DEFERRED, MAX_NUMBER, StoredMessage, StoreError, StoreFull

PATHS = ("q", "s", "q/$DeadLetterQueue", "s/$DeadLetterQueue")
SESSIONS = ("x", "y", "z")
NAMES = ("a", "b")
"""The names of claims."""
SETTLEMENTS = ("complete", "abandon", "defer", "dead_letter", "release")
HELD = ("held", "held_outcomes", "held_answers")

happens = rule(chance=st.randoms(use_true_random=True))
"""Marks an operation of the state machine. Its details are random."""


class Broker(RuleBasedStateMachine):
    """Random operations of clients, on a store that is slow, answers late, and sometimes refuses."""

    orders = False
    """Whether the queue `q` delivers by priority."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FlakyStore()
        queue = QueueDefinition(name="q", max_delivery_count=3, dead_lettering_on_message_expiration=True)
        self.world = World(
            replace(queue, order_by_priority=self.orders),
            session_queue("s", max_delivery_count=3, lock_duration_ms=30 * SECOND),
            store=self.store,
        )
        self.sent: dict[str, BrokerError | None] = {}
        """The outcomes of sends by body, if they are known. None is success."""
        self.expirable: set[str] = set()
        self.gone: set[str] = set()
        """Bodies that were completed, cancelled, or received and deleted."""
        self.deleted = 0
        """The number of messages removed by batch deletions, which do not return their bodies."""
        self.claims_made = 0
        self.states: dict[str, bytes] = {}
        """By session: what was set last."""
        self.named: dict[tuple[str, int], str] = {}
        """The bodies of all delivered messages by sequence number."""
        self._begin()

    def _begin(self) -> None:
        """Connect the clients after a start."""
        self.receivers: list[tuple[str, Receiver | SelectingReceiver]] = []
        self.holders: list[SessionReceiver] = []
        namespace = self.world.namespace
        self.transactions = Transactions(namespace.journal, namespace.agenda)
        self.open: list[tuple[bytes, list[str], list[str]]] = []
        """Open transactions, with the bodies that they send and complete."""
        self.fetched: list[tuple[str, Lock]] = []
        self.scheduled: list[tuple[str, int, str]] = []

    # --- sending ---

    def _new(self, to: str, session: str, ttl: int | None, after: int | None) -> tuple[str, Any]:
        text = f"{to}{len(self.sent)}"
        at = None if after is None else self.world.clock() + after
        self.sent[text] = BrokerError("not yet")
        if ttl is not None:
            self.expirable.add(text)
        fields = {"header": Header(priority=priority(text))} if self.orders else {}
        return text, incoming(text, session_id=session if to == "s" else None, ttl=ttl, at=at, **fields)

    def _sent(self, texts: list[str]) -> Any:
        def outcome(error: BrokerError | None) -> None:
            for text in texts:
                self.sent[text] = error

        return outcome

    @happens
    def send(self, chance: Random) -> None:
        to = chance.choice(("q", "s"))
        ttl = chance.choice((None, None, SECOND, 20 * SECOND))
        after = chance.choice((None, None, None, SECOND, 20 * SECOND))
        made = [self._new(to, chance.choice(SESSIONS), ttl, after) for _ in range(chance.randrange(1, 6))]
        queue = self.world.namespace.queue(to)
        admitted = queue.admit([message for _, message in made])
        numbers = queue.number(admitted)
        if after is not None:
            self.scheduled += [(to, number, text) for number, (text, _) in zip(numbers, made, strict=True)]
        queue.stage_sends(self.world.namespace.journal.sends, admitted, self._sent([text for text, _ in made]))
        self.world.run()

    @happens
    def cancel(self, chance: Random) -> None:
        if not self.scheduled:
            return
        to, number, text = chance.choice(self.scheduled[-10:])

        def outcome(error: BrokerError | None) -> None:
            if error is None:
                self.gone.add(text)

        self.world.namespace.queue(to).scheduled.cancel([number], outcome)
        self.world.run()

    # --- receiving ---

    @happens
    def receive(self, chance: Random) -> None:
        to = chance.choice(("q", "q", "q/$DeadLetterQueue", "s/$DeadLetterQueue"))
        self.receivers.append((to, Receiver(self.world, self.world.queue(to), chance.randrange(1, 7))))

    @happens
    def receive_and_delete(self, chance: Random) -> None:
        to = chance.choice(("q", "q", "q/$DeadLetterQueue"))
        self.receivers.append((to, Receiver(self.world, self.world.queue(to), chance.randrange(1, 4), deletes=True)))

    @happens
    def select(self, chance: Random) -> None:
        to = chance.choice(("q", "q", "q/$DeadLetterQueue"))
        parity, cost = chance.randrange(3), chance.choice((1, 100))
        selector = BodySelector(lambda text: int(text[1:]) % 3 == parity, cost)
        queue, deletes = self.world.queue(to), chance.random() < 0.3
        self.receivers.append((to, SelectingReceiver(self.world, queue, selector, chance.randrange(1, 7), deletes)))

    @happens
    def receive_more(self, chance: Random) -> None:
        if self.receivers:
            _, receiver = chance.choice(self.receivers[-4:])
            receiver.more(chance.randrange(1, 3))

    @happens
    def leave(self, chance: Random) -> None:
        if self.receivers:
            _, receiver = chance.choice(self.receivers)
            receiver.leave()
            receiver.credit = 0

    @happens
    def accept(self, chance: Random) -> None:
        id = chance.choice((None, None, *SESSIONS))
        credit, deletes = chance.randrange(7), chance.random() < 0.3
        selector = self._session_selector(chance)
        with suppress(BrokerError):
            self.holders.append(
                SessionReceiver(self.world, id, credit=credit, deletes=deletes, time_out=5 * SECOND, selector=selector)
            )

    @happens
    def close(self, chance: Random) -> None:
        if self.holders:
            chance.choice(self.holders[-4:]).close()

    @happens
    def go_on(self, chance: Random) -> None:
        holder = chance.choice(self.holders[-4:]) if self.holders else None
        if holder is None or holder.session is None:
            return
        if chance.random() < 0.5:
            with suppress(BrokerError):
                queue = self.world.sessions()
                queue.sessions.renew(queue.sessions.held(holder.session.id))
        holder.more(2)

    @happens
    def set_state(self, chance: Random) -> None:
        id, state = chance.choice(SESSIONS), chance.randbytes(8)

        def outcome(error: BrokerError | None) -> None:
            if error is None:
                self.states[id] = state

        with suppress(BrokerError):
            self.world.sessions().states.set(id, state, outcome)
        self.world.run()

    # --- settling ---

    def _lock(self, chance: Random) -> tuple[str, Lock] | None:
        """Choose a lock that a receiver got, most likely one that is still held."""
        found = [(to, lock) for to, receiver in self.receivers for lock in receiver.locks]
        found += [("s", lock) for holder in self.holders for lock in holder.locks]
        found += self.fetched
        if chance.random() < 0.9:
            held = self.world.namespace.queue
            found = [(to, lock) for to, lock in found if held(to).locks.holds(lock)]
        return chance.choice(found) if found else None

    @happens
    def settle(self, chance: Random) -> None:
        how = chance.choice(SETTLEMENTS)
        for _ in range(chance.randrange(1, 4)):
            chosen = self._lock(chance)
            if chosen is None:
                break
            to, lock = chosen
            queue = self.world.namespace.queue(to)
            text = body(lock.message)

            def outcome(error: BrokerError | None, text: str = text) -> None:
                if error is None and how == "complete":
                    self.gone.add(text)

            with suppress(BrokerError):
                if how == "release":
                    queue.settlements.release(lock)
                elif how == "complete":
                    queue.settlements.complete(lock, outcome)
                else:
                    getattr(queue.settlements, how)(lock, outcome, properties={"how": how})
        self.world.run()

    @happens
    def renew(self, chance: Random) -> None:
        chosen = self._lock(chance)
        if chosen is not None:
            to, lock = chosen
            with suppress(BrokerError):
                queue = self.world.namespace.queue(to)
                queue.renew(queue.locks.find([lock.tag]))

    # --- by number ---

    @happens
    def fetch(self, chance: Random) -> None:
        to = chance.choice(PATHS)
        deferred = [message for message in self._stored(to) if message.state == DEFERRED]
        if not deferred:
            return
        wanted = chance.sample(deferred, min(len(deferred), chance.randrange(1, 3)))

        def outcome(answer: Any) -> None:
            if isinstance(answer, BrokerError):
                return
            for message, lock in answer:
                self._name(to, message)
                if lock is None:
                    self.gone.add(body(message))
                else:
                    self.fetched.append((to, lock))

        numbers = [message.sequence_number for message in wanted]
        deletes = chance.random() < 0.3
        self.world.namespace.queue(to).deferred.receive(numbers, wanted[0].session_id, deletes, outcome)
        self.world.run()

    @happens
    def delete(self, chance: Random) -> None:
        to, limit = chance.choice(("q", "s")), chance.randrange(1, 5)

        def outcome(answer: int | BrokerError) -> None:
            if isinstance(answer, int):
                assert answer <= limit
                self.deleted += answer

        session = chance.choice(SESSIONS) if to == "s" else None
        self.world.namespace.queue(to).deletion.delete_before(self.world.clock() + 1, limit, session, outcome)
        self.world.run()

    @happens
    def peek(self, chance: Random) -> None:
        def outcome(answer: Any) -> None:
            if not isinstance(answer, BrokerError):
                numbers = [message.sequence_number for message in answer]
                assert numbers == sorted(set(numbers))

        self.world.namespace.queue(chance.choice(PATHS)).peek(chance.randrange(50), 3, None, outcome)

    # --- claims ---

    @happens
    def claim(self, chance: Random) -> None:
        to = chance.choice(PATHS)
        self.claims_made += 1
        request = Request(
            self.claims_made.to_bytes(16),
            chance.choice(NAMES),
            count=chance.choice((1, 3, 10, 1000)),
            max_bytes=chance.choice((1, 200, 1 << 40)),
            through=chance.choice((20, MAX_NUMBER)),
            sessions=chance.randrange(1, 4),
            wait_ms=chance.choice((0, 0, SECOND)),
            linger_ms=chance.choice((0, 0, SECOND)),
            done=lambda outcome: None,
        )
        claims = self.world.queue(to).claims
        with suppress(BrokerError):
            claims.claim(request, bytes(16), self)
        if chance.random() < 0.1:
            claims.remove_holder(self)
        self.world.run()

    @happens
    def end_claim(self, chance: Random) -> None:
        to = chance.choice(PATHS)
        claims = self.world.queue(to).claims
        found = list(claims.of(None))
        if not found:
            return
        claim = chance.choice(found)
        bodies = {message.sequence_number: body(message) for message in self._stored(to)}
        numbers = sorted(number for run in claim.runs for number in range(run.first, run.last + 1))
        spans = None
        if chance.random() < 0.6:
            numbers = sorted(chance.sample(numbers, chance.randrange(len(numbers) + 1)))
            spans = [(number, number) for number in numbers]

        def removed(answer: int | BrokerError | None) -> None:
            if isinstance(answer, int):
                texts = {bodies[number] for number in numbers if number in bodies}
                assert answer <= len(texts)
                if answer == len(texts):
                    self.gone.update(texts)
                else:
                    self.deleted += answer  # others were removed or released first

        if chance.random() < 0.5:
            claims.remove(claim.name, claim.id, spans, removed)
        else:
            claims.release(claim.name, claim.id, spans, lambda answer: None)
        self.world.run()

    # --- transactions ---

    @happens
    def work_in_a_transaction(self, chance: Random) -> None:
        id = self.transactions.declare()
        transaction = self.transactions.get(id)
        to = chance.choice(("q", "s"))
        texts: list[str] = []
        completed: list[str] = []
        for _ in range(chance.randrange(3)):
            text, message = self._new(to, chance.choice(SESSIONS), None, None)
            transaction.send(self.world.namespace.queue(to), [message], Scope(to, self))
            texts.append(text)
        for _ in range(chance.randrange(4)):
            chosen = self._lock(chance)
            if chosen is None:
                break
            where, lock = chosen
            queue = self.world.namespace.queue(where)
            how = chance.choice(SETTLEMENTS[:4])
            with suppress(BrokerError):
                transaction.settle(queue.settlements, [lock], settlement(how), Scope(to, self))
                if how == "complete":
                    completed.append(body(lock.message))
        self.open.append((id, texts, completed))

    @happens
    def discharge(self, chance: Random) -> None:
        if not self.open:
            return
        id, texts, completed = self.open.pop(chance.randrange(len(self.open)))
        fail = chance.random() < 0.3

        def outcome(error: BrokerError | None) -> None:
            if not fail:
                self._sent(texts)(error)
                if error is None:
                    self.gone.update(completed)

        with suppress(BrokerError):
            self.transactions.discharge(id, fail=fail, done=outcome)
        self.world.run()

    # --- time and the store ---

    @happens
    def advance(self, chance: Random) -> None:
        self.world.advance(chance.choice((1, 100, SECOND, SECOND, SECOND, 10 * SECOND, 30 * SECOND, MINUTE)))

    @happens
    def hold(self, chance: Random) -> None:
        what = chance.choice(HELD)
        if getattr(self.store, what) is None:
            setattr(self.store, what, [])

    @happens
    def release(self, chance: Random) -> None:
        """Release some held commits and answers, in order except for reads of different entities."""
        held = getattr(self.store, chance.choice(HELD))
        for _ in range(min(len(held or ()), chance.randrange(1, 4))):
            held.pop(0)()
            self.world.run()

    @happens
    def stop_holding(self, chance: Random) -> None:
        chance.choice((self.store.release_commits, self.store.release_outcomes, self.store.release_answers))()
        self.world.run()

    @happens
    def fail(self, chance: Random) -> None:
        self.store.fails = chance.choice(
            (
                lambda changes: None,
                lambda changes: None,
                lambda changes: StoreError("not now"),
                lambda changes: StoreError("a sync failed") if chance.random() < 0.3 else None,
                lambda changes: StoreFull("no room") if changes.appends or changes.rewrites else None,
                lambda changes: StoreFull("no room") if changes.appends and chance.random() < 0.5 else None,
            )
        )
        self.store.fails_to_read = chance.random() < 0.2

    @happens
    def restart(self, chance: Random) -> None:
        if chance.random() < 0.2:
            self._come_to_rest()
            self._check()
            self.world = self.world.restarted()
            self._begin()
            self._check()

    def teardown(self) -> None:
        self._come_to_rest()
        self._check()
        self._drain()

    # --- what must hold ---

    def _come_to_rest(self) -> None:
        """Let the store complete all requests, and all that follow from them."""
        self.store.fails = lambda changes: None
        self.store.fails_to_read = False
        self.world.run()
        while any(getattr(self.store, what) is not None for what in HELD):
            self.store.release_commits()
            self.store.release_outcomes()
            self.store.release_answers()
            self.world.run()
        for to, receiver in self.receivers:
            for message in receiver.got:
                self._name(to, message)
                if receiver.deletes:
                    self.gone.add(body(message))
        for holder in self.holders:
            for message in holder.got:
                self._name("s", message)
                if holder.deletes:
                    self.gone.add(body(message))

    def _name(self, to: str, message: StoredMessage) -> None:
        assert self.named.setdefault((to, message.sequence_number), body(message)) == body(message)

    def _stored(self, to: str) -> list[StoredMessage]:
        return self.world.stored(to)

    def _check(self) -> None:
        self.world.check()
        check_windows(self.world)
        self._check_bodies()
        for id, state in self.states.items():
            found: list[bytes | StoreError | None] = []
            self.store.read_session_state(self.world.sessions().id, id, found.append)
            assert found == [state], "the state that was set last"

    def _check_bodies(self) -> None:
        there = Counter(body(message) for to in PATHS for message in self._stored(to))
        assert set(there.values()) <= {1}, "a message is there twice"
        taken = {text for text, error in self.sent.items() if error is None}
        assert there.keys() <= taken, "a message is there that was refused"
        assert not there.keys() & self.gone, "a message that is gone is still there"
        lost = taken - there.keys() - self.gone - self.expirable
        assert len(lost) <= self.deleted, f"lost: {lost}"

    def _drain(self) -> None:
        """Check that all active messages can be received, each once."""
        for _, receiver in self.receivers:
            receiver.leave()
        for holder in self.holders:
            holder.close()
        for _ in range(4):
            self.world.advance(MINUTE)
        self._come_to_rest()
        self._release_claims()
        self._check()
        for to in PATHS:
            waiting = {body(message) for message in self._stored(to) if message.state != DEFERRED}
            got: list[str] = []
            if to == "s":
                while self.world.sessions().sessions._free:
                    holder = SessionReceiver(self.world, deletes=True)
                    numbers = holder.numbers
                    assert numbers == sorted(numbers)
                    got += holder.bodies
                    holder.close()
            else:
                selecting = SelectingReceiver(
                    self.world, self.world.queue(to), BodySelector(cost=100), deletes=to == "q"
                )
                assert sorted(selecting.bodies) == sorted(waiting)
                assert self._in_order(to, selecting)
                selecting.leave()
                for lock in selecting.locks:
                    self.world.queue(to).settlements.release(lock)
                if to == "q":
                    got = selecting.bodies
                else:
                    last = Receiver(self.world, self.world.queue(to), deletes=True)
                    assert self._in_order(to, last)
                    got = last.bodies
            assert sorted(got) == sorted(waiting)
        assert all(self.world.namespace.queue(to).counters.active == 0 for to in PATHS)

    def _release_claims(self) -> None:
        for to in PATHS:
            claims = self.world.queue(to).claims
            for claim in claims.of(None):
                released: list[int | BrokerError | None] = []
                claims.release(claim.name, claim.id, None, released.append)
                self.world.run()
                assert released == [claim.count] or not claim.parts
            assert not claims.of(None)
            assert not self.world.queue(to).counters.claimed
        for _ in range(4):
            self.world.advance(MINUTE)  # what had expired under a claim expires now

    def _session_selector(self, chance: Random) -> BodySelector | None:
        return None

    def _in_order(self, to: str, receiver: Consumer) -> bool:
        by_priority = self.orders and to == "q"
        places = [(-priority(body(each)) if by_priority else 0, each.sequence_number) for each in receiver.got]
        return places == sorted(places)


class OrderingBroker(Broker):
    """As `Broker`, with priorities and with selectors in sessions. The store never refuses a commit."""

    orders = True

    def _session_selector(self, chance: Random) -> BodySelector | None:
        parity = chance.randrange(3)
        return chance.choice((None, BodySelector(lambda text: int(text[1:]) % 3 == parity, chance.choice((1, 100)))))

    @happens
    def fail(self, chance: Random) -> None:
        self.store.fails_to_read = chance.random() < 0.2


def priority(text: str) -> int:
    return int(text[1:]) % 10


@pytest.fixture(autouse=True, params=[128 * 1024 * 1024, 2000])
def small_windows_and_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """And memory for all that waits, or for a few messages."""
    monkeypatch.setattr("peeklock.broker.namespace.Budget", lambda: Budget(request.param))
    monkeypatch.setattr("peeklock.broker.paging.LEAST_PAGE_BYTES", 30)
    for name, value in {"paging.PAGE_MESSAGES": 3, "paging.LOW_MESSAGES": 2, "backlog.WINDOW_MESSAGES": 5}.items():
        monkeypatch.setattr(f"peeklock.broker.{name}", value)
    monkeypatch.setattr("peeklock.broker.timetable.BATCH", 3)
    monkeypatch.setattr("peeklock.broker.return_log.MAX_RETURNS", 5)


@pytest.mark.parametrize("kind", [Broker, OrderingBroker])
def test_a_few_random_operations_lose_and_duplicate_no_message(kind: type[Broker]) -> None:
    bounds = settings(max_examples=30, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(kind, settings=bounds)


@pytest.mark.parametrize(
    ("kind", "seed"), [*((Broker, seed) for seed in range(20)), *((OrderingBroker, seed) for seed in range(8))]
)
def test_random_operations_lose_and_duplicate_no_message(kind: type[Broker], seed: int) -> None:
    """A longer run than the state machine makes by default, in which all operations are about equally frequent."""
    chance = Random(seed)
    names = [name for name, member in vars(Broker).items() if hasattr(member, "hypothesis_stateful_rule")]
    assert len(names) > 15
    broker = kind()
    for _ in range(400):
        getattr(broker, chance.choice(names))(chance)
    broker.teardown()
