"""A whole broker: refused starts, the well-known key, timers, and stopping."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from peeklock.amqp.errors import Condition
from peeklock.entities.authorization import AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.limits.server import Limits
from peeklock.server.broker import Broker, Options, StartError
from peeklock.store.base import OnDamage, StoredEntity, StoreError, ignore_damage
from raw_client import HOST, RawClient, WebSocketStream, body_of, dial, eventually, health, read_to_end
from server.held_store import HeldStore
from serving import BrokerThread, StartBroker

QUICK = Limits(closing_seconds=0.2, stop_seconds=0.2)
OWN_KEY = (AuthorizationRule(name="root", primary_key="a-key-of-our-own", rights=frozenset({Right.MANAGE})),)


def start_and_stop(**options: Any) -> None:
    async def run() -> None:
        broker = Broker(Options(**{"port": 0, **options}))
        await broker.start()
        await broker.stop()

    asyncio.run(run())


def refusal(**options: Any) -> str:
    with pytest.raises(StartError) as refused:
        start_and_stop(**options)
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


# --- starting ---


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        assert refusal(port=port, data=tmp_path) == f"cannot listen on {HOST} port {port}: Address already in use"


def test_a_further_port_in_use_is_named_and_the_first_is_released(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken, socket.create_server((HOST, 0)) as free:
        first, second = free.getsockname()[1], taken.getsockname()[1]
        free.close()
        assert f"port {second}" in refusal(port=first, further_ports=(second,), data=tmp_path)
        start_and_stop(port=first, data=tmp_path)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "300.1.2.3"])
def test_an_invalid_host_is_named(tmp_path: Path, host: str) -> None:
    namespace = NamespaceDefinition(authorization_rules=OWN_KEY)
    assert f"cannot listen on {host} port 0" in refusal(host=host, namespace=namespace, data=tmp_path)


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert f"{tmp_path / 'file' / 'data'} cannot be created" in refusal(data=tmp_path / "file" / "data")
    assert f"{tmp_path / 'file'} is not a folder" in refusal(data=tmp_path / "file")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "peeklock.db").write_bytes(b"something else entirely" * 100)
    assert "peeklock.db is not a database" in refusal(data=tmp_path)


def test_a_folder_in_use_by_another_broker_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    start_broker()
    assert "in use by process" in refusal(data=tmp_path / "data")


def test_a_store_that_fails_at_the_start_is_a_start_error(tmp_path: Path) -> None:
    class Broken(HeldStore):
        def open(self, on_damage: OnDamage = ignore_damage) -> list[StoredEntity]:
            raise StoreError("The store is broken.")

    assert refusal(make_store=lambda call: Broken(), tls_folder=tmp_path) == "The store is broken."


def test_a_store_that_refuses_the_first_entities_is_a_start_error(tmp_path: Path) -> None:
    store = HeldStore()
    store.fails = lambda changes: StoreError("The disk is on fire.")
    assert refusal(make_store=lambda call: store, tls_folder=tmp_path) == "The disk is on fire."


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    sentence = refusal(data=tmp_path, tls_certificate=tmp_path / "no.pem", tls_key=tmp_path / "no.key")
    assert "no.pem cannot be read" in sentence


@pytest.mark.parametrize(
    ("name", "queue"),
    [
        ("RequiresSession", QueueDefinition(name="Orders", requires_session=True)),
        ("RequiresDuplicateDetection", QueueDefinition(name="Orders", requires_duplicate_detection=True)),
    ],
)
def test_settings_fixed_at_creation_cannot_be_changed(tmp_path: Path, name: str, queue: QueueDefinition) -> None:
    start_and_stop(data=tmp_path, namespace=NamespaceDefinition(queues=(QueueDefinition(name="orders"),)))
    changed = NamespaceDefinition(queues=(queue,))
    assert refusal(data=tmp_path, namespace=changed) == (
        f"{name} of 'orders' true: cannot be changed once the entity exists"
    )


def test_a_failed_start_releases_the_folder_and_the_port(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    refusal(port=port, data=tmp_path, tls_certificate=tmp_path / "no.pem", tls_key=tmp_path / "no.key")
    start_and_stop(port=port, data=tmp_path)


# --- the well-known key ---


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_the_well_known_key_is_refused_on_addresses_of_a_network(tmp_path: Path, host: str) -> None:
    assert "--insecure-default-key" in refusal(host=host, data=tmp_path)
    assert not (tmp_path / "peeklock.db").exists()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_the_well_known_key_is_accepted_on_loopback(tmp_path: Path, host: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    start_and_stop(host=host, data=tmp_path)


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_the_well_known_key_is_accepted_on_a_network_by_option(tmp_path: Path) -> None:
    start_and_stop(host="0.0.0.0", data=tmp_path, insecure_default_key=True)


def test_another_key_is_accepted_on_a_network(tmp_path: Path) -> None:
    start_and_stop(host="0.0.0.0", data=tmp_path, namespace=NamespaceDefinition(authorization_rules=OWN_KEY))


def test_the_well_known_key_on_a_queue_is_refused_too_also_on_a_stored_one(tmp_path: Path) -> None:
    rule = AuthorizationRule(name="sender", primary_key="SAS_KEY_VALUE", rights=frozenset({Right.SEND}))
    queue = QueueDefinition(name="open-to-all", authorization_rules=(rule,))
    namespace = NamespaceDefinition(queues=(queue,), authorization_rules=OWN_KEY)
    assert "well-known" in refusal(host="0.0.0.0", data=tmp_path, namespace=namespace)
    start_and_stop(data=tmp_path, namespace=namespace)
    without = NamespaceDefinition(authorization_rules=OWN_KEY)
    assert "well-known" in refusal(host="0.0.0.0", data=tmp_path, namespace=without)


def test_the_connection_string_has_a_rule_with_all_rights(start_broker: StartBroker) -> None:
    rules = (AuthorizationRule(name="reader", primary_key="reads", rights=frozenset({Right.LISTEN})), *OWN_KEY)
    broker = start_broker(data=None, namespace=NamespaceDefinition(authorization_rules=rules))
    assert broker.connection_string == (
        f"Endpoint=sb://127.0.0.1:{broker.broker.port};SharedAccessKeyName=root;"
        "SharedAccessKey=a-key-of-our-own;UseDevelopmentEmulator=true;"
    )
    assert broker.broker.shown_connection_string == (
        f"Endpoint=sb://127.0.0.1:{broker.broker.port};SharedAccessKeyName=root;UseDevelopmentEmulator=true;"
    )


def test_the_well_known_key_is_shown(start_broker: StartBroker) -> None:
    broker = start_broker(data=None)
    assert broker.broker.shown_connection_string == broker.connection_string


@pytest.mark.parametrize(("host", "shown"), [("0.0.0.0", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]")])
def test_the_connection_string_names_a_host_that_can_be_connected_to(tmp_path: Path, host: str, shown: str) -> None:
    if host == "::1" and not _has_ipv6():
        pytest.skip("this machine has no IPv6")

    async def run() -> str:
        broker = Broker(Options(port=0, host=host, tls_folder=tmp_path, insecure_default_key=True))
        await broker.start()
        found = broker.connection_string
        await broker.stop()
        return found

    assert asyncio.run(run()).startswith(f"Endpoint=sb://{shown}:")


# --- time ---


def with_broker(tmp_path: Path, test: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        broker = Broker(Options(port=0, tls_folder=tmp_path))
        await broker.start()
        try:
            await asyncio.wait_for(test(broker), 20)
        finally:
            await broker.stop()

    asyncio.run(run())


def test_due_entries_run_without_a_request(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        done = asyncio.Event()
        agenda = broker.namespace.agenda
        agenda.at(agenda.now() + 20, done.set)
        await done.wait()

    with_broker(tmp_path, test)


def test_an_entry_added_later_and_due_earlier_runs_first(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        done: list[str] = []
        all_done = asyncio.Event()
        agenda = broker.namespace.agenda
        agenda.at(agenda.now() + 60, lambda: done.append("later"))
        agenda.at(agenda.now() + 20, lambda: done.append("sooner"))
        agenda.at(agenda.now() + 60, all_done.set)
        await all_done.wait()
        assert done == ["sooner", "later"]

    with_broker(tmp_path, test)


def test_an_entry_that_is_already_due_does_not_run_while_it_is_added(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        done = asyncio.Event()
        agenda = broker.namespace.agenda
        agenda.at(agenda.now() - 1000, done.set)
        assert not done.is_set()
        await done.wait()

    with_broker(tmp_path, test)


def test_an_entry_added_by_an_entry_runs_too(tmp_path: Path) -> None:
    async def test(broker: Broker) -> None:
        done = asyncio.Event()
        agenda = broker.namespace.agenda

        def add() -> None:
            agenda.at(agenda.now() + 10, done.set)

        agenda.at(agenda.now(), add)
        await done.wait()

    with_broker(tmp_path, test)


# --- stopping ---


class Stopping:
    """A broker that is being stopped while a test continues."""

    def __init__(self, broker: BrokerThread) -> None:
        self._thread = threading.Thread(target=broker.stop)
        self._thread.start()

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(timeout=20)
        assert self.is_done()


def test_the_close_of_a_stopping_broker_has_the_reason(tmp_path: Path) -> None:
    broker = BrokerThread(tls_folder=tmp_path)
    clients = [RawClient.opened(broker.broker.port), RawClient(WebSocketStream(broker.broker.port))]
    clients[1].open()
    stopping = Stopping(broker)
    for client in clients:
        error = client.closed_with()
        assert error is not None
        assert error.condition == Condition.CONNECTION_FORCED
        assert client.stream.recv(1) == b""
    stopping.wait()


def test_messages_sent_before_the_stop_are_answered_and_stored(tmp_path: Path) -> None:
    store = HeldStore()
    broker = BrokerThread(tls_folder=tmp_path, make_store=lambda call: store)
    client = RawClient.opened(broker.broker.port)
    link = client.sender()
    broker.call(store.hold)
    delivery = client.post(link, b"in time")
    client.write()
    eventually(lambda: broker.call(lambda: broker.broker.namespace.journal.unsaved_bytes))
    stopping = Stopping(broker)
    eventually(lambda: broker.call(lambda: not any(shell.reading for shell in broker.broker.shells)))
    client.post(link, b"too late", settled=True)
    client.write()
    broker.call(store.let_go)
    assert client.outcome(delivery) is not None
    assert client.closed_with() is not None
    stopping.wait()
    after = BrokerThread(tls_folder=tmp_path, make_store=lambda call: store)
    assert after.broker.namespace.queue("queue").counters.active == 1
    after.stop()


def test_a_settlement_under_way_is_confirmed_before_the_stop(tmp_path: Path) -> None:
    store = HeldStore()
    broker = BrokerThread(tls_folder=tmp_path, make_store=lambda call: store)
    client = RawClient.opened(broker.broker.port)
    client.send(client.sender(), b"hello")
    client.receiver()
    (delivery,) = client.receive(1)
    broker.call(store.hold)
    journal = broker.broker.namespace.journal
    confirmed = threading.Thread(target=client.complete, args=(delivery,))
    confirmed.start()
    eventually(lambda: broker.call(lambda: not journal.idle))
    stopping = Stopping(broker)
    eventually(lambda: broker.call(lambda: not any(shell.reading for shell in broker.broker.shells)))
    broker.call(store.let_go)
    confirmed.join(timeout=20)
    assert not confirmed.is_alive()
    client.closed_with()
    stopping.wait()


def test_no_message_is_deleted_on_delivery_while_the_broker_stops(tmp_path: Path) -> None:
    store = HeldStore()
    broker = BrokerThread(tls_folder=tmp_path, make_store=lambda call: store, limits=QUICK)
    port = broker.broker.port
    sender = RawClient.opened(port)
    sender.send(sender.sender(), b"first", b"second")
    broker.call(store.hold)
    client = RawClient.opened(port)
    client.receiver(credit=1, deletes=True)
    eventually(lambda: broker.call(lambda: not broker.broker.namespace.journal.idle))
    stopping = Stopping(broker)
    eventually(lambda: broker.call(lambda: not any(shell.reading for shell in broker.broker.shells)))
    broker.call(store.let_go)
    assert body_of(client.receive(1)[0]) == b"first"
    assert client.closed_with() is not None
    stopping.wait()
    after = BrokerThread(tls_folder=tmp_path, make_store=lambda call: store)
    assert after.broker.namespace.queue("queue").counters.active == 1
    after.stop()


def test_a_silent_client_does_not_delay_the_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="peeklock")
    broker = BrokerThread(tls_folder=tmp_path, limits=QUICK)
    port = broker.broker.port
    silent = RawClient.opened(port)
    websocket = RawClient(WebSocketStream(port))
    websocket.open()
    http = dial(port)
    http.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    http.recv(1)
    unspoken = dial(port)
    eventually(lambda: broker.call(lambda: broker.broker.connections) == 4)
    broker.stop()
    assert [record.message for record in caplog.records][-1] == "stopped"
    for stream in (silent.stream, websocket.stream, http, unspoken):
        read_to_end(stream)


def test_a_receiver_that_does_not_read_does_not_delay_the_stop(tmp_path: Path) -> None:
    broker = BrokerThread(tls_folder=tmp_path, limits=QUICK)
    port = broker.broker.port
    sender = RawClient.opened(port)
    link = sender.sender()
    unread = RawClient.opened(port)
    unread.receiver(credit=100_000)
    while not broker.call(lambda: any(shell.connection.congested for shell in broker.broker.shells)):
        sender.send(link, *(bytes(200_000) for _ in range(20)))
    broker.stop()


def test_a_store_that_hangs_delays_the_stop_for_a_limited_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = HeldStore()
    broker = BrokerThread(tls_folder=tmp_path, make_store=lambda call: store, limits=QUICK)
    client = RawClient.opened(broker.broker.port)
    link = client.sender()
    broker.call(store.hold)
    client.post(link, b"never saved")
    client.write()
    eventually(lambda: broker.call(lambda: broker.broker.namespace.journal.unsaved_bytes))
    broker.stop()
    assert "stopping before the store has finished its commits" in caplog.text
    assert client.closed_with() is not None
    assert not client._outcomes


def test_a_stopped_broker_can_be_started_again_on_the_same_folder(tmp_path: Path) -> None:
    for number in range(3):
        broker = BrokerThread(data=tmp_path)
        client = RawClient.opened(broker.broker.port)
        client.send(client.sender(), b"another")
        assert broker.broker.namespace.queue("queue").counters.active == number + 1
        client.engine.close()
        client.write()
        broker.stop()


def test_two_brokers_run_in_one_process(tmp_path: Path) -> None:
    brokers = [BrokerThread(data=tmp_path / name) for name in ("one", "two")]
    for broker in brokers:
        assert health(broker.broker.port)[0] == 200
        broker.stop()
