"""A small server on our own engine, in a thread: queues, `$cbs`, requests, and misbehaviour on demand.

Addresses: `missing` is refused, `mute` is never answered, `fragile` is detached by the first message, `fatal` closes
the connection; `$cbs` takes tokens; `echo` answers requests, two at a time and in reverse when they say `pair`.
Anything else is a queue. A message with `reject`, `release` or `ignore` in its body is treated so.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections import defaultdict, deque
from typing import Any

from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted, Error, Modified, Rejected, Released
from peeklock.amqp.performatives import Source
from peeklock.engine.connection import Connection
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
from peeklock.engine.events import CreditChanged, LinkAttached, OutgoingDisposed
from peeklock.engine.links import Link, Receiver, Sender
from peeklock.engine.opening import Settings
from peeklock.engine.sasl import SaslServer

ACCEPTED, RELEASED = Accepted().encode(), Released().encode()
CREDIT = 2000


def error(condition: str, description: str) -> Error:
    return Error(condition=condition, description=description)


class EngineServer:
    """Listens on a free port of the loopback until `stop`."""

    def __init__(self, *, tls: ssl.SSLContext | None = None) -> None:
        self.queues: dict[str, deque[bytes]] = defaultdict(deque)
        self.dead_letters: list[tuple[bytes, Rejected]] = []
        self.modified: list[Modified] = []
        self.tokens: list[dict[Any, Any]] = []
        self.identities: list[Any] = []
        self.locks_are_lost = False
        self.max_message_size = 1_000_000
        self.pause_credit = False
        self._tls = tls
        self._pairs: list[tuple[Receiver, Message]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._stopper, self._stop_reader = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="engine-server")
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def __enter__(self) -> EngineServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopper.close()
        self._thread.join(10)
        self._listener.close()
        self._stop_reader.close()

    def fill(self, address: str, count: int, size: int = 10) -> None:
        self.queues[address].extend(Message(data=[b"%0*d" % (size, number)]).encode() for number in range(count))

    # --- sockets ---

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop_reader, selectors.EVENT_READ)
            peers: dict[Any, Connection] = {}
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stop_reader:
                        for sock in peers:
                            sock.close()
                        return
                    if key.fileobj is self._listener:
                        accepted = self._accept()
                        if accepted is not None:
                            selector.register(accepted, selectors.EVENT_READ)
                            peers[accepted] = self._new_engine()
                    elif not self._serve(key.fileobj, peers[key.fileobj]):
                        selector.unregister(key.fileobj)
                        peers.pop(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]

    def _accept(self) -> Any:
        sock, _ = self._listener.accept()
        sock.settimeout(10)
        if self._tls is None:
            return sock
        try:
            return self._tls.wrap_socket(sock, server_side=True)
        except OSError:
            sock.close()
            return None

    def _new_engine(self) -> Connection:
        settings = Settings(container_id="engine-server")
        return Connection(settings, SaslServer(["PLAIN", "ANONYMOUS"], self._authenticate), is_server=True)

    def _authenticate(self, mechanism: str, response: bytes) -> Any:
        if mechanism == "PLAIN" and response != b"\x00user\x00pass word":
            return None
        self.identities.append(mechanism)
        return mechanism

    def _serve(self, sock: Any, engine: Connection) -> bool:
        try:
            data = sock.recv(262144)
            while isinstance(sock, ssl.SSLSocket) and sock.pending():
                data += sock.recv(262144)
            if not data:
                return False
            for event in engine.receive(data):
                self._handle(engine, event)
            self._write(sock, engine)
        except OSError:
            return False
        return not engine.ended

    def _write(self, sock: Any, engine: Connection) -> None:
        out = engine.take_output()
        if out:
            sock.sendall(b"".join(out))

    # --- links ---

    def _handle(self, engine: Connection, event: Any) -> None:
        if isinstance(event, LinkAttached):
            self._attach(engine, event.link)
        elif isinstance(event, IncomingDelivery):
            self._take(engine, event)
        elif isinstance(event, OutgoingDisposed):
            for delivery in event.deliveries:
                self._settle(delivery, event.state, event.settled)
            self._deliver(event.link)
        elif isinstance(event, CreditChanged):
            self._deliver(event.link)

    def _attach(self, engine: Connection, link: Link) -> None:
        assert link.remote is not None
        terminus: Any = link.remote.source if isinstance(link, Sender) else link.remote.target
        link.node = terminus.address
        if link.node == "mute":
            return
        if link.node == "missing":
            link.refuse(error(Condition.NOT_FOUND, "there is no entity 'missing'"))
        elif link.node == "fatal":
            engine.close(error(Condition.CONNECTION_FORCED, "as you wish"))
        elif isinstance(link, Sender):
            if terminus.dynamic:
                link.node = "dynamic-1"
                link.accept(source=Source(address="dynamic-1", dynamic=True))
            else:
                link.accept()
        else:
            assert isinstance(link, Receiver)
            link.accept(max_message_size=self.max_message_size)
            if not self.pause_credit:
                link.grant(CREDIT)

    def _take(self, engine: Connection, delivery: IncomingDelivery) -> None:
        link = delivery.link
        if link.credit < CREDIT // 2:
            link.grant(CREDIT)
        if link.node in ("$cbs", "echo"):
            delivery.dispose(ACCEPTED)
            self._answer(link, Message.decode(delivery.payload))
        elif link.node == "fragile":
            link.detach(error(Condition.DETACH_FORCED, "it broke"))
        elif b"reject" in delivery.payload:
            delivery.dispose(Rejected(error=error(Condition.NOT_ALLOWED, "we do not like it")).encode())
        elif b"release" in delivery.payload:
            delivery.dispose(RELEASED)
        elif b"ignore" not in delivery.payload:
            self.queues[link.node].append(delivery.payload)
            delivery.dispose(ACCEPTED)

    def _deliver(self, link: Sender) -> None:
        queue = self.queues[link.node]
        assert link.remote is not None
        while queue and link.ready():
            payload = queue.popleft()
            settled = link.remote.snd_settle_mode == 1
            link.send(len(queue).to_bytes(16, "big"), [payload], settled=settled, context=payload)
        if link.drain and not queue:
            link.finish_drain()
            link.drain = False

    def _settle(self, delivery: OutgoingDelivery, state: Any, settled: bool) -> None:
        if self.locks_are_lost:
            lost = Rejected(error=error(Condition.MESSAGE_LOCK_LOST, "too late"))
            delivery.settle(lost.encode())
            return
        queue = self.queues[delivery.link.node]
        if isinstance(state, Released):
            queue.append(delivery.context)
        elif isinstance(state, Modified):
            self.modified.append(state)
            queue.append(delivery.context)
        elif isinstance(state, Rejected):
            self.dead_letters.append((delivery.context, state))
            state = Rejected()
        if not settled:
            delivery.settle(state.encode())

    # --- requests ---

    def _answer(self, link: Receiver, request: Message) -> None:
        properties = request.application_properties or {}
        if properties.get("silent"):
            return
        if properties.get("pair"):
            self._pairs.append((link, request))
            if len(self._pairs) == 2:
                while self._pairs:
                    self._respond(*self._pairs.pop())
            return
        self._respond(link, request)

    def _respond(self, link: Receiver, request: Message) -> None:
        assert request.properties is not None
        properties = dict(request.application_properties or {})
        status = 200
        if link.node == "$cbs":
            self.tokens.append({**properties, "token": request.value})
            status = 401 if "skn=wrong" in request.value else 202
        for other in link.session.links:
            assert other.remote is not None
            target: Any = other.remote.target
            if isinstance(other, Sender) and request.properties.reply_to in (target.address, other.node):
                response = Message(
                    properties=Properties(correlation_id=request.properties.message_id),
                    application_properties={**properties, "status-code": status, "status-description": "so be it"},
                    value=None,
                )
                other.send(b"r", [response.encode()])
                return
        raise AssertionError(f"nobody listens for {request.properties.reply_to}")
