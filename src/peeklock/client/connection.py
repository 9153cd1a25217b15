"""A blocking connection to any AMQP 1.0 peer: one thread, one socket, one engine.

Every call that waits also serves the whole connection: heartbeats, credit, answers to the peer. Nothing runs between
calls: a program that makes no call for longer than the peer's idle time-out must call `work` meanwhile.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Literal
from uuid import uuid4

from peeklock.amqp.performatives import Coordinator, Target
from peeklock.amqp.types import Symbol, UInt
from peeklock.client.errors import ClientError, ConnectionLost, Timeout, from_error
from peeklock.client.link import ClientLink
from peeklock.client.management import Management
from peeklock.client.receiver import ReceiveMode, Receiver
from peeklock.client.requests import Requester
from peeklock.client.sender import Sender
from peeklock.client.strings import Endpoint, parse_endpoint
from peeklock.client.tokens import Tokens
from peeklock.client.transactions import Transactions
from peeklock.client.wire import Wire
from peeklock.engine import connection as engine
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.events import (
    ConnectionClosed,
    IncomingDisposed,
    LinkAttached,
    LinkDetached,
    OutgoingDisposed,
    SessionEnded,
)
from peeklock.engine.opening import Settings
from peeklock.engine.sasl import SaslClient, plain
from peeklock.engine.session import Session
from peeklock.engine.states import SessionState
from peeklock.limits.amqp import MAX_FRAME_SIZE

TIMEOUT_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
SESSION_FILTER: Final = Symbol("com.microsoft:session-filter")

Sasl = Literal["auto", "anonymous", "plain", "none"]


def connect(
    address: str,
    *,
    sasl: Sasl = "auto",
    user: str | None = None,
    password: str | None = None,
    tls: ssl.SSLContext | None = None,
    hostname: str | None = None,
    container_id: str | None = None,
    max_frame_size: int = MAX_FRAME_SIZE,
    idle_time_out_ms: int = 60_000,
    timeout: float = TIMEOUT_SECONDS,
) -> Connection:
    """Connect to `amqp://user:pass@host:port`, `amqps://…` or a Service Bus connection string.

    `sasl="auto"` is PLAIN if there is a user, else ANONYMOUS. With `sasl="plain"` a connection string's key name and
    key are the user and the password. `tls` replaces the default context if the address asks for TLS. `hostname`
    replaces the host in the open. `timeout` (seconds) is that of this call and the default of all other calls.
    """
    endpoint = parse_endpoint(address)
    settings = Settings(
        container_id=container_id or f"peeklock-{uuid4()}",
        hostname=hostname or endpoint.host,
        max_frame_size=max_frame_size,
        idle_time_out_ms=idle_time_out_ms,
        properties={"product": "Peeklock client"},
    )
    role = _sasl(sasl, user or endpoint.user, password or endpoint.password, endpoint)
    context = (tls or ssl.create_default_context()) if endpoint.tls else None
    wire = Wire(endpoint.host, endpoint.port, context, timeout)
    connection = Connection(wire, engine.Connection(settings, role, is_server=False), endpoint, timeout)
    try:
        connection.open()
    except BaseException:
        wire.close()
        raise
    return connection


def _sasl(sasl: Sasl, user: str | None, password: str | None, endpoint: Endpoint) -> SaslClient | None:
    if sasl == "none":
        return None
    if sasl == "anonymous" or (sasl == "auto" and user is None):
        return SaslClient(hostname=endpoint.host)
    if sasl not in ("auto", "plain"):
        raise ValueError(f"sasl must be auto, anonymous, plain or none, not '{sasl}'")
    user, password = user or endpoint.key_name, password or endpoint.key
    if user is None:
        raise ValueError("SASL PLAIN requires a user in the address or as an argument")
    role = plain(user, password or "")
    role.hostname = endpoint.host
    return role


class Connection:
    """Made by `connect`. It is a context manager, and not thread-safe."""

    def __init__(self, wire: Wire, machine: engine.Connection, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self.timeout = timeout
        """Seconds; the default of all calls."""
        self._wire = wire
        self._engine = machine
        self._session: Session | None = None
        self._failure: ClientError | None = None
        self._tokens = Tokens(endpoint)
        self._cbs: Requester | None = None
        self._ticked_at = 0.0

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._failure is None and self._engine.opened

    @property
    def capabilities(self) -> frozenset[str]:
        """The capabilities that the peer offered in its open."""
        remote = self._engine.remote_open
        return (
            frozenset(str(each) for each in (remote.offered_capabilities or ())) if remote is not None else frozenset()
        )

    @property
    def writing(self) -> bool:
        """Whether there are bytes to be written."""
        return self._wire.full or bool(self._engine.out)

    def open(self) -> None:
        """Exchange headers and opens; `connect` calls this."""
        self._engine.connect()
        self.wait(lambda: self._engine.opened, self.timeout, "the peer's open")

    def close(self) -> None:
        """Send a close and wait for the answer, at most five seconds."""
        if self._failure is None:
            with suppress(ClientError):  # the connection is closed either way
                for link in list(self._session.links) if self._session is not None else ():
                    if isinstance(link.node, ClientLink):
                        link.node.close()
                self._engine.close()
                self.wait(lambda: self._engine.ended, min(self.timeout, _CLOSE_SECONDS), "the peer's close")
            self._failure = ConnectionLost("amqp:connection:forced", "the client closed the connection")
        self._wire.close()

    # --- links ---

    def authenticate(self, *entities: str, timeout: float | None = None) -> None:
        """Put a token to `$cbs` for these entities, or for the EntityPath of the connection string.

        Links do this by themselves. Tokens that are made of a key are renewed while the connection is used.
        """
        for entity in entities or ((self.endpoint.entity_path or ""),):
            self._tokens.put(self._cbs_requester(), entity, self._seconds(timeout))

    def sender(
        self,
        address: str | Target | Coordinator | None = None,
        *,
        properties: Mapping[Any, Any] | None = None,
        timeout: float | None = None,
    ) -> Sender:
        """Attach a sender; without an address, to the EntityPath of the connection string."""
        target = self._terminus(address, timeout) if address is None or isinstance(address, str) else address
        if isinstance(target, str):
            target = Target(address=target)
        return Sender(self, target, properties, self._seconds(timeout))

    def receiver(
        self,
        address: str | None = None,
        *,
        credit: int = 100,
        mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        filter: Mapping[Any, Any] | None = None,
        properties: Mapping[Any, Any] | None = None,
        timeout: float | None = None,
    ) -> Receiver:
        """Attach a receiver.

        The peer may send up to `credit` messages before `receive` returns them. With 0 each `receive` gives credit for
        its own messages only.
        """
        return Receiver(
            self,
            self._terminus(address, timeout),
            credit=credit,
            mode=ReceiveMode(mode),
            filter=filter,
            properties=properties,
            timeout=self._seconds(timeout),
        )

    def session_receiver(
        self,
        address: str | None = None,
        session_id: str | None = None,
        *,
        credit: int = 100,
        mode: ReceiveMode | str = ReceiveMode.PEEK_LOCK,
        wait: float | None = None,
    ) -> Receiver:
        """Attach a receiver to a session: the named session, or the next unlocked session with messages.

        LinkClosed if the named session is locked, or no session is available within `wait` seconds.
        """
        seconds = self._seconds(wait)
        return self.receiver(
            address,
            credit=credit,
            mode=mode,
            filter={SESSION_FILTER: session_id},
            properties={Symbol("com.microsoft:timeout"): UInt(int(seconds * 1000))},
            timeout=seconds + self.timeout,  # the peer reports that there is no session
        )

    def requester(self, address: str, *, dynamic: bool = False, timeout: float | None = None) -> Requester:
        """Attach links to send requests to `address` and to get its responses.

        Responses come from the same address, as with `$management` and `$cbs`, or with `dynamic` from a node that the
        peer creates for them.
        """
        if not address.startswith("$"):
            self._terminus(address.removesuffix("/$management"), timeout)
        return Requester(self, address, dynamic=dynamic, timeout=self._seconds(timeout))

    def management(self, entity: str, timeout: float | None = None) -> Management:
        """Return a client of the entity's `$management` node: peeking, scheduling, deleting many messages."""
        return Management(self, entity, timeout)

    def transactions(self, timeout: float | None = None) -> Transactions:
        """Attach a link to the peer's transaction coordinator."""
        return Transactions(self, timeout)

    def _terminus(self, address: str | None, timeout: float | None) -> str:
        address = address or self.endpoint.entity_path
        if not address:
            raise ValueError("the call requires an address, because the connection string has no EntityPath")
        if self.endpoint.has_token and not self._tokens.has(address):
            self.authenticate(address, timeout=timeout)
        return address

    def _cbs_requester(self) -> Requester:
        if self._cbs is None or self._cbs.closed:
            self._cbs = Requester(self, "$cbs", dynamic=False, timeout=self.timeout)
        return self._cbs

    # --- the loop ---

    def work(self, seconds: float = 0.0) -> None:
        """Serve the connection for so many seconds: send heartbeats, and read what the peer sends."""
        deadline = time.monotonic() + seconds
        self.turn(seconds)
        while (left := deadline - time.monotonic()) > 0:
            self.turn(left)

    def wait(self, done: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Serve the connection until `done`; `what` is named in the Timeout."""
        seconds = self._seconds(timeout)
        deadline = time.monotonic() + seconds
        self.flush()
        has_looked = False
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 and has_looked:
                raise Timeout(f"{what} did not arrive within {seconds:g} seconds")
            try:
                self.turn(left)
                has_looked = True
            except ClientError:
                if done():
                    return  # it arrived before the connection ended
                raise

    def turn(self, seconds: float) -> None:
        """Write, wait at most so many seconds for bytes to read, and handle them."""
        self.flush()
        try:
            data = self._wire.wait(max(0.0, min(seconds, self._tick_at - time.monotonic())))
            if data:
                self._handle(self._engine.receive(data))
            self._engine.congested = self._wire.full
            # The clock is read after reading, so that bytes that arrived between calls reset the idle timer.
            if time.monotonic() >= self._tick_at:
                self._tick()
        except ConnectionLost as lost:
            self._lose(lost)
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket accepts. Raise the failure if the connection has ended."""
        self.check()
        out = self._engine.take_output()
        if out or self._wire.full:
            try:
                self._wire.write(out)
            except ConnectionLost as lost:
                self._lose(lost)
                raise
            self._engine.congested = self._wire.full

    def check(self) -> None:
        """Raise the failure if the connection has ended."""
        if self._failure is not None:
            raise self._failure

    def session(self) -> Session:
        """Return the session for new links."""
        session = self._session
        if session is None or session.state not in (SessionState.BEGIN_SENT, SessionState.MAPPED):
            session = self._session = self._engine.begin()
        return session

    @property
    def _tick_at(self) -> float:
        """The time of the next tick; the idle time-out in the peer's open may make it earlier."""
        return self._ticked_at + self._engine.tick_interval

    def _tick(self) -> None:
        self._ticked_at = time.monotonic()
        self._handle(self._engine.tick(self._ticked_at))
        if self._tokens.is_due():
            with suppress(ClientError):  # the links report the failure
                self._tokens.renew(self._cbs_requester())

    def _handle(self, events: list[Any]) -> None:
        for event in events:
            kind = type(event)
            if kind is IncomingDelivery:
                event.link.node.on_delivery(event)
            elif kind is OutgoingDisposed:
                event.link.node.on_outcome(event)
            elif kind is IncomingDisposed:
                event.link.node.on_confirmed(event)
            elif kind is LinkAttached:
                self._on_attached(event)
            elif kind is LinkDetached:
                self._on_detached(event)
            elif kind is SessionEnded:
                for link in event.session.links:
                    if isinstance(link.node, ClientLink):
                        link.node.on_detached(event.error)
            elif kind is ConnectionClosed:
                with suppress(ConnectionLost):
                    self._wire.write(self._engine.take_output())  # the answer to the close, if the peer still reads
                self._lose(from_error(ConnectionLost, event.error, "the peer closed the connection"))

    def _on_attached(self, event: LinkAttached) -> None:
        node = event.link.node
        if isinstance(node, ClientLink):
            node.on_attached()
        else:
            event.link.detach()  # the client did not ask for this link

    def _on_detached(self, event: LinkDetached) -> None:
        if isinstance(event.link.node, ClientLink):
            event.link.node.on_detached(event.error)

    def _lose(self, failure: ClientError) -> None:
        if self._failure is None:
            self._failure = failure

    def _seconds(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else timeout
