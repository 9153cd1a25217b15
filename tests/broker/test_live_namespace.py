"""Whatever happens in a namespace that changes while it works: each message is where it should be, once.

Messages come to a topic with all kinds of subscriptions, directly and through a queue that forwards to it. Meanwhile
other entities come and go, and the store is slow, late, and sometimes refuses.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from broker.windows import check_windows
from broker.world import (
    DAY,
    MINUTE,
    SECOND,
    FlakyStore,
    Receiver,
    SessionReceiver,
    World,
    body,
    incoming,
    session_queue,
    sql,
    subscription,
    topic,
)
from peeklock.broker.errors import BrokerError
from peeklock.broker.locks import Lock
from peeklock.broker.session_queue import SessionQueue
from peeklock.broker.transactions import Scope, Transactions
from peeklock.broker.window_budget import Budget
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.names import DefinitionError
from peeklock.entities.settings import PROFILES, Status
from peeklock.store.base import StoreError

HELD = ("held", "held_outcomes", "held_answers")
SETTLEMENTS = ("complete", "abandon", "defer", "dead_letter", "release")
SESSIONS = ("x", "y")
LONG = "." * 400
"""A suffix that makes a body long enough to be shared."""


def parts(*paths: str) -> tuple[str, ...]:
    suffixes = ("", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue")
    return tuple(f"{path}{suffix}" for path in paths for suffix in suffixes)


GROUPS = {
    "all": parts("t/Subscriptions/all"),
    "reds": parts("t/Subscriptions/reds"),
    "s": parts("t/Subscriptions/s"),
    "forwarded": parts("t/Subscriptions/forwards", "sink", "letters"),
}
"""Groups of entities: each group has one copy of a message."""
SOURCE = parts("q")
"""The entities of a message that has not reached the topic yet."""
RECEIVED = (
    "t/Subscriptions/all",
    "t/Subscriptions/reds",
    "t/Subscriptions/all/$DeadLetterQueue",
    "t/Subscriptions/forwards/$Transfer/$DeadLetterQueue",
    "sink",
    "letters",
    "q/$Transfer/$DeadLetterQueue",
)
TOPIC = {"requires_duplicate_detection": True, "duplicate_detection_window_ms": 7 * DAY}

happens = rule(chance=st.randoms(use_true_random=True))


class LiveNamespace(RuleBasedStateMachine):
    """Clients and administrators that do what they like."""

    def __init__(self) -> None:
        super().__init__()
        self.store = FlakyStore()
        self.world = World(
            topic(
                "t",
                subscription("all", max_delivery_count=3),
                subscription("reds", sql("r", "colour = 'red'"), dead_lettering_on_message_expiration=True),
                subscription("s", requires_session=True, max_delivery_count=3),
                subscription("forwards", forward_to="sink"),
                **TOPIC,
            ),
            QueueDefinition(name="q", forward_to="t"),
            QueueDefinition(name="sink", max_delivery_count=2, forward_dead_lettered_messages_to="letters"),
            QueueDefinition(name="letters"),
            store=self.store,
            profile=PROFILES["unlimited"],
        )
        self.outcomes: dict[tuple[str, str], list[BrokerError | None]] = {}
        """The outcomes of all attempts by body and destination."""
        self.gone: set[tuple[str, str]] = set()
        """The groups and bodies of messages that were completed, or received and deleted."""
        self._begin()

    def _begin(self) -> None:
        self.receivers: list[tuple[str, Receiver]] = []
        self.holders: list[SessionReceiver] = []
        namespace = self.world.namespace
        self.transactions = Transactions(namespace.journal, namespace.agenda)
        self.open: list[tuple[bytes, Any]] = []

    # --- sending ---

    def _message(self, chance: Random) -> tuple[str, Any]:
        """Return a new message, or one that was sent before."""
        texts = [text for text, _ in self.outcomes]
        if texts and chance.random() < 0.2:
            text = chance.choice(texts[-10:])
        else:
            text = f"{chance.choice(('red', 'blue'))}-{len(texts)}-" + chance.choice(("", LONG))
        at = self.world.clock() + chance.choice((SECOND, MINUTE)) if chance.random() < 0.2 else None
        colour = {"colour": text.partition("-")[0]}
        # The same id each time, and a session that follows from it.
        session = SESSIONS[len(text) % 2]
        return text, incoming(text, session_id=session, at=at, application_properties=colour)

    def _on_sent(self, to: str, texts: list[str]) -> Any:
        lists = [self.outcomes.setdefault((text, to), []) for text in texts]

        def outcome(error: BrokerError | None) -> None:
            for each in lists:
                each.append(error)

        return outcome

    @happens
    def send(self, chance: Random) -> None:
        to = chance.choice(("t", "t", "q"))
        made = [self._message(chance) for _ in range(chance.randrange(1, 4))]
        with suppress(BrokerError):
            container = self.world.namespace.entity(to)
            container.send([message for _, message in made], self._on_sent(to, [text for text, _ in made]))
        self.world.run()

    @happens
    def send_to_what_comes_and_goes(self, chance: Random) -> None:
        with suppress(BrokerError):
            messages = [incoming(f"other-{chance.randrange(1000)}{LONG}", session_id=chance.choice(SESSIONS))]
            self.world.namespace.entity(chance.choice(("x", "y", "u"))).send(messages, lambda error: None)
        self.world.run()

    @happens
    def work_in_a_transaction(self, chance: Random) -> None:
        id = self.transactions.declare()
        text, message = self._message(chance)
        with suppress(BrokerError):
            self.transactions.get(id).send(self.world.topic(), [message], Scope("t", self))
            self.open.append((id, self._on_sent("t", [text])))

    @happens
    def discharge(self, chance: Random) -> None:
        if self.open:
            id, on_sent = self.open.pop(chance.randrange(len(self.open)))
            fail = chance.random() < 0.3
            with suppress(BrokerError):
                self.transactions.discharge(id, fail=fail, done=(lambda error: None) if fail else on_sent)
            self.world.run()

    # --- receiving ---

    @happens
    def receive(self, chance: Random) -> None:
        path = chance.choice((*RECEIVED, "x"))
        with suppress(BrokerError):
            queue = self.world.queue(path)
            if not isinstance(queue, SessionQueue):
                made = Receiver(self.world, queue, chance.randrange(1, 6), deletes=chance.random() < 0.2)
                self.receivers.append((path, made))

    @happens
    def accept(self, chance: Random) -> None:
        with suppress(BrokerError):
            path = chance.choice(("t/Subscriptions/s", "y"))
            made = SessionReceiver(self.world, chance.choice((None, *SESSIONS)), path=path, time_out=5 * SECOND)
            self.holders.append(made)

    @happens
    def close(self, chance: Random) -> None:
        if self.holders:
            chance.choice(self.holders[-3:]).close()
        if self.receivers:
            _, receiver = chance.choice(self.receivers)
            receiver._queue.leave(receiver)
            receiver.credit = 0

    @happens
    def settle(self, chance: Random) -> None:
        found = [(receiver._queue, lock) for _, receiver in self.receivers for lock in receiver.locks]
        found += [(holder._queue, lock) for holder in self.holders for lock in holder.locks]
        if not found:
            return
        queue, lock = chance.choice(found[-30:])
        how = chance.choice(SETTLEMENTS)
        with suppress(BrokerError):
            if how == "release":
                queue.settlements.release(lock)
            elif how == "complete":
                queue.settlements.complete(lock, lambda error: self._completed(queue.path, lock, error))
            else:
                getattr(queue.settlements, how)(lock, lambda error: None, properties={"how": how})
        self.world.run()

    def _completed(self, path: str, lock: Lock, error: BrokerError | None) -> None:
        if error is None:
            self._mark_gone(path, body(lock.message))

    def _mark_gone(self, path: str, text: str) -> None:
        for group, paths in (*GROUPS.items(), ("q", SOURCE)):
            if path in paths:
                self.gone.add((group, text))

    # --- changing ---

    @happens
    def create(self, chance: Random) -> None:
        administration = self.world.administration
        lists = [
            (administration.create_queue, (QueueDefinition(name="x"),)),
            (administration.create_queue, (QueueDefinition(name="x", forward_to="letters"),)),
            (administration.create_queue, (session_queue("y"),)),
            (administration.create_topic, (topic("u"),)),
            (administration.create_subscription, ("t", subscription("new", sql("r", "colour = 'blue'")))),
            (administration.create_subscription, ("u", subscription("new", forward_to="sink", requires_session=False))),
            (administration.create_subscription, ("u", subscription("s", requires_session=True))),
        ]
        self._change(*chance.choice(lists))

    @happens
    def delete(self, chance: Random) -> None:
        administration = self.world.administration
        lists = [
            (administration.delete_queue, ("x",)),
            (administration.delete_queue, ("y",)),
            (administration.delete_topic, ("u",)),
            (administration.delete_subscription, ("t", "new")),
            (administration.delete_subscription, ("u", "new")),
        ]
        self._change(*chance.choice(lists))

    @happens
    def update(self, chance: Random) -> None:
        administration = self.world.administration
        status = chance.choice((Status.ACTIVE, Status.ACTIVE, Status.SEND_DISABLED))
        sink = QueueDefinition(
            name="sink", status=status, max_delivery_count=2, forward_dead_lettered_messages_to="letters"
        )
        lists = [
            (administration.update_queue, (sink,)),
            (administration.update_topic, (topic("t", status=status, **TOPIC),)),
            (administration.update_queue, (QueueDefinition(name="q", forward_to=chance.choice((None, "t"))),)),
            (administration.create_rule, ("t", "reds", sql("more", "colour = 'red' AND 1=1"))),
            (administration.delete_rule, ("t", "reds", "more")),
            (administration.update_rule, ("t", "new", sql("r", "colour = 'red'"))),
        ]
        self._change(*chance.choice(lists))

    def _change(self, change: Any, arguments: tuple[Any, ...]) -> None:
        with suppress(BrokerError, DefinitionError):
            change(*arguments, lambda error: None)
        self.world.run()

    # --- time and the store ---

    @happens
    def advance(self, chance: Random) -> None:
        self.world.advance(chance.choice((1, SECOND, SECOND, 2 * SECOND, 10 * SECOND, MINUTE)))

    @happens
    def hold(self, chance: Random) -> None:
        what = chance.choice(HELD)
        if getattr(self.store, what) is None:
            setattr(self.store, what, [])

    @happens
    def release(self, chance: Random) -> None:
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
        refuses = chance.random() < 0.3
        self.store.fails = lambda changes: StoreError("not now") if refuses else None
        self.store.fails_to_read = chance.random() < 0.1

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
        self.world = self.world.restarted()
        self._begin()
        self._check()

    # --- what must hold ---

    def _come_to_rest(self) -> None:
        """The store does all it was asked for, and what follows from that."""
        self.store.fails = lambda changes: None
        self.store.fails_to_read = False
        for _ in range(5):
            while any(getattr(self.store, what) is not None for what in HELD):
                self.store.release_commits()
                self.store.release_outcomes()
                self.store.release_answers()
                self.world.run()
            self.world.advance(SECOND)
        for path, receiver in self.receivers:
            if receiver.deletes:
                for message in receiver.got:
                    self._mark_gone(path, body(message))

    def _check(self) -> None:
        self.world.check()
        check_windows(self.world)
        there = {group: self._bodies(paths) for group, paths in GROUPS.items()}
        in_source = self._bodies(SOURCE)
        waiting = Counter(body(message) for message in self.world.stored("t"))
        sent = {text for text, _ in self.outcomes}
        for text in sent:
            taken = {to for to in ("t", "q") if None in self.outcomes.get((text, to), ())}
            is_unsure = any(
                error is not None and "repetition" in str(error)
                for to in ("t", "q")
                for error in self.outcomes.get((text, to), ())
            )
            for group in GROUPS:
                if group == "reds" and not text.startswith("red"):
                    assert there[group][text] == 0, "not for it"
                    continue
                copies = there[group][text] + waiting[text] + ((group, text) in self.gone)
                if "t" in taken:
                    # The attempt that was remembered may be the one that came through the queue, and waits there.
                    assert copies == 1, f"{copies} of {text} in {group}"
                elif "q" in taken:
                    assert copies <= 1, f"{copies} of {text} in {group}"
                    left = in_source[text] + (("q", text) in self.gone)
                    assert copies + left >= 1, f"{text} is lost"
                elif is_unsure:
                    # Another of its batch repeated one that was on its way and not stored: to be sent again.
                    assert copies <= 1, f"{copies} of {text} in {group}"
                else:
                    assert copies == 0, f"{text} was refused and is in {group}"
            if not taken:
                assert in_source[text] == 0, f"{text} was refused and is in the source"

    def _bodies(self, paths: tuple[str, ...]) -> Counter[str]:
        return Counter(body(message) for path in paths for message in self.world.stored(path))


@pytest.fixture(autouse=True, params=[128 * 1024 * 1024, 2000])
def small_windows_and_batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """And memory for all that waits, or for a few messages."""
    monkeypatch.setattr("peeklock.broker.namespace.Budget", lambda: Budget(request.param))
    monkeypatch.setattr("peeklock.broker.paging.LEAST_PAGE_BYTES", 30)
    for name, value in {"paging.PAGE_MESSAGES": 3, "paging.LOW_MESSAGES": 2, "backlog.WINDOW_MESSAGES": 5}.items():
        monkeypatch.setattr(f"peeklock.broker.{name}", value)
    monkeypatch.setattr("peeklock.broker.timetable.BATCH", 3)
    monkeypatch.setattr("peeklock.broker.forwarding.MAX_UNDER_WAY", 2)


def test_after_a_few_random_operations_each_message_is_in_its_place() -> None:
    bounds = settings(max_examples=20, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(LiveNamespace, settings=bounds)


@pytest.mark.parametrize("seed", range(15))
def test_after_many_random_operations_each_message_is_in_its_place(seed: int) -> None:
    """Longer than the machine would go on by itself, with all that can happen about equally often."""
    chance = Random(seed)
    names = [name for name, member in vars(LiveNamespace).items() if hasattr(member, "hypothesis_stateful_rule")]
    assert len(names) > 15
    machine = LiveNamespace()
    for _ in range(400):
        getattr(machine, chance.choice(names))(chance)
    machine.teardown()
