"""The page `/health`: its answers, and the number of probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from broker.world import FlakyStore
from peeklock.amqp.errors import Condition
from peeklock.broker.namespace import Namespace
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.health import Health
from peeklock.store.base import Changes, StoredMessage, StoreError, StoreFull
from raw_client import RawClient, get, health
from server.held_store import HeldStore
from serving import StartBroker


def test_health_has_the_reason_of_a_failed_store_and_its_recovery(start_broker: StartBroker) -> None:
    store = FlakyStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    client = RawClient.opened(broker.broker.port)
    link = client.sender()
    store.fails = lambda changes: StoreFull("There is no room left for the test.")
    assert client.refusal(link, b"too much").condition == Condition.RESOURCE_LIMIT_EXCEEDED
    assert health(broker.broker.port) == (503, "unhealthy", "There is no room left for the test.")
    store.fails = lambda changes: None
    client.send(link, b"fits")
    assert health(broker.broker.port)[0] == 200


def test_health_recovers_without_any_send(start_broker: StartBroker) -> None:
    store = FlakyStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    client = RawClient.opened(broker.broker.port)
    store.fails = lambda changes: StoreError("The disk is on fire.")
    assert client.refusal(client.sender(), b"lost").condition == Condition.INTERNAL_ERROR
    broker.advance(5)
    assert health(broker.broker.port) == (503, "unhealthy", "The disk is on fire.")
    store.fails = lambda changes: None
    broker.advance(5)
    assert health(broker.broker.port)[0] == 200


@pytest.mark.parametrize("error", [StoreFull("There is no room left."), StoreError("The disk is on fire.")])
def test_health_detects_that_the_store_fails(start_broker: StartBroker, error: StoreError) -> None:
    store = FlakyStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    store.fails = lambda changes: error
    assert health(broker.broker.port) == (503, "unhealthy", str(error))
    store.fails = lambda changes: None
    broker.advance(5)
    assert health(broker.broker.port)[0] == 200


def test_health_detects_that_messages_cannot_be_read(start_broker: StartBroker) -> None:
    store = FlakyStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    store.fails_to_read = True
    status, _, message = health(broker.broker.port)
    assert (status, message) == (503, "the disk cannot be read")
    store.fails_to_read = False
    assert health(broker.broker.port)[0] == 200


def test_a_namespace_without_entities_is_healthy(start_broker: StartBroker) -> None:
    assert get(start_broker(data=None, namespace=NamespaceDefinition()).broker.port, "/health")[0] == 200


def test_health_requests_use_no_sequence_numbers_of_queues(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert health(broker.broker.port)[0] == 200
    assert broker.counters().last_sequence_number == 0


# --- without a server ---


def tried(store: FlakyStore, story: Callable[[Health, Namespace], Awaitable[None]], timeout: float = 60.0) -> None:
    """Run the story with a namespace that uses the store."""

    async def run() -> None:
        namespace = Namespace(NamespaceDefinition(), store, asyncio.get_running_loop().call_soon)
        started: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        namespace.start(started.set_result)
        assert await started is None
        await story(Health(namespace, store, timeout), namespace)

    asyncio.run(run())


def watched(store: FlakyStore) -> list[Changes]:
    """Return a list to which every later commit is added."""
    seen: list[Changes] = []

    def look(changes: Changes) -> None:
        seen.append(changes)

    store.fails = look
    return seen


def test_concurrent_and_repeated_requests_use_one_probe() -> None:
    store = FlakyStore()
    seen = watched(store)

    async def story(health: Health, namespace: Namespace) -> None:
        seen.clear()
        assert set(await asyncio.gather(*(health.problem() for _ in range(50)))) == {None}
        assert [await health.problem() for _ in range(50)] == [None] * 50
        assert [(len(changes.appends), len(changes.removals)) for changes in seen] == [(1, 0), (0, 1)]

    tried(store, story)


def test_a_probe_that_hangs_is_not_repeated_and_health_recovers_when_it_ends() -> None:
    store = HeldStore()

    async def story(health: Health, namespace: Namespace) -> None:
        store.hold()
        message = "The store has not answered for 0.01 seconds."
        assert [await health.problem() for _ in range(3)] == [message] * 3
        assert len(store.held or ()) == 1
        store.let_go()
        assert await health.problem() is None

    tried(store, story, timeout=0.01)


def numbers_in(store: FlakyStore, entity: int) -> list[int]:
    found: list[int] = []

    def note(answer: list[StoredMessage] | StoreError) -> None:
        assert not isinstance(answer, StoreError)
        found.extend(message.sequence_number for message in answer)

    store.read_numbers(entity, range(1, 100), 1 << 20, note)
    return found


def test_a_probe_message_left_by_a_crash_is_removed() -> None:
    store = FlakyStore()

    async def story(health: Health, namespace: Namespace) -> None:
        ((entity, left),) = namespace.make_probe().appends
        store.commit(Changes(appends=[(entity, left)]), lambda error: None)
        assert numbers_in(store, entity) == [left.sequence_number]
        assert await health.problem() is None
        assert numbers_in(store, entity) == []

    tried(store, story)


def test_a_message_that_cannot_be_read_back_is_a_problem() -> None:
    class ForgetfulStore(FlakyStore):
        def read(self, wanted: object, done: Callable[[list[StoredMessage] | StoreError], None]) -> None:
            done([])

    async def story(health: Health, namespace: Namespace) -> None:
        assert await health.problem() == "A message that was stored could not be read back."

    tried(ForgetfulStore(), story)
