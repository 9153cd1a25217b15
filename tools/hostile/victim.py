"""The broker under attack, as one attack sees it: where it is, how to get in, and who has connected."""

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
from tools.hostile.lines import PATIENCE, Line, frame

HOST: Final = "127.0.0.1"
ROOT, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
LISTENER, SENDER, OTHERS = "listener", "sender", "others"
"""Rules with less: to listen, to send, and everything at the queue `other` alone. Their keys are their names."""
QUEUE, OTHER, SESSIONS, TOPIC, SUBSCRIPTION = "target", "other", "sessions", "topic", "all"
IDS = "ids"
"""A queue that detects duplicates."""
REMEMBERED_IDS: Final = 20_000
"""How many ids the broker is told to remember."""
FORWARDING, FORWARDED = "forwarding", "forwarded"
"""From the one all goes on to the other, which detects duplicates by partition."""
MESSAGING = "messaging"
"""A queue that is attacked over HTTP only, so that what is in it is known."""
KEPT, LIVE = "kept", "live"
"""The witness's own."""
FULL, FULL_SESSIONS, FULL_TOPIC = "full", "full-sessions", "full-topic"
"""Of the small broker: they hold 1 MB. A rule of the topic's subscription copies the property `given` eight times."""
FROM_ONE_ADDRESS: Final = 100
"""Connections that the small broker has at once from one address."""
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
"""The namespace that is attacked, but for the small broker's."""


