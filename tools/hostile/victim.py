"""The broker under attack, as one attack uses it: connections with and without rights, and requests."""

from __future__ import annotations

import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from peeklock.amqp.codec import decode_value
from peeklock.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import (
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Disposition,
    Flow,
    Open,
    Rejected,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from peeklock.client import sas_token
from tools.hostile.attack import require
from tools.hostile.lines import TIMEOUT, Line, frame

HOST: Final = "127.0.0.1"
ROOT, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
LISTENER, SENDER, OTHERS = "listener", "sender", "others"
"""Rules with fewer rights: Listen, Send, and Manage of the queue `other` only. Their keys are equal to their names."""
QUEUE, OTHER, SESSIONS, TOPIC, SUBSCRIPTION = "target", "other", "sessions", "topic", "all"
IDS = "ids"
"""A queue with duplicate detection."""
REMEMBERED_IDS: Final = 20_000
"""The limit of message ids that the broker stores for duplicate detection."""
FORWARDING, FORWARDED = "forwarding", "forwarded"
"""The first queue forwards to the second, which detects duplicates by partition."""
MESSAGING = "messaging"
"""A queue that is attacked over HTTP only, so that its content is known."""
KEPT, LIVE = "kept", "live"
"""The queues of the normal client."""
FULL, FULL_SESSIONS, FULL_TOPIC = "full", "full-sessions", "full-topic"
"""Entities of 1 MB on the small broker. A rule of the topic's subscription copies the property `given` eight times."""
FROM_ONE_ADDRESS: Final = 100
"""The limit of connections from one address on the small broker."""
CONFIG: Final[dict[str, Any]] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "hostile",
                "AuthorizationRules": [
                    {"Name": ROOT, "Rights": ["Manage"], "PrimaryKey": KEY},
                    {"Name": LISTENER, "Rights": ["Listen"], "PrimaryKey": LISTENER},
                    {"Name": SENDER, "Rights": ["Send"], "PrimaryKey": SENDER},
                ],
                "Queues": [
                    {"Name": KEPT},
                    {"Name": LIVE},
                    {"Name": QUEUE, "Properties": {"LockDuration": "PT5S", "MaxDeliveryCount": 2000}},
                    {
                        "Name": OTHER,
                        "AuthorizationRules": [{"Name": OTHERS, "Rights": ["Manage"], "PrimaryKey": OTHERS}],
                    },
                    {"Name": SESSIONS, "Properties": {"RequiresSession": True}},
                    {"Name": MESSAGING, "Properties": {"LockDuration": "PT5S", "MaxDeliveryCount": 2000}},
                    {"Name": IDS, "Properties": {"RequiresDuplicateDetection": True}},
                    {"Name": FORWARDING, "Properties": {"ForwardTo": FORWARDED}},
                    {
                        "Name": FORWARDED,
                        "Properties": {"RequiresDuplicateDetection": True, "EnablePartitioning": True},
                    },
                ],
                "Topics": [{"Name": TOPIC, "Subscriptions": [{"Name": SUBSCRIPTION}]}],
            }
        ],
        "Logging": {"Type": "Console"},
    }
}
"""The configuration of the usual and the strict broker."""


