"""Links that consume with a message selector."""

from __future__ import annotations

from typing import Any

import pytest

from broker.world import World, session_queue, topic
from nodes.test_browsing import MIXED, SELECTOR, SESSION_FILTER, SETTLED, Browsing
from nodes.wire import frame
from peeklock.amqp.performatives import Accepted, Detach, Disposition, Released
from peeklock.amqp.types import Described, Symbol, ULong
from peeklock.entities.definitions import QueueDefinition


@pytest.fixture
def world() -> World:
    return World(QueueDefinition(name="q"), session_queue("s"), topic("t", "sub"))


def selecting(world: World, text: Any, path: str = "q", **options: Any) -> Browsing:
    """Attach a receiver with a selector."""
    fields = {"distribution_mode": None, "filter": {SELECTOR: Described(SELECTOR, text)}, "mode": MIXED, **options}
    return Browsing(world, path, **fields)


def send(world: World, *numbers: int, to: str = "q", **fields: Any) -> None:
    for number in numbers:
        world.send(f"m{number}", to=to, application_properties={"n": number}, **fields)


@pytest.mark.parametrize("path", ["q", "t/subscriptions/sub"])
def test_a_link_with_a_selector_locks_matching_messages_only(world: World, path: str) -> None:
    send(world, *range(10), to="t" if path != "q" else "q")
    link = selecting(world, "n IN (2, 5)", path)
    assert link.bodies() == ["m2", "m5"]
    queue = world.queue(path)
    assert len(queue.locks.by_number) == 2
    link.wire.send_bytes(frame(Disposition(role=True, first=link.ids[0], settled=True, state=Accepted())))
    link.wire.send_bytes(frame(Disposition(role=True, first=link.ids[1], settled=True, state=Released())))
    link.wire.world.run()
    assert link.bodies() == ["m5"], "it came back, and is selected again"
    assert queue.counters.active == 9


def test_receive_and_delete_with_a_selector_leaves_the_rest(world: World) -> None:
    send(world, 1, 2, 3)
    assert selecting(world, "n = 2", mode=SETTLED).bodies() == ["m2"]
    assert world.bodies() == ["m1", "m3"]
    world.check()


def test_the_brokers_attach_has_only_the_effective_filters(world: World) -> None:
    asked = {
        Symbol("jms-selector"): Described(ULong(0x468C00000004), "n = 1"),
        Symbol("no-local"): Described(ULong(0x468C00000003), []),
        Symbol("empty"): Described(SELECTOR, " "),
        Symbol("null"): None,
    }
    link = selecting(world, "", filter=asked)
    assert link.attach.source.filter == {"jms-selector": Described(0x468C00000004, "n = 1")}


@pytest.mark.parametrize("filters", [None, {}])
def test_without_filters_the_attach_is_answered_with_the_clients_source(
    world: World, filters: dict[Any, Any] | None
) -> None:
    assert selecting(world, "", filter=filters).attach.source.filter == filters


def test_a_session_link_is_answered_with_its_session_only(world: World) -> None:
    send(world, 1, to="s", session_id="a")
    asked = {SESSION_FILTER: "a", Symbol("other"): "x"}
    link = selecting(world, "", "s", filter=asked)
    assert link.attach.source.filter == {SESSION_FILTER: "a"}
    assert len(link.messages()) == 1


def test_a_drain_is_answered_after_every_message_was_evaluated(world: World) -> None:
    send(world, *range(20))
    link = selecting(world, "n = 19", credit=0)
    link.grant(5, drain=True)
    assert link.bodies() == ["m19"]
    assert len(link.drained) == 1


def test_a_detached_link_leaves_no_state(world: World) -> None:
    link = selecting(world, "n = 1")
    link.wire.send_bytes(frame(Detach(handle=link.handle, closed=True)))
    assert world.queue()._selecting is None


@pytest.mark.parametrize(
    ("path", "text", "condition", "described"),
    [
        ("q", "n = ", "amqp:invalid-field", "expected a value (line 1, column 4)"),
        ("q", 7, "amqp:invalid-field", "must be a string"),
        ("q", "x" * 2000, "amqp:invalid-field", "more than the 1024 allowed"),
        ("q", "n @ 1", "amqp:invalid-field", 'The character "@" has no meaning here'),
    ],
)
def test_an_attach_with_an_invalid_selector_is_refused_with_the_reason(
    world: World, path: str, text: Any, condition: str, described: str
) -> None:
    link = selecting(world, text, path, credit=0)
    assert link.attach.source is None
    (detach,) = link.wire.take(Detach)
    assert detach.error.condition == condition
    assert described in detach.error.description
    assert world.queue()._selecting is None


def test_a_session_link_with_a_selector_gets_matching_messages_and_the_attach_has_both_filters(world: World) -> None:
    send(world, 1, 2, 3, 1, to="s", session_id="a")
    send(world, 1, to="s", session_id="b")
    both = {SESSION_FILTER: "a", SELECTOR: Described(SELECTOR, "n = 1")}
    link = selecting(world, "", "s", filter=both | {Symbol("other"): "x"})
    assert link.attach.source.filter == both
    assert link.bodies() == ["m1", "m1"]
    link.wire.send_bytes(frame(Detach(handle=link.handle, closed=True)))
    all_of_it = selecting(world, "", "s", filter={SESSION_FILTER: None})
    assert all_of_it.attach.source.filter == {SESSION_FILTER: "b"}
    assert selecting(world, "", "s", filter={SESSION_FILTER: "a"}).bodies() == ["m1", "m2", "m3", "m1"]


def test_a_session_link_with_a_bad_selector_is_refused_and_the_session_stays_free(world: World) -> None:
    send(world, 1, to="s", session_id="a")
    both = {SESSION_FILTER: None, SELECTOR: Described(SELECTOR, "n = ")}
    link = selecting(world, "", "s", filter=both, credit=0)
    (detach,) = link.wire.take(Detach)
    assert detach.error.condition == "amqp:invalid-field"
    assert selecting(world, "", "s", filter={SESSION_FILTER: None}).bodies() == ["m1"]


def test_a_drain_of_a_session_link_is_answered_after_every_message_was_evaluated(world: World) -> None:
    send(world, *range(20), to="s", session_id="a")
    both = {SESSION_FILTER: "a", SELECTOR: Described(SELECTOR, "n = 19")}
    link = selecting(world, "", "s", filter=both, credit=0)
    link.grant(5, drain=True)
    assert link.bodies() == ["m19"]
    assert len(link.drained) == 1