@dataclass(slots=True)
class Victim:
    port: int
    authority: Path
    """Of its certificate."""
    attacker: str
    """The loopback address that the attack comes from."""
    certificate: Path | None = None
    """Of a client, with its key, where the broker asks for that and for TLS; all but `dial` then uses both."""
    names: list[str] = field(default_factory=list)
    """Of the attacker's connections, as the log would name them."""

    # --- getting in ---

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
        """A connection with all rights, open."""
        line = self._enter(receive_buffer)
        response = f"\0{ROOT}\0{KEY}".encode()
        line.send(SASL_HEADER, frame(SaslInit(mechanism="PLAIN", initial_response=response), kind=SASL_FRAME))
        require(line.expect(SaslOutcome).code == 0, "the broker does not let its owner in")
        line.send(AMQP_HEADER, frame(Open(**{"container_id": "hostile", **fields})))
        line.expect(Open)
        return line

    def stranger(self, **fields: Any) -> Line:
        """A connection without any right, open."""
        line = self._enter()
        line.send(AMQP_HEADER, frame(Open(**{"container_id": "hostile", **fields})))
        line.expect(Open)
        return line

    def begun(self, **fields: Any) -> Line:
        """A connection with all rights and a session on channel 0."""
        return _begun(self.opened(**fields))

    def stranger_begun(self) -> Line:
        """A connection without any right and a session on channel 0."""
        return _begun(self.stranger())

    def sending(self, address: str = QUEUE, **fields: Any) -> Line:
        """A connection with all rights and a link on handle 0 that has credit to send."""
        line = self.begun(**fields)
        line.send(frame(sender(address)))
        line.expect(Flow)
        return line

    def receiving(self, address: str = QUEUE, **fields: Any) -> Line:
        """A connection with all rights and a link on handle 0 that could receive."""
        line = self.begun(**fields)
        line.send(frame(receiver(address)))
        line.expect(Attach)
        return line

    def token(self, path: str = "", name: str = ROOT, key: str = KEY, seconds: float = 3600.0) -> str:
        return sas_token(f"http://{HOST}:{self.port}/{path}", name, key, time.time() + seconds)

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """An HTTP request with all rights."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}:{self.port}"]
        given = {"Authorization": self.token(), **{name.replace("_", "-"): value for name, value in headers.items()}}
        if body:
            given.setdefault("Content-Length", str(len(body)))
        lines += [f"{name}: {value}" for name, value in given.items()]
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body

    def ask(self, *request: bytes) -> tuple[int, bytes]:
        """Status and body of what a connection that says this is answered."""
        with self._enter() as line:
            line.send(*request)
            return line.response()

    def drain(self, address: str = QUEUE) -> int:
        """Take every message out of a queue; how many there were."""
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
        stream.settimeout(PATIENCE)
        if receive_buffer is not None:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.bind((self.attacker, 0))
        stream.connect((HOST, self.port))
        address, port = stream.getsockname()
        self.names.append(f"{address}:{port}")
        return stream


def tls_context(authority: Path, certificate: Path | None) -> ssl.SSLContext:
    """For a client that shows this certificate, or none."""
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def _begun(line: Line) -> Line:
    line.send(frame(BEGIN))
    line.expect(Begin)
    return line


def outcomes(line: Line, count: int) -> list[Any]:
    """The outcome of each of the first `count` deliveries, whose ids count from 0."""
    found: dict[int, Any] = {}
    while len(found) < count:
        disposition = line.expect(Disposition)
        for number in range(disposition.first, (disposition.last or disposition.first) + 1):
            found[number] = disposition.state
    return [found[number] for number in range(count)]


class Requests:
    """A pair of links to a node that answers requests, on channel 0 of a connection that has a session there."""

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
        """Without waiting for the answer."""
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
        """As `answer`, for one that may be longer than a frame."""
        encoded = b""
        more = True
        while more:
            more = bool(self._line.expect(Transfer).more)
            encoded += self._line.payload
        return Message.decode(encoded)

    def ask(self, properties: dict[Any, Any], value: Any) -> int:
        """The status of the answer."""
        self.post(properties, value)
        return status_of(self.answer())

    def put_token(self, token: Any, path: str = QUEUE) -> int:
        return self.ask({"operation": "put-token", "type": "jwt", "name": f"sb://{HOST}/{path}"}, token)


class Transacting:
    """A connection with a link to send on, and transactions."""

    def __init__(self, line: Line) -> None:
        self.line = line
        attach = sender(handle=1, name="coordinator")
        attach.target = Coordinator()
        line.send(frame(attach))
        line.expect(Flow)
        self.number = 0
        """Of the next delivery."""

    def declare(self) -> bytes:
        declare = Message(value=decode_value(Declare().encode())[0]).encode()
        state = self._post(1, declare)
        require(isinstance(state, Declared), f"a transaction could not be declared: {state}")
        return bytes(state.txn_id)

    def send(self, transaction: bytes, body: bytes) -> bool:
        """Whether it was taken."""
        return not isinstance(self._post(0, body, state=TransactionalState(transaction)), Rejected)

    def discharge(self, transaction: bytes) -> bytes:
        """A frame that commits it; its outcome is for the caller to read."""
        discharge = Message(value=decode_value(Discharge(txn_id=transaction, fail=False).encode())[0]).encode()
        self.number += 1
        return transfer(self.number - 1, discharge, handle=1)

    def plain(self, body: bytes) -> bytes:
        """A frame with a message that is in no transaction, as above."""
        self.number += 1
        return transfer(self.number - 1, body)

    def _post(self, handle: int, payload: bytes, **fields: Any) -> Any:
        self.line.send(transfer(self.number, payload, handle=handle, **fields))
        self.number += 1
        return self.line.expect(Disposition).state


def status_of(answer: Message) -> int:
    return int((answer.application_properties or {})["status-code"])


# --- what well-behaved clients say, to begin with ---

BEGIN: Final = Begin(next_outgoing_id=0, incoming_window=0x7FFFFFFF, outgoing_window=2048)
CLOSE: Final = frame(Close())
HEARTBEAT: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"
TLS_HELLO: Final = bytes.fromhex("16030100c8010000c40303") + b"\x11" * 192
UPGRADE: Final = (
    f"GET /$servicebus/websocket HTTP/1.1\r\nHost: {HOST}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    "Sec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
).encode()
"""To a WebSocket."""


def sender(address: str = QUEUE, handle: int = 0, name: str = "hostile") -> Attach:
    """The peer sends."""
    return Attach(
        name=f"{name}-{handle}",
        handle=handle,
        role=False,
        source=Source(address="here"),
        target=Target(address=address),
        initial_delivery_count=0,
    )


def receiver(address: str = QUEUE, handle: int = 0, name: str = "hostile", filter: Any = None) -> Attach:
    """The peer receives."""
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