@dataclass(slots=True)
class Victim:
    port: int
    authority: Path
    """The authority of the broker's certificate."""
    attacker: str
    """The loopback address of the attacker."""
    certificate: Path | None = None
    """A client certificate with its key, if the broker requires TLS. All methods except `dial` then use TLS with it."""
    names: list[str] = field(default_factory=list)
    """The names of the attacker's connections in the log."""

    # --- connecting ---

    def dial(self, *, receive_buffer: int | None = None) -> Line:
        return Line(self._socket(receive_buffer))

    def dial_tls(self, certificate: Path | None = None, version: ssl.TLSVersion | None = None) -> Line:
        context = tls_context(self.authority, certificate)
        if version is not None:
            context.minimum_version = context.maximum_version = version
        stream = self._socket()
        try:
            return Line(context.wrap_socket(stream, server_hostname=HOST))
        except OSError:
            stream.close()
            raise

    def opened(self, *, receive_buffer: int | None = None, **fields: Any) -> Line:
        """Return an open connection with all rights."""
        line = self._enter(receive_buffer)
        response = f"\0{ROOT}\0{KEY}".encode()
        line.send(SASL_HEADER, frame(SaslInit(mechanism="PLAIN", initial_response=response), kind=SASL_FRAME))
        require(line.expect(SaslOutcome).code == 0, "the broker refused the root key")
        line.send(AMQP_HEADER, frame(Open(**{"container_id": "hostile", **fields})))
        line.expect(Open)
        return line

    def unauthenticated(self, **fields: Any) -> Line:
        """Return an open connection without any right."""
        line = self._enter()
        line.send(AMQP_HEADER, frame(Open(**{"container_id": "hostile", **fields})))
        line.expect(Open)
        return line

    def begun(self, **fields: Any) -> Line:
        """Return a connection with all rights and a session on channel 0."""
        return _begun(self.opened(**fields))

    def unauthenticated_session(self) -> Line:
        """Return a connection without any right and a session on channel 0."""
        return _begun(self.unauthenticated())

    def sending(self, address: str = QUEUE, **fields: Any) -> Line:
        """Return a connection with all rights and a sending link on handle 0 that has credit."""
        line = self.begun(**fields)
        line.send(frame(sender(address)))
        line.expect(Flow)
        return line

    def receiving(self, address: str = QUEUE, **fields: Any) -> Line:
        """Return a connection with all rights and a receiving link on handle 0 without credit."""
        line = self.begun(**fields)
        line.send(frame(receiver(address)))
        line.expect(Attach)
        return line

    def token(self, path: str = "", name: str = ROOT, key: str = KEY, seconds: float = 3600.0) -> str:
        return sas_token(f"http://{HOST}:{self.port}/{path}", name, key, time.time() + seconds)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Return an HTTP request with all rights."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}:{self.port}"]
        given = {"Authorization": self.token(), **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body:
            given.setdefault("Content-Length", str(len(body)))
        lines += [f"{name}: {value}" for name, value in given.items()]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body

    def ask(self, *request: bytes) -> tuple[int, bytes]:
        """Send a request on a new connection; returns status and body of the answer."""
        with self._enter() as line:
            line.send(*request)
            return line.response()

    def drain(self, address: str = QUEUE) -> int:
        """Receive and delete all messages of a queue; returns their number."""
        count = 0
        with self.begun() as line:
            attach = receiver(address)
            attach.snd_settle_mode = 1
            line.send(frame(attach))
            line.expect(Attach)
            line.send(credit(1_000_000, window=1_000_000, drain=True))
            for performative in line.frames():
                if isinstance(performative, Transfer):
                    count += not performative.more
                elif isinstance(performative, Flow) and not performative.link_credit:
                    break
            line.send(CLOSE)
            line.answer()
        return count

    def _enter(self, receive_buffer: int | None = None) -> Line:
        return self.dial(receive_buffer=receive_buffer) if self.certificate is None else self.dial_tls(self.certificate)

    def _socket(self, receive_buffer: int | None = None) -> socket.socket:
        stream = socket.socket()
        stream.settimeout(TIMEOUT)
        if receive_buffer is not None:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.bind((self.attacker, 0))
        stream.connect((HOST, self.port))
        address, port = stream.getsockname()
        self.names.append(f"{address}:{port}")
        return stream


def tls_context(authority: Path, certificate: Path | None) -> ssl.SSLContext:
    """Return the TLS context of a client with this certificate, or without one."""
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def _begun(line: Line) -> Line:
    line.send(frame(BEGIN))
    line.expect(Begin)
    return line


def outcomes(line: Line, count: int) -> list[Any]:
    """Return the outcomes of the first `count` deliveries, whose ids start at 0."""
    found: dict[int, Any] = {}
    while len(found) < count:
        disposition = line.expect(Disposition)
        for number in range(disposition.first, (disposition.last or disposition.first) + 1):
            found[number] = disposition.state
    return [found[number] for number in range(count)]


class Requests:
    """A pair of links to a node that answers requests, on channel 0 of a connection with a session."""

    def __init__(self, line: Line, address: str, handles: tuple[int, int] = (0, 1), window: int = 100) -> None:
        self._line = line
        self._handle = handles[0]
        self._number = 0
        line.send(frame(receiver(address, handles[1], "replies")))
        line.expect(Attach)
        if window:
            line.send(credit(window, handle=handles[1]))
        line.send(frame(sender(address, handles[0], "requests")))
        line.expect(Flow)

    def post(self, properties: dict[Any, Any], value: Any) -> None:
        """Send a request without waiting for the answer."""
        request = Message(
            properties=Properties(message_id=str(self._number)), application_properties=properties, value=value
        )
        self.post_bytes(request.encode())

    def post_bytes(self, request: bytes) -> None:
        self._line.send(transfer(self._number, request, handle=self._handle, settled=True))
        self._number += 1

    def answer(self) -> Message:
        self._line.expect(Transfer)
        return Message.decode(self._line.payload)

    def whole_answer(self) -> Message:
        """Return the next answer, which may be longer than a frame."""
        encoded = b""
        more = True
        while more:
            more = bool(self._line.expect(Transfer).more)
            encoded += self._line.payload
        return Message.decode(encoded)

    def ask(self, properties: dict[Any, Any], value: Any) -> int:
        """Send a request and return the status of its answer."""
        self.post(properties, value)
        return status_of(self.answer())

    def put_token(self, token: Any, path: str = QUEUE) -> int:
        return self.ask({"operation": "put-token", "type": "jwt", "name": f"sb://{HOST}/{path}"}, token)


class Transacting:
    """A connection with a sending link and a link to the coordinator."""

    def __init__(self, line: Line) -> None:
        self.line = line
        attach = sender(handle=1, name="coordinator")
        attach.target = Coordinator()
        line.send(frame(attach))
        line.expect(Flow)
        self.number = 0
        """The id of the next delivery."""

    def declare(self) -> bytes:
        declare = Message(value=decode_value(Declare().encode())[0]).encode()
        state = self._post(1, declare)
        require(isinstance(state, Declared), f"a transaction could not be declared: {state}")
        return bytes(state.txn_id)

    def send(self, transaction: bytes, body: bytes) -> bool:
        """Send a message in a transaction; returns whether it was accepted."""
        return not isinstance(self._post(0, body, state=TransactionalState(transaction)), Rejected)

    def discharge(self, transaction: bytes) -> bytes:
        """Return the frame that commits a transaction. The caller sends it and reads the outcome."""
        discharge = Message(value=decode_value(Discharge(txn_id=transaction, fail=False).encode())[0]).encode()
        self.number += 1
        return transfer(self.number - 1, discharge, handle=1)

    def plain(self, body: bytes) -> bytes:
        """Return the frame of a message in no transaction."""
        self.number += 1
        return transfer(self.number - 1, body)

    def _post(self, handle: int, payload: bytes, **fields: Any) -> Any:
        self.line.send(transfer(self.number, payload, handle=handle, **fields))
        self.number += 1
        return self.line.expect(Disposition).state


def status_of(answer: Message) -> int:
    return int((answer.application_properties or {})["status-code"])


# --- frames and performatives of valid clients ---

BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=0x7FFFFFFF, outgoing_window=2048)
CLOSE: Final = frame(Close())
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
TLS_HELLO: Final = bytes.fromhex("16030100c8010000c40303") + b"\x11" * 192
UPGRADE: Final = (
    f"GET /$servicebus/websocket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
).encode()
"""The request for a WebSocket."""


