"""Nodes as a user starts them, on a real PostgreSQL server, with the Python SDK as the client."""

from __future__ import annotations

import json
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusError
from psycopg.conninfo import make_conninfo

from peeklock.server.broker import default_tls_folder
from serving import ServedBroker
from store.postgres_proxy import proxy_to
from store.postgres_server import Server, make_server, wait_until

SECONDS = 30.0
QUEUE = "queue"
LEASE = 2
FENCED = 75

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with make_server() as server:
        yield server


class Cluster:
    """Nodes on one namespace of the server."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.schema = f"nodes_{next(_numbers)}"
        self.nodes: list[ServedBroker] = []
        self._folder = folder
        self._config = folder / "config.json"
        queues = [{"Name": QUEUE, "Properties": {"LockDuration": "PT5M", "MaxDeliveryCount": 100}}]
        self._config.write_text(
            json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues, "Topics": []}]}})
        )

    def start(self, url: str = "") -> ServedBroker:
        folder = self._folder / str(len(self.nodes))
        folder.mkdir()
        node = ServedBroker(
            folder,
            *("--store", url or self.server.url, "--schema", self.schema, "--replication", "none"),
            *("--node", f"node{len(self.nodes)}", "--lease-seconds", str(LEASE), "--config", str(self._config)),
            data=False,
        )
        self.nodes.append(node)
        return node

    def start_two(self) -> tuple[ServedBroker, ServedBroker]:
        """Start an active node and a standby."""
        first = self.start()
        self.wait_for(first)
        return first, self.start()

    @property
    def lease(self) -> tuple[Any, ...]:
        """Epoch, beat and the number of the last commit."""
        (row,) = self.server.query(
            f"SELECT lease.epoch, beat, last_commit FROM {self.schema}.lease, {self.schema}.fence"
        )
        return row

    @property
    def authority(self) -> Path:
        return default_tls_folder() / "tls" / "authority.pem"

    @property
    def address(self) -> object:
        ((address,),) = self.server.query(f"SELECT address FROM {self.schema}.lease")
        return address

    def wait_for(self, node: ServedBroker) -> None:
        """Wait until the node is active, and has started its broker."""
        wait_until(lambda: self.address == f"127.0.0.1:{node.port}", f"the node is active: {node.log}", SECONDS)
        wait_until(lambda: "node active" in node.log, "its broker has started", SECONDS)

    def stop(self) -> None:
        for node in self.nodes:
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
                node.process.kill()
                node.process.wait(SECONDS)
            assert node.process.stdout is not None
            node.process.stdout.close()


@pytest.fixture
def cluster(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # for the certificates
    cluster = Cluster(server, tmp_path)
    yield cluster
    cluster.stop()


class Client:
    """A client of one node, which connects again as often as it needs to.

    Sender and receiver stay open: the SDK takes a second to close each.
    """

    def __init__(self, node: ServedBroker) -> None:
        self._connection_string = node.connection_string
        self._connect()

    def _connect(self) -> None:
        self._client = ServiceBusClient.from_connection_string(self._connection_string, retry_total=0)
        self._sender = self._client.get_queue_sender(QUEUE)
        self._receiver = self._client.get_queue_receiver(QUEUE, max_wait_time=5)

    def send(self, *bodies: str) -> list[str]:
        """Send each message until it is acknowledged. Return the acknowledged ones."""
        for body in bodies:
            message = ServiceBusMessage(body)
            self._until_done(lambda message=message: self._sender.send_messages(message))  # type: ignore[misc]
        return list(bodies)

    def try_to_send(self, body: str) -> list[str]:
        """Send a message once. Return it if it was acknowledged."""
        try:
            self._sender.send_messages(ServiceBusMessage(body))
        except (ServiceBusError, OSError):
            return []
        return [body]

    def complete(self, wanted: int) -> list[str]:
        """Receive and complete so many messages. Return their bodies, in order of completion."""
        completed: list[str] = []

        def work() -> None:
            while len(completed) < wanted:
                for message in self._receiver.receive_messages(max_message_count=wanted - len(completed)):
                    self._receiver.complete_message(message)
                    completed.append(str(message))

        self._until_done(work)
        return completed

    def remaining(self) -> list[str]:
        """Peek at all messages."""
        found: list[str] = []

        def peek() -> None:
            found[:] = [str(each) for each in self._receiver.peek_messages(max_message_count=250, sequence_number=1)]

        self._until_done(peek)
        return found

    def close(self) -> None:
        threads = [Thread(target=each.close) for each in (self._sender, self._receiver)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._client.close()

    def _until_done(self, work: Callable[[], object]) -> None:
        end = time.monotonic() + SECONDS
        while True:
            try:
                work()
                return
            except (ServiceBusError, OSError):
                assert time.monotonic() < end, "the service was not back in time"
                self.close()
                self._connect()


@pytest.fixture
def connect() -> Iterator[Callable[[ServedBroker], Client]]:
    with ExitStack() as stack:
        yield lambda node: stack.enter_context(closing(Client(node)))


Connect = Callable[[ServedBroker], Client]


def bodies(name: str, number: int) -> list[str]:
    return [f"{name}-{index}" for index in range(number)]


def test_a_client_of_the_standby_sends_and_receives_through_it(cluster: Cluster, connect: Connect) -> None:
    active, standby = cluster.start_two()
    through = connect(standby)
    sent = through.send(*bodies("relayed", 5))
    assert connect(active).remaining() == sent
    assert through.complete(5) == sent
    trust = ssl.create_default_context(cafile=cluster.authority)
    for scheme in "http", "https":
        with urlopen(f"{scheme}://127.0.0.1:{standby.port}/health", timeout=SECONDS, context=trust) as answer:
            assert json.load(answer)["status"] == "healthy"
    with ServiceBusClient.from_connection_string(
        standby.connection_string.replace("UseDevelopmentEmulator=true;", ""),
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"https://127.0.0.1:{standby.port}",
        connection_verify=str(cluster.authority),
    ) as over_websocket:
        over_websocket.get_queue_sender(QUEUE).send_messages(ServiceBusMessage("over WebSocket"))
    assert through.remaining() == ["over WebSocket"]


def test_after_a_kill_every_acknowledged_message_is_there_once_and_no_completed_one(
    cluster: Cluster, connect: Connect
) -> None:
    active, standby = cluster.start_two()
    client = connect(standby)
    first = client.send(*bodies("before", 12))
    assert client.complete(5) == first[:5]
    epoch, _, _ = cluster.lease
    assert standby.log.count("node standby") == 1
    assert f"node standby epoch={epoch} " in standby.log
    active.kill()
    second = client.send(*bodies("after", 3))
    assert client.remaining() == first[5:] + second
    assert client.complete(10) == first[5:] + second
    assert client.remaining() == []
    assert cluster.lease[0] == epoch + 1
    assert cluster.address == f"127.0.0.1:{standby.port}"


def test_a_stopped_node_hands_over_in_good_order(cluster: Cluster, connect: Connect) -> None:
    active, standby = cluster.start_two()
    client = connect(standby)
    sent = client.send(*bodies("before", 3))
    assert active.stop() == 0
    cluster.wait_for(standby)
    assert client.remaining() == sent
    assert "lease could not be released" not in active.log


def test_a_standby_that_is_stopped_leaves_the_lease_alone(cluster: Cluster) -> None:
    active, standby = cluster.start_two()
    epoch, _, _ = cluster.lease
    assert standby.stop() == 0
    assert cluster.lease[0] == epoch
    assert active.process.poll() is None


def test_a_paused_node_that_was_replaced_exits_75_and_acknowledges_nothing(cluster: Cluster, connect: Connect) -> None:
    active, standby = cluster.start_two()
    old = connect(active)
    sent = old.send(*bodies("before", 3))
    active.process.send_signal(signal.SIGSTOP)
    # The message waits in the socket of the paused node, which finds it before it finds out about the take-over.
    acknowledged: list[str] = []
    sending = Thread(target=lambda: acknowledged.extend(old.try_to_send("too late")))
    sending.start()
    cluster.wait_for(standby)
    client = connect(standby)
    sent += client.send(*bodies("meanwhile", 3))
    epoch, _, last_commit = cluster.lease
    active.process.send_signal(signal.SIGCONT)
    assert active.process.wait(SECONDS) == FENCED
    sending.join(SECONDS)
    assert not sending.is_alive()
    assert acknowledged == []
    assert client.remaining() == sent
    # The control is the fence: no commit was added to it, and its epoch is still the new one.
    assert cluster.lease[0] == epoch
    assert cluster.lease[2] == last_commit
    assert standby.process.poll() is None


def test_a_connection_is_held_until_a_node_is_active(cluster: Cluster) -> None:
    """The standby reads nothing from it, and serves it itself after the take-over."""
    active, standby = cluster.start_two()
    active.kill()
    with urlopen(f"http://127.0.0.1:{standby.port}/metrics", timeout=SECONDS) as answer:
        assert b"peeklock" in answer.read()
    assert cluster.address == f"127.0.0.1:{standby.port}"


def test_a_restart_of_the_idle_database_changes_no_role(server: Server, cluster: Cluster, connect: Connect) -> None:
    active, standby = cluster.start_two()
    client = connect(standby)
    sent = client.send(*bodies("before", 3))
    epoch, beat, _ = cluster.lease
    server.stop()
    wait_until(lambda: "could not be renewed" in active.log, "the active node has noticed it", SECONDS)
    server.start()
    wait_until(lambda: cluster.lease[1] > beat + 3, "the lease is renewed again", SECONDS)
    wait_until(lambda: "the lease was read again" in standby.log, "the standby reads the lease", SECONDS)
    assert cluster.lease[0] == epoch
    assert client.remaining() == sent
    assert client.send("after") == ["after"]


def test_a_node_without_its_database_suspends_and_resumes(server: Server, cluster: Cluster, connect: Connect) -> None:
    active = cluster.start()
    cluster.wait_for(active)
    client = connect(active)
    sent = client.send(*bodies("before", 3))
    server.freeze()
    try:
        wait_until(lambda: "node suspended" in active.log, "the node suspends", SECONDS)
    finally:
        server.thaw()
    wait_until(lambda: "node resumed" in active.log, "the node resumes", SECONDS)
    assert client.remaining() == sent
    assert client.complete(3) == sent
    assert active.stop() == 0


def test_a_node_that_is_cut_off_suspends_and_exits_75_when_it_finds_out_that_it_was_replaced(
    server: Server, cluster: Cluster, connect: Connect
) -> None:
    with proxy_to(server.port) as proxy:
        active = cluster.start(make_conninfo(server.url, port=proxy.port))
        cluster.wait_for(active)
        standby = cluster.start()
        client = connect(standby)
        sent = client.send(*bodies("before", 3))
        proxy.block()
        wait_until(lambda: "node suspended" in active.log, "the node suspends", SECONDS)
        assert active.process.poll() is None
        cluster.wait_for(standby)
        sent += client.send("after")
        proxy.unblock()
        assert active.process.wait(SECONDS) == FENCED
        assert client.remaining() == sent


def test_a_database_that_lost_commits_stops_the_node_which_says_so(cluster: Cluster, connect: Connect) -> None:
    active = cluster.start()
    cluster.wait_for(active)
    client = connect(active)
    client.send(*bodies("before", 3))
    cluster.server.query(f"UPDATE {cluster.schema}.fence SET last_commit = last_commit - 1")
    assert client.try_to_send("after") == []
    assert active.process.wait(SECONDS) == FENCED
    assert "PostgreSQL lost acknowledged commits" in active.log
