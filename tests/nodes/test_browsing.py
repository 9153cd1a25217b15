"""Browsing: a link with distribution mode copy gets messages without any effect on them."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import Receiver as Consumer
from broker.world import World, body, session_queue, topic
from nodes.wire import Wire, flow, frame
from peeklock.amqp.message import Message
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Detach,
    Disposition,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    Transfer,
)
from peeklock.amqp.types import Described, Symbol, ULong
from peeklock.entities.definitions import QueueDefinition
from peeklock.nodes import browsing

SESSION_FILTER = Symbol("com.microsoft:session-filter")
FIRST_NUMBER = Symbol("peeklock:from-sequence-number")
SELECTOR = Symbol("apache.org:selector-filter:string")
SETTLED, MIXED, UNSETTLED = 1, 2, 0


class Browsing:
    """A link that browses, with the broker's answer to its attach."""

    def __init__(
        self, world: World, path: str = "q", *, credit: int = 1000, mode: int = SETTLED, **fields: Any
    ) -> None:
        self.wire = Wire(world)
        self.world = world
        source = Source(address=path, **{"distribution_mode": "copy", **fields})
        self.handle = self.wire.attach(role=True, source=source, target=Target(address="here"), snd_settle_mode=mode)
        (self.attach,) = self.wire.take(Attach)
        self.granted = 0
        self.ids: list[int] = []
        if credit:
            self.grant(credit)

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Grant more credit."""
        self.granted += credit
        said = flow(self.handle, self.granted)
        said.drain = drain
        self.wire.send_bytes(frame(said))

    def messages(self) -> list[Message]:
        self.wire.read_output()
        found = list(self.wire.received(self.handle))
        self.ids += [id for id, _ in found]
        return [Message.decode(message) for _, message in found]

    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages()]

    @property
    def drained(self) -> list[Flow]:
        return [each for each in self.wire.take(Flow) if each.handle == self.handle and each.drain]


@pytest.fixture
def world() -> World:
    return World(QueueDefinition(name="q"), session_queue("s"), topic("t", "sub"))


def counts(world: World, path: str = "q") -> tuple[int, int, list[int]]:
    container = world.namespace.entity(path)
    return (
        container.counters.active,
        len(container.locks.by_number),
        [each.delivery_count for each in world.stored(path)],
    )


def test_a_browser_gets_all_messages_in_order_and_they_are_unchanged(world: World) -> None:
    world.send("one", "two", "three")
    before = counts(world)
    browser = Browsing(world)
    assert browser.bodies() == ["one", "two", "three"]
    assert counts(world) == before == (3, 0, [0, 0, 0])
    assert Consumer(world, world.queue()).bodies == ["one", "two", "three"]
    world.check()


def test_a_browsed_message_has_its_number_time_and_state(world: World) -> None:
    world.send("one")
    world.send("later", at=world.clock() + 60_000)
    first, second = Browsing(world).messages()
    assert first.message_annotations is not None
    assert second.message_annotations is not None
    assert first.message_annotations["x-opt-sequence-number"] == 1
    assert first.message_annotations["x-opt-enqueued-time"] == world.clock()
    assert first.message_annotations["x-opt-message-state"] == 0
    assert second.message_annotations["x-opt-message-state"] == 2
    assert "x-opt-locked-until" not in first.message_annotations
    assert first.delivery_annotations is None


def test_locked_and_deferred_messages_are_browsed_too(world: World) -> None:
    world.send("one", "two")
    consumer = Consumer(world, world.queue(), credit=2)
    world.settle(world.queue().settlements.defer, consumer.locks[1])
    assert Browsing(world).bodies() == ["one", "two"]


@pytest.mark.parametrize("mode", [SETTLED, MIXED, UNSETTLED])
def test_the_attach_is_answered_with_copy_and_the_requested_settle_mode(world: World, mode: int) -> None:
    browser = Browsing(world, mode=mode)
    assert browser.attach.source.distribution_mode == "copy"
    assert browser.attach.snd_settle_mode == mode


@pytest.mark.parametrize(("asked", "answered"), [("move", "move"), (None, None), ("other", "move")])
def test_a_link_that_consumes_is_never_answered_with_copy(
    world: World, asked: str | None, answered: str | None
) -> None:
    world.send("one")
    receiving = Browsing(world, distribution_mode=asked, mode=MIXED)
    assert receiving.attach.source.distribution_mode == answered
    assert receiving.bodies() == ["one"]
    assert counts(world)[1] == 1


@pytest.mark.parametrize("mode", [SETTLED, MIXED])
def test_messages_are_sent_settled_unless_the_client_requests_unsettled(world: World, mode: int) -> None:
    world.send("one")
    browser = Browsing(world, mode=mode)
    (transfer,) = [each for each, _ in browser.wire.heard if isinstance(each, Transfer)]
    assert transfer.settled


@pytest.mark.parametrize(
    "state",
    [
        Accepted(),
        Rejected(),
        Released(),
        Modified(delivery_failed=True),
        Modified(undeliverable_here=True, message_annotations={Symbol("n"): 1}),
    ],
)
@pytest.mark.parametrize("settled", [True, False])
def test_outcomes_from_a_browser_have_no_effect(world: World, state: Any, settled: bool) -> None:
    world.send("one", "two")
    browser = Browsing(world, mode=UNSETTLED)
    assert browser.bodies() == ["one", "two"]
    peer = browser.wire.peer
    assert peer.held.used > 0
    first, last = browser.ids
    browser.wire.send_bytes(frame(Disposition(role=True, first=first, last=last, settled=settled, state=state)))
    answers = browser.wire.take(Disposition)
    assert all(each.settled and type(each.state) is type(state) for each in answers)
    assert bool(answers) is not settled
    assert peer.held.used == 0
    assert counts(world) == (2, 0, [0, 0])
    browser.wire.send_bytes(frame(Disposition(role=True, first=first, last=last, settled=True, state=state)))
    assert peer.held.used == 0
    world.check()


def test_a_drain_is_answered_when_the_end_is_reached(world: World) -> None:
    world.send("one", "two")
    browser = Browsing(world, credit=0)
    browser.grant(10, drain=True)
    assert browser.bodies() == ["one", "two"]
    (answer,) = browser.drained
    assert (answer.link_credit, answer.delivery_count) == (0, 10)
    assert Browsing(world, "t/subscriptions/sub", credit=0).drained == []


def test_a_drain_of_an_empty_queue_is_answered_at_once_and_again(world: World) -> None:
    browser = Browsing(world, credit=0)
    browser.grant(10, drain=True)
    assert len(browser.drained) == 1
    browser.grant(10, drain=True)
    assert len(browser.drained) == 1


def test_messages_that_arrive_later_are_browsed_while_there_is_credit(world: World) -> None:
    world.send("one")
    browser = Browsing(world, credit=3)
    assert browser.bodies() == ["one"]
    world.send("two")
    assert browser.bodies() == ["two"]
    world.send("three", "four")
    assert browser.bodies() == ["three"]
    browser.grant(1)
    assert browser.bodies() == ["four"]
    assert counts(world) == (4, 0, [0] * 4)


def test_a_message_that_comes_while_the_end_is_looked_for_is_shown(world: World) -> None:
    store: Any = world.store
    store.held_answers = []
    browser = Browsing(world)
    world.send("meanwhile")
    store.release_answers()
    world.run()
    assert browser.bodies() == ["meanwhile"]


def test_a_browser_without_credit_reads_nothing(world: World) -> None:
    world.send("one")
    store: Any = world.store
    reads = store.reads
    browser = Browsing(world, credit=0)
    world.send("two")
    assert store.reads == reads
    assert browser.bodies() == []


def test_a_long_queue_is_read_by_pages_each_no_longer_than_the_credit(world: World) -> None:
    texts = [f"message {number}" for number in range(2 * browsing.PAGE_MESSAGES + 100)]
    world.send(*texts)
    store: Any = world.store
    reads = store.reads
    browser = Browsing(world, credit=7)
    assert browser.bodies() == texts[:7]
    assert store.reads == reads + 1
    browser.grant(1000)
    assert browser.bodies() == texts[7:]
    assert store.reads == reads + 5, "three more pages, and one that says that nothing follows"


def test_a_client_that_does_not_read_uses_memory_for_one_page_which_is_counted(world: World) -> None:
    world.send(*[f"{number}" + "x" * 10_000 for number in range(100)])
    browser = Browsing(world, credit=0)
    window = Flow(next_incoming_id=0, incoming_window=2, next_outgoing_id=0, outgoing_window=1 << 20)
    browser.wire.send_bytes(frame(window))
    narrow = flow(browser.handle, 100)
    narrow.incoming_window = 2
    browser.wire.send_bytes(frame(narrow))
    assert len(browser.bodies()) == 2
    held = browser.wire.peer.held
    assert 0 < held.used <= browsing.PAGE_BYTES + 20_000
    window = Flow(next_incoming_id=2, incoming_window=1000, next_outgoing_id=0, outgoing_window=1 << 20)
    browser.wire.send_bytes(frame(window))
    assert len(browser.bodies()) == 98
    assert held.used == 0


def test_the_memory_of_a_page_is_released_when_the_link_detaches(world: World) -> None:
    world.send(*["x" * 1000] * 20)
    browser = Browsing(world, credit=0)
    narrow = flow(browser.handle, 100)
    narrow.incoming_window = 2
    browser.wire.send_bytes(frame(narrow))
    assert browser.wire.peer.held.used > 0
    browser.wire.send_bytes(frame(Detach(handle=browser.handle, closed=True)))
    assert browser.wire.peer.held.used == 0


def test_a_full_account_is_no_reason_to_show_nothing(world: World) -> None:
    texts = ["one", "two", "three"]
    world.send(*texts)
    browser = Browsing(world, credit=0)
    held = browser.wire.peer.held
    held.limit = 100
    held.take(200)
    browser.grant(10, drain=True)
    assert browser.bodies() == texts
    assert len(browser.drained) == 1
    assert held.used == 200


def test_a_client_that_settles_nothing_is_shown_more_when_it_does(world: World) -> None:
    texts = [str(number) for number in range(10)]
    world.send(*texts)
    browser = Browsing(world, credit=0, mode=UNSETTLED)
    browser.wire.peer.held.limit = 1000
    browser.grant(10)
    shown = browser.bodies()
    assert 0 < len(shown) < 10
    while len(shown) < 10:
        last = browser.ids[-1]
        browser.wire.send_bytes(
            frame(Disposition(role=True, first=browser.ids[0], last=last, settled=True, state=Accepted()))
        )
        more = browser.bodies()
        assert more
        shown += more
    assert shown == texts


def test_browsing_an_entity_with_sessions_returns_all_sessions_in_order(world: World) -> None:
    for number in range(4):
        world.send(f"m{number}", to="s", session_id="ab"[number % 2])
    assert Browsing(world, "s").bodies() == ["m0", "m1", "m2", "m3"]
    assert Browsing(world, "s", filter={SESSION_FILTER: None}).bodies() == ["m0", "m1", "m2", "m3"]
    world.check()


@pytest.mark.parametrize("described", [False, True])
def test_a_session_can_be_browsed_while_a_receiver_has_it_locked(world: World, described: bool) -> None:
    for number in range(4):
        world.send(f"m{number}", to="s", session_id="ab"[number % 2])
    holder = Wire(world)
    holder.receiver("s", filter={SESSION_FILTER: "b"})
    value = Described(ULong(0x137000000C), "b") if described else "b"
    browser = Browsing(world, "s", filter={SESSION_FILTER: value, Symbol("other"): "x"})
    assert browser.attach.source.filter == {SESSION_FILTER: value}
    assert browser.bodies() == ["m1", "m3"]
    world.send("m4", to="s", session_id="a")
    world.send("m5", to="s", session_id="b")
    assert browser.bodies() == ["m5"]


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (3, ["m3", "m4"]),
        (Described(FIRST_NUMBER, ULong(4)), ["m4"]),
        (0, ["m1", "m2", "m3", "m4"]),
        (None, ["m1", "m2", "m3", "m4"]),
        (6, []),
    ],
)
def test_a_browser_begins_at_the_requested_sequence_number(world: World, number: Any, shown: list[str]) -> None:
    world.send("m1", "m2", "m3", "m4")
    browser = Browsing(world, filter={FIRST_NUMBER: number})
    assert browser.attach.source.filter == ({} if number is None else {FIRST_NUMBER: number})
    assert browser.bodies() == shown
    world.send("m5", "m6")
    assert browser.bodies() == ["m5", "m6"][-1 if number == 6 else 0 :]
    assert counts(world) == (6, 0, [0] * 6)


def test_browsing_one_session_begins_at_the_requested_sequence_number(world: World) -> None:
    for number in range(1, 7):
        world.send(f"m{number}", to="s", session_id="ab"[number % 2])
    browser = Browsing(world, "s", filter={SESSION_FILTER: "a", FIRST_NUMBER: 3})
    assert browser.attach.source.filter == {SESSION_FILTER: "a", FIRST_NUMBER: 3}
    assert browser.bodies() == ["m4", "m6"]


def test_a_number_to_begin_with_has_no_effect_on_a_link_that_consumes(world: World) -> None:
    world.send("m1", "m2")
    receiving = Browsing(world, distribution_mode=None, mode=MIXED, filter={FIRST_NUMBER: 2})
    assert receiving.attach.source.filter == {}
    assert receiving.bodies() == ["m1", "m2"]


def test_dead_letters_and_subscriptions_can_be_browsed(world: World) -> None:
    world.send("to all", to="t")
    assert Browsing(world, "t/subscriptions/sub").bodies() == ["to all"]
    world.send("letter")
    consumer = Consumer(world, world.queue())
    watching = Browsing(world, "q/$DeadLetterQueue")
    world.settle(world.queue().settlements.dead_letter, consumer.locks[0])
    (letter,) = watching.messages()
    assert letter.body == b"letter"
    assert counts(world, "q/$DeadLetterQueue")[:2] == (1, 0)


@pytest.mark.parametrize(
    ("path", "filters", "condition"),
    [
        ("q", {SESSION_FILTER: "a"}, "amqp:not-allowed"),
        ("s", {SESSION_FILTER: 5}, "com.microsoft:argument-error"),
        ("q", {FIRST_NUMBER: "3"}, "amqp:invalid-field"),
        ("q", {FIRST_NUMBER: -1}, "amqp:invalid-field"),
        ("q", {FIRST_NUMBER: True}, "amqp:invalid-field"),
        ("q", {FIRST_NUMBER: ULong(2**63)}, "amqp:invalid-field"),
        ("t", {}, "amqp:not-allowed"),
        ("nothing", {}, "amqp:not-found"),
        ("q", {SELECTOR: Described(SELECTOR, "color = ")}, "amqp:invalid-field"),
        ("q", {SELECTOR: Described(SELECTOR, 5)}, "amqp:invalid-field"),
        (
            "q",
            {SELECTOR: Described(SELECTOR, "a = 1"), Symbol("more"): Described(SELECTOR, "b = 1")},
            "amqp:invalid-field",
        ),
    ],
)
def test_browsing_an_unsupported_entity_is_refused(
    world: World, path: str, filters: dict[Any, Any], condition: str
) -> None:
    browser = Browsing(world, path, credit=0, filter=filters)
    assert browser.attach.source is None
    (detach,) = browser.wire.take(Detach)
    assert detach.error.condition == condition


def test_deleting_an_entity_detaches_its_browsers(world: World) -> None:
    browser = Browsing(world)
    world.administer(world.administration.delete_queue, "q")
    browser.wire.read_output()
    (detach,) = browser.wire.take(Detach)
    assert detach.error.condition == "amqp:not-found"


def test_a_store_that_cannot_be_read_ends_the_link(world: World) -> None:
    store: Any = world.store
    browser = Browsing(world, credit=0)
    store.fails_to_read = True
    browser.grant(1)
    (detach,) = browser.wire.take(Detach)
    assert "could not be read" in detach.error.description or detach.error.condition


# --- selectors ---


@pytest.mark.parametrize("descriptor", [SELECTOR, ULong(0x468C00000004)])
def test_a_browser_with_a_selector_gets_matching_messages(world: World, descriptor: Any) -> None:
    for number in range(10):
        world.send(f"m{number}", application_properties={"n": number})
    asked = {Symbol("jms-selector"): Described(descriptor, "n > 6 OR n = 2"), Symbol("no-local"): Described(7, [])}
    browser = Browsing(world, filter=asked, credit=0)
    assert browser.attach.source.filter == {key: value for key, value in asked.items() if key == "jms-selector"}
    browser.grant(2)
    assert browser.bodies() == ["m2", "m7"]
    browser.grant(10, drain=True)
    assert browser.bodies() == ["m8", "m9"]
    assert len(browser.drained) == 1
    world.check()


def test_an_expensive_selector_looks_at_few_messages_in_a_turn(world: World) -> None:
    world.send(*["x"] * 100)
    expensive = " OR ".join(f"name{number} LIKE '%a_b%'" for number in range(40))
    assert len(expensive) > 900
    store: Any = world.store
    reads = store.reads
    browser = Browsing(world, filter={SELECTOR: Described(SELECTOR, expensive)})
    assert browser.bodies() == []
    assert store.reads - reads >= 100 // (browsing.PAGE_WORK // (len(expensive) // 64))


def test_a_selector_without_matches_reads_the_whole_queue(world: World) -> None:
    world.send(*map(str, range(3000)))
    browser = Browsing(world, credit=0, filter={SELECTOR: Described(SELECTOR, "n = 1")})
    browser.grant(1, drain=True)
    assert browser.bodies() == []
    assert len(browser.drained) == 1
    assert [body(message) for message in world.stored()][:2] == ["0", "1"]
