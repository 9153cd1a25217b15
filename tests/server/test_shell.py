"""One connection: throttling, heartbeats, its end, and SASL."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from peeklock.amqp.errors import Condition
from peeklock.engine.links import Sender
from peeklock.engine.sasl import SaslClient
from peeklock.limits.amqp import MAX_UNAUTHENTICATED_LINKS
from peeklock.limits.server import Limits
from peeklock.nodes.peer import Peer
from peeklock.nodes.receiving import ReceivingNode
from peeklock.nodes.sending import SendingNode
from peeklock.server.shell import Shell
from raw_client import RawClient, body_of, dial, eventually, get, read_to_end
from server.held_store import HeldStore
from serving import BrokerThread, StartBroker

SMALL = Limits(
    unsaved_high=1_000_000, unsaved_low=500_000, unsaved_total=3_000_000, unread_answers=10_000, closing_seconds=0.2
)
ONE_READ = 2 * 262_144
"""More bytes than one read of a socket returns."""


class Held:
    """A broker with a disk that hangs, and threads for the clients of a test."""

    def __init__(self, start: StartBroker, limits: Limits) -> None:
        self.store = HeldStore()
        self.broker = start(data=None, limits=limits, make_store=lambda call: self.store)
        self.port = self.broker.broker.port
        self.namespace = self.broker.broker.namespace
        self._threads: list[threading.Thread] = []

    def hold(self) -> None:
        self.broker.call(self.store.hold)

    def meanwhile(self, action: Callable[[], None]) -> None:
        thread = threading.Thread(target=action)
        thread.start()
        self._threads.append(thread)

    def go_on(self) -> None:
        """Let the disk work again, and wait for the threads."""
        self.broker.call(self.store.let_go)
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()
        self._threads.clear()

    def saved(self) -> int:
        return self.broker.call(lambda: self.namespace.queue("queue").counters.active)


@pytest.fixture
def held(start_broker: StartBroker) -> Iterator[Held]:
    held = Held(start_broker, SMALL)
    yield held
    held.go_on()


def shell_of(broker: BrokerThread, kind: type[SendingNode] | type[ReceivingNode]) -> Shell:
    """Return the only connection with a link of this kind."""
    (shell,) = (s for s in broker.broker.shells if any(isinstance(node, kind) for node in s.peer.nodes))
    return shell


def delivered_to(shell: Shell) -> int:
    return sum(node._link.unsettled for node in shell.peer.nodes if isinstance(node, ReceivingNode))


# --- a store that is slower than its senders ---


def test_a_fast_sender_is_throttled_while_the_store_hangs(held: Held) -> None:
    client = RawClient.opened(held.port)
    link = client.sender()
    shell = shell_of(held.broker, SendingNode)
    held.hold()

    def flood() -> None:
        for _ in range(600):
            client.post(link, bytes(50_000), settled=True)
            client.write()

    held.meanwhile(flood)
    eventually(lambda: held.broker.call(lambda: not shell.reading))
    unsaved = held.broker.call(lambda: shell.peer.unsaved_bytes)
    assert SMALL.unsaved_high < unsaved <= SMALL.unsaved_high + ONE_READ
    held.go_on()
    eventually(lambda: held.saved() == 600)
    assert held.broker.call(lambda: (shell.reading, shell.peer.unsaved_bytes)) == (True, 0)


def test_small_messages_count_with_their_overhead(held: Held) -> None:
    client = RawClient.opened(held.port)
    link = client.sender()
    shell = shell_of(held.broker, SendingNode)
    held.hold()
    for _ in range(5_000):
        client.post(link, b"", settled=True)
    held.meanwhile(client.write)
    eventually(lambda: held.broker.call(lambda: not shell.reading))
    held.go_on()
    eventually(lambda: held.saved() == 5_000)


def test_many_senders_together_are_throttled_too(held: Held) -> None:
    clients = [RawClient.opened(held.port) for _ in range(10)]
    links = [client.sender() for client in clients]
    held.hold()

    def flood(client: RawClient, link: Sender) -> None:
        for _ in range(60):
            client.post(link, bytes(50_000), settled=True)
            client.write()

    for client, link in zip(clients, links, strict=True):
        held.meanwhile(partial(flood, client, link))
    shells = held.broker.broker.shells
    eventually(lambda: held.broker.call(lambda: not any(shell.reading for shell in shells)))
    total = held.broker.call(lambda: held.namespace.journal.unsaved_bytes)
    assert SMALL.unsaved_total < total <= SMALL.unsaved_total + 10 * ONE_READ
    held.go_on()
    eventually(lambda: held.saved() == 600)
    assert held.broker.call(lambda: all(shell.reading for shell in shells))
    assert held.namespace.journal.unsaved_bytes == 0


@pytest.mark.interpreted
def test_unsaved_messages_of_closed_connections_still_count(held: Held, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.nodes.sending.MAX_UNSAVED_BYTES", 1_000_000)
    held.hold()
    gone = RawClient.opened(held.port)
    link = gone.sender()
    for _ in range(30):
        gone.post(link, bytes(50_000), settled=True)
    gone.write()
    eventually(lambda: held.broker.call(lambda: held.namespace.journal.unsaved_bytes > 1_000_000))
    gone.close()
    client = RawClient.opened(held.port)
    assert client.refusal(client.sender(), b"one more").condition == Condition.SERVER_BUSY
    held.go_on()
    eventually(lambda: held.namespace.journal.unsaved_bytes == 0)
    client.send(client.sender(), b"now it goes")


def test_other_clients_are_served_while_a_commit_hangs(held: Held) -> None:
    sender = RawClient.opened(held.port)
    link = sender.sender()
    peer = RawClient.opened(held.port, idle_time_out_ms=200)
    held.hold()
    delivery = sender.post(link, b"on its way")
    sender.write()
    eventually(lambda: held.broker.call(lambda: held.namespace.journal.unsaved_bytes))
    assert get(held.port, "/metrics")[0] == 200
    peer.wait(lambda: peer.heartbeats >= 3)
    assert sender.engine.opened
    RawClient.opened(held.port).receiver()
    held.go_on()
    sender.outcome(delivery)


# --- a client that does not read ---


def test_a_receiver_that_does_not_read_is_throttled_alone(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    port = broker.broker.port
    sender = RawClient.opened(port)
    link = sender.sender()
    unread = RawClient.opened(port)
    unread.receiver(credit=100_000)
    shell = shell_of(broker, ReceivingNode)
    while not broker.call(lambda: shell.connection.congested):
        sender.send(link, *(bytes(200_000) for _ in range(20)))
    taken = broker.call(lambda: delivered_to(shell))
    other = RawClient.opened(port)
    other.receiver(credit=100_000)
    sender.send(link, *(bytes(200_000) for _ in range(20)), b"the last")
    while body_of(other.receive(1)[0]) != b"the last":
        pass
    assert broker.call(lambda: delivered_to(shell)) == taken
    # When the receiver reads again, it gets messages again.
    unread.receive(taken)
    eventually(lambda: broker.call(lambda: not shell.connection.congested))
    other.close()
    eventually(lambda: len(broker.broker.shells) == 2)
    sender.send(link, b"one more")
    assert body_of(unread.receive(1)[0]) == b"one more"


def test_a_receiver_that_does_not_read_does_not_get_all_its_credit_in_one_turn(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    port = broker.broker.port
    sender = RawClient.opened(port)
    link = sender.sender()
    for _ in range(100):
        sender.send(link, *(bytes(10_000) for _ in range(40)))
    unread = RawClient.opened(port)
    unread.receiver(credit=4000)
    shell = shell_of(broker, ReceivingNode)
    eventually(lambda: broker.call(lambda: shell.connection.congested))
    taken = broker.call(lambda: delivered_to(shell))
    assert taken < 4000
    assert len(unread.receive(4000)) == 4000
    assert broker.call(lambda: delivered_to(shell)) == 4000


def test_a_client_that_never_reads_its_answers_is_throttled(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    stream = dial(broker.broker.port, receive_buffer=4096)
    client = RawClient(stream)
    client.open()
    link = client.sender()
    shell = shell_of(broker, SendingNode)
    give_up = threading.Event()

    def ask() -> None:
        while not give_up.is_set():
            for _ in range(1000):
                link.session.send_flow(echo=True)
            try:
                client.write()
            except OSError:
                return

    thread = threading.Thread(target=ask)
    thread.start()
    eventually(lambda: broker.call(lambda: not shell.reading))
    give_up.set()
    stream.shutdown(socket.SHUT_RDWR)  # wakes a thread that is blocked in writing
    thread.join(timeout=30)
    assert not thread.is_alive()
    stream.close()
    eventually(lambda: not broker.broker.shells)


def test_a_client_that_does_not_read_its_close_is_aborted(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    port = broker.broker.port
    sender = RawClient.opened(port)
    link = sender.sender()
    unread = RawClient(dial(port, receive_buffer=4096))
    unread.open()
    unread.receiver(credit=100_000)
    shell = shell_of(broker, ReceivingNode)
    while not broker.call(lambda: shell.connection.congested):
        sender.send(link, *(bytes(200_000) for _ in range(20)))
    written = broker.call(lambda: delivered_to(shell)) * 200_000
    unread.stream.sendall(b"\xff" * 8)
    eventually(lambda: shell not in broker.broker.shells)
    transport = cast(asyncio.Transport, shell._transport)
    eventually(lambda: broker.call(transport.get_write_buffer_size) == 0)
    # The content of the socket buffers can be read; then the connection ends without the rest.
    assert len(read_to_end(unread.stream)) < written


# --- keeping it alive ---


def test_heartbeats_follow_the_clients_idle_time_out(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port, idle_time_out_ms=200)
    client.wait(lambda: client.heartbeats >= 5)


def test_a_busy_connection_gets_no_heartbeats(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port)
    link = client.sender()
    client.send(link, *(b"x" for _ in range(100)))
    assert client.heartbeats == 0


# --- the end of it ---


@pytest.mark.interpreted
def test_an_internal_failure_rejects_that_message_only(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker(data=None, limits=SMALL)
    victim, other = RawClient.opened(broker.broker.port), RawClient.opened(broker.broker.port)
    victims_link, others_link = victim.sender(), other.sender()
    node = next(n for s in broker.broker.shells for n in s.peer.nodes if n.peer.name.endswith(port_of(victim)))
    assert isinstance(node, SendingNode)

    def fail(delivery: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(node, "on_delivery", fail)
    error = victim.refusal(victims_link, b"SECRET-BODY")
    assert error.condition == Condition.INTERNAL_ERROR
    assert "mistake" not in error.description
    assert "a mistake of ours" in caplog.text
    assert "SECRET-BODY" not in caplog.text
    other.send(others_link, b"unharmed")
    monkeypatch.undo()
    victim.send(victims_link, b"unharmed, too")


def port_of(client: RawClient) -> str:
    return f":{client.stream.getsockname()[1]}"  # type: ignore[attr-defined]


@pytest.mark.interpreted
@pytest.mark.parametrize("moment", ["_tick", "_flush", "on_writable"])
def test_a_failure_outside_of_reading_closes_the_connection(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port, idle_time_out_ms=200)
    (shell,) = broker.broker.shells
    failed = threading.Event()

    def fail(*_: object) -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a mistake of ours")

    if moment == "_tick":
        monkeypatch.setattr(shell.connection, "tick", fail)
    elif moment == "_flush":
        monkeypatch.setattr(shell.connection, "take_output", fail)
        broker.call(shell.wake)
    else:
        monkeypatch.setattr(Peer, "on_writable", fail)
        broker.call(shell.resume_writing)
    eventually(failed.is_set)
    if moment == "_flush":  # closing the connection fails too, because it cannot be written to
        eventually(lambda: not broker.broker.shells)
        return
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.INTERNAL_ERROR
    eventually(lambda: not broker.broker.shells)


def test_a_close_is_answered(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port)
    client.engine.close()
    client.wait(lambda: client.engine.ended)
    assert client.stream.recv(1) == b""
    eventually(lambda: not broker.broker.shells)


def test_messages_stay_locked_when_the_client_disconnects(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port)
    client.send(client.sender(), b"held")
    client.receiver()
    client.receive(1)
    client.close()
    eventually(lambda: not broker.broker.shells)
    after = RawClient.opened(broker.broker.port)
    after.receiver()
    broker.advance(61)
    assert body_of(after.receive(1)[0]) == b"held"


def test_a_closed_connection_is_freed_before_its_token_expires(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    for _ in range(3):
        with (
            ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
            client.get_queue_sender("queue") as sender,
        ):
            sender.send_messages(ServiceBusMessage("hello"))
            assert broker.call(lambda: broker.broker.namespace.agenda.next_due) is not None
    eventually(lambda: broker.call(lambda: broker.broker.connections) == 0)
    assert broker.call(lambda: broker.broker.namespace.agenda.next_due) is None


# --- SASL ---


def test_plain_with_a_wrong_key_is_refused(start_broker: StartBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient(dial(broker.broker.port), key="a-wrong-guess")
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.UNAUTHORIZED_ACCESS
    assert "a-wrong-guess" not in caplog.text


@pytest.mark.parametrize("response", [b"", b"name", b"a\0b\0c\0d", b"\0\xff\xfe\0key"])
def test_a_malformed_plain_response_is_refused(start_broker: StartBroker, response: bytes) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient(dial(broker.broker.port), sasl=SaslClient("PLAIN", response))
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.UNAUTHORIZED_ACCESS


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS"])
def test_an_anonymous_client_can_open_and_has_no_rights(start_broker: StartBroker, mechanism: str) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port, sasl=SaslClient(mechanism))
    with pytest.raises(AssertionError, match=Condition.UNAUTHORIZED_ACCESS):
        client.sender()


def test_external_is_refused(start_broker: StartBroker, caplog: pytest.LogCaptureFixture) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient(dial(broker.broker.port), sasl=SaslClient("EXTERNAL"))
    assert client.closed_with() is not None
    refusal = next(record for record in caplog.records if record.message == "SASL refused")
    assert "certificates" in refusal.fields["reason"]  # type: ignore[attr-defined]


def test_an_unauthenticated_client_gets_few_links(start_broker: StartBroker) -> None:
    broker = start_broker(data=None, limits=SMALL)
    client = RawClient.opened(broker.broker.port, sasl=SaslClient())
    for _ in range(MAX_UNAUTHENTICATED_LINKS):
        client.receiver("$cbs", credit=0)
    with pytest.raises(AssertionError, match=Condition.RESOURCE_LIMIT_EXCEEDED):
        client.receiver("$cbs", credit=0)