def sender(address: str = QUEUE, handle: int = 0, name: str = "hostile") -> Attach:
    """Return the attach of a sending link."""
    return Attach(
        name=f"{name}-{handle}",
        handle=handle,
        role=False,
        source=Source(address="here"),
        target=Target(address=address),
        initial_delivery_count=0,
    )


def receiver(address: str = QUEUE, handle: int = 0, name: str = "hostile", filter: Any = None) -> Attach:
    """Return the attach of a receiving link."""
    return Attach(
        name=f"{name}-{handle}",
        handle=handle,
        role=True,
        source=Source(address=address, filter=filter),
        target=Target(address="here"),
    )


def transfer(number: int, payload: bytes, *, channel: int = 0, handle: int = 0, **fields: Any) -> bytes:
    tag = number.to_bytes(4, "big")
    return frame(Transfer(**{"handle": handle, "delivery_id": number, "delivery_tag": tag, **fields}), channel, payload)


def message(body: bytes = b"hostile") -> bytes:
    return Message(data=[body]).encode()


def credit(amount: int, *, handle: int = 0, window: int = 0x7FFFFFFF, **fields: Any) -> bytes:
    return frame(
        Flow(
            **{
                "next_incoming_id": 0,
                "incoming_window": window,
                "next_outgoing_id": 0,
                "outgoing_window": 2048,
                "handle": handle,
                "delivery_count": 0,
                "link_credit": amount,
                **fields,
            }
        )
    )
