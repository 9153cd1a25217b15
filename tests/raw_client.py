"""A client of one connection for tests of the server: our engine in the client's role on a blocking byte stream.

Shows what the SDKs hide: how a connection ends, when heartbeats come, what happens to a client that does not read.
"""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import Any, Protocol, TypeVar

import websocket

from peeklock.amqp.composites import decode_composite
from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Accepted, Rejected
from peeklock.amqp.performatives import Attach, Error, Source, Target
from peeklock.client.connection import SESSION_FILTER
from peeklock.engine.connection import Connection
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
from peeklock.engine.events import ConnectionClosed, LinkAttached, LinkDetached, OutgoingDisposed
from peeklock.engine.links import Receiver, Sender
from peeklock.engine.opening import Settings
from peeklock.engine.sasl import SaslRole, plain
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME

T = TypeVar("T")
PATIENCE = 20.0
"""Seconds after which a test that waits has failed."""
HOST = "127.0.0.1"


def eventually(condition: Callable[[], T]) -> T:
    """What the condition gives once it gives something true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
    return found


# --- byte streams ---


class Stream(Protocol):
    def sendall(self, data: bytes) -> None: ...
    def recv(self, size: int) -> bytes: ...
    def close(self) -> None: ...


def dial(port: int, *, receive_buffer: int | None = None) -> socket.socket:
    stream = socket.socket()
    stream.settimeout(PATIENCE)
    if receive_buffer is not None:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    stream.connect((HOST, port))
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return stream


def trusting(authority: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority))


def dial_tls(port: int, authority: Path) -> ssl.SSLSocket:
    return trusting(authority).wrap_socket(dial(port), server_hostname=HOST)


class WebSocketStream:
    """A WebSocket as a stream of bytes."""

    def __init__(
        self,
        port: int,
        authority: Path | None = None,
        *,
        path: str = "/$servicebus/websocket",
        subprotocols: tuple[str, ...] = ("AMQPWSB10",),
    ) -> None:
        scheme = "ws" if authority is None else "wss"
        self.socket = websocket.create_connection(
            f"{scheme}://{HOST}:{port}{path}",
            timeout=PATIENCE,
            subprotocols=list(subprotocols),
            sslopt={} if authority is None else {"ca_certs": str(authority)},
        )

    @property
    def subprotocol(self) -> str | None:
        found: str | None = self.socket.subprotocol
        return found

    def sendall(self, data: bytes) -> None:
        self.socket.send_binary(data)

    def recv(self, size: int) -> bytes:
        try:
            data = self.socket.recv()
        except websocket.WebSocketConnectionClosedException:
            return b""
        if isinstance(data, str):
            assert data == "", "a text message came"
            return b""
        return data

    def close(self) -> None:
        self.socket.close()


def read_to_end(stream: Stream) -> bytes:
    """All that comes until the other side hangs up."""
    found = b""
    try:
        while data := stream.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def get(port: int, path: str, authority: Path | None = None, **headers: str) -> tuple[int, str]:
    """Status and text of an HTTP answer."""
    connection = (
        HTTPConnection(HOST, port, timeout=PATIENCE)
        if authority is None
        else HTTPSConnection(HOST, port, timeout=PATIENCE, context=trusting(authority))
    )
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def health(port: int) -> tuple[int, str, str]:
    """Status code, status and message."""
    code, text = get(port, "/health")
    answer = json.loads(text)
    return code, answer["status"], answer["message"]


# --- AMQP ---


class RawClient:
    """One AMQP connection. Whatever waits here keeps the connection going."""

    def __init__(
        self,
        stream: Stream,
        *,
        sasl: SaslRole | None = None,
        key: str = DEFAULT_KEY,
        idle_time_out_ms: int | None = None,
        slowly: bool = False,
    ) -> None:
        """`slowly` sends byte by byte."""
        self.stream = stream
        self._slowly = slowly
        settings = Settings(container_id="test", hostname=HOST, idle_time_out_ms=idle_time_out_ms)
        self.engine = Connection(settings, sasl or plain(DEFAULT_KEY_NAME, key), is_server=False)
        self.events: list[Any] = []
        self.heartbeats = 0
        self._outcomes: dict[OutgoingDelivery, Any] = {}
        self._deliveries: list[IncomingDelivery] = []
        self._links = 0
        self.engine.connect()

    @classmethod
    def opened(cls, port: int, **options: Any) -> RawClient:
        client = cls(dial(port), **options)
        client.open()
        return client

    def open(self) -> None:
        self.wait(lambda: self.engine.opened)
        self._session = self.engine.begin()

    def write(self) -> None:
        data = b"".join(self.engine.take_output())
        if self._slowly:
            for at in range(len(data)):
                self.stream.sendall(data[at : at + 1])
        elif data:
            self.stream.sendall(data)

    def read(self) -> None:
        """Take what comes next; ConnectionError when nothing will."""
        data = self.stream.recv(65536)
        if not data:
            raise ConnectionResetError("the broker hung up")
        if data == b"\x00\x00\x00\x08\x02\x00\x00\x00":
            self.heartbeats += 1
        for event in self.engine.receive(data):
            self.events.append(event)
            if isinstance(event, OutgoingDisposed):
                for delivery in event.deliveries:
                    self._outcomes[delivery] = event.state
            elif isinstance(event, IncomingDelivery):
                self._deliveries.append(event)

    def wait(self, condition: Callable[[], T]) -> T:
        """Carry bytes until the condition gives something true."""
        while True:
            self.write()
            if found := condition():
                return found
            self.read()

    def closed_with(self) -> Error | None:
        """Wait for the broker's close, answer it, and say why it closed."""
        while True:
            with suppress(OSError):  # who hung up does not wait for the answer
                self.write()
            for event in self.events:
                if isinstance(event, ConnectionClosed):
                    return event.error
            self.read()

    def sender(self, address: str = "queue") -> Sender:
        link = self._session.sender(self._name())
        link.attach(
            Attach(
                name=link.name,
                handle=link.handle,
                role=False,
                source=Source(address="here"),
                target=Target(address=address),
                initial_delivery_count=0,
            )
        )
        self._await_attach(link)
        self.wait(lambda: link.credit > 0)
        return link

    def receiver(
        self, address: str = "queue", *, credit: int = 100, deletes: bool = False, session: str | None = None
    ) -> Receiver:
        link = self._session.receiver(self._name())
        filters = None if session is None else {SESSION_FILTER: session}
        link.attach(
            Attach(
                name=link.name,
                handle=link.handle,
                role=True,
                snd_settle_mode=1 if deletes else 0,
                rcv_settle_mode=0 if deletes else 1,
                source=Source(address=address, filter=filters),
                target=Target(address="here"),
            )
        )
        self._await_attach(link)
        if credit:
            link.grant(credit)
            self.write()
        return link

    def post(self, link: Sender, body: bytes, *, settled: bool = False) -> OutgoingDelivery | None:
        """Send without waiting for the outcome."""
        tag = link.session.next_delivery_id.to_bytes(16)
        return link.send(tag, (Message(data=[body]).encode(),), settled=settled)

    def outcome(self, delivery: OutgoingDelivery | None) -> Any:
        """What became of a message that was sent."""
        assert delivery is not None
        self.wait(lambda: delivery in self._outcomes)
        return self._outcomes[delivery]

    def send(self, link: Sender, *bodies: bytes) -> None:
        """Send and insist on every one being accepted."""
        for delivery in [self.post(link, body) for body in bodies]:
            assert isinstance(self.outcome(delivery), Accepted)

    def refusal(self, link: Sender, body: bytes) -> Error:
        """Send and insist on its being rejected: the error."""
        state = self.outcome(self.post(link, body))
        assert isinstance(state, Rejected)
        assert state.error is not None
        return state.error

    def receive(self, count: int) -> list[IncomingDelivery]:
        self.wait(lambda: len(self._deliveries) >= count)
        taken, self._deliveries = self._deliveries[:count], self._deliveries[count:]
        return taken

    def complete(self, delivery: IncomingDelivery) -> None:
        """Complete a message and wait for the broker to confirm it."""
        session = delivery.link.session
        delivery.dispose(Accepted().encode(), settled=False)
        self.wait(lambda: delivery.delivery_id not in session.incoming_unsettled)

    def close(self) -> None:
        self.stream.close()

    def _name(self) -> str:
        self._links += 1
        return f"link-{self._links}"

    def _await_attach(self, link: Any) -> None:
        def answered() -> bool:
            for event in self.events:
                if isinstance(event, LinkDetached) and event.link is link:
                    raise AssertionError(f"the broker refused the link: {event.error}")
            return any(isinstance(event, LinkAttached) and event.link is link for event in self.events)

        self.wait(answered)


def body_of(delivery: IncomingDelivery) -> bytes:
    return b"".join(Message.decode(delivery.payload).data)


def first_performative(data: bytes) -> Any:
    """The performative of the first frame in the data, behind any protocol headers."""
    at = 0
    while data[at : at + 4] == b"AMQP":
        at += 8
    return decode_composite(data, at + 8)[0]
