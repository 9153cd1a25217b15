"""A client that sends and receives single AMQP frames over a blocking socket, for cases that SDKs do not cover."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
from types import TracebackType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote_plus

from peeklock.amqp.codec import decode_value
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.frames import AMQP_FRAME, AMQP_HEADER, FRAME_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Disposition,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from serving import BrokerThread

P = TypeVar("P")
TAG = b"0123456789abcdef"


class Frame(NamedTuple):
    channel: int
    performative: Any
    payload: bytes
    fields: list[Any]
    """The performative's list as it was on the wire, with its number of fields."""


class RawPeer:
    """One connection. `expect` returns the next frame and checks its kind."""

    def __init__(self, broker: BrokerThread) -> None:
        self.socket = socket.create_connection(("127.0.0.1", broker.broker.port), timeout=10)
        self._unread = b""
        self._next_delivery_id = 0

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    # --- bytes and frames ---

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, size: int) -> bytes:
        """Read exactly that many bytes; fewer only if the broker closed the connection."""
        while len(self._unread) < size:
            data = self.socket.recv(65536)
            if not data:
                break
            self._unread += data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    def is_hung_up(self) -> bool:
        """Wait for the broker to close the connection; return whether it sent nothing before."""
        return self.read(1) == b""

    def send(self, performative: Any, payload: bytes = b"", *, channel: int = 0, frame_type: int = AMQP_FRAME) -> None:
        self.write(encode_frame(channel, performative.encode() + payload, frame_type))

    def next_frame(self) -> Frame:
        while True:
            header = self.read(8)
            assert len(header) == 8, "the broker hung up"
            size, doff, _, channel = FRAME_HEADER.unpack(header)
            body = self.read(size - 8)[doff * 4 - 8 :]
            if body:  # an empty one is a heartbeat
                break
        assert body[:2] == b"\x00\x53", "performatives have short descriptors"
        performative, payload_at = decode_composite(body)
        return Frame(channel, performative, body[payload_at:], decode_value(body)[0].value)

    def expect(self, kind: type[P]) -> P:
        """Return the next frame's performative, which must be of this kind."""
        found = self.next_frame().performative
        assert isinstance(found, kind), f"{kind.__name__} was expected, not {found}"
        return found

    # --- the usual exchanges ---

    def login(self, mechanism: str, response: bytes = b"") -> SaslOutcome:
        """Do the SASL exchange, up to its outcome."""
        self.write(SASL_HEADER)
        assert self.read(8) == SASL_HEADER
        self.expect(SaslMechanisms)
        init = SaslInit(mechanism=mechanism, initial_response=response)
        self.send(init, frame_type=SASL_FRAME)
        return self.expect(SaslOutcome)

    def open(self, **fields: Any) -> Open:
        """Open the AMQP connection and a session on channel 0."""
        self.write(AMQP_HEADER)
        self.send(Open(container_id="raw", **fields))
        self.send(Begin(next_outgoing_id=0, incoming_window=1000, outgoing_window=1000))
        assert self.read(8) == AMQP_HEADER
        answer = self.expect(Open)
        self.expect(Begin)
        return answer

    def open_as_root(self) -> RawPeer:
        """Open the connection with all rights."""
        outcome = self.login("PLAIN", f"\0{DEFAULT_KEY_NAME}\0{DEFAULT_KEY}".encode())
        assert outcome.code == 0
        self.open()
        return self

    def attach(
        self,
        handle: int,
        *,
        receives_from: str | None = None,
        sends_to: str | None = None,
        name: str | None = None,
        reply_to: str | None = None,
        **fields: Any,
    ) -> Frame:
        """Attach a link and return the broker's attach."""
        receives = receives_from is not None
        self.send(
            Attach(
                name=name or f"link-{handle}",
                handle=handle,
                role=receives,
                source=Source(address=receives_from),
                target=Target(address=reply_to if receives else sends_to),
                initial_delivery_count=None if receives else 0,
                **fields,
            )
        )
        frame = self.next_frame()
        assert isinstance(frame.performative, Attach), frame
        return frame

    def sender(self, handle: int, address: str, **fields: Any) -> Flow:
        """Attach a sending link; the broker grants credit at once."""
        self.attach(handle, sends_to=address, **fields)
        return self.expect(Flow)

    def receiver(self, handle: int, address: str, *, credit: int = 0, **fields: Any) -> None:
        self.attach(handle, receives_from=address, **fields)
        if credit:
            self.credit(handle, credit)

    def credit(self, handle: int, credit: int, *, delivery_count: int = 0, **fields: Any) -> None:
        self.send(
            Flow(
                next_incoming_id=0,
                incoming_window=1000,
                next_outgoing_id=0,
                outgoing_window=1000,
                handle=handle,
                delivery_count=delivery_count,
                link_credit=credit,
                **fields,
            )
        )

    def transfer(self, handle: int, payload: bytes, **fields: Any) -> int:
        """Send a message in one frame and return its delivery-id."""
        delivery_id = self._next_delivery_id
        self._next_delivery_id += 1
        self.send(Transfer(handle=handle, delivery_id=delivery_id, delivery_tag=TAG, **fields), payload)
        return delivery_id

    def dispose(self, delivery_id: int, state: Any, *, settled: bool = False) -> None:
        self.send(Disposition(role=True, first=delivery_id, settled=settled, state=state))

    def send_accepted(self, handle: int, *bodies: bytes) -> None:
        """Send messages and wait for each to be accepted."""
        for body in bodies:
            delivery_id = self.transfer(handle, Message(data=[body]).encode())
            outcome = self.expect(Disposition)
            assert (outcome.role, outcome.first, outcome.settled) == (True, delivery_id, True)
            assert isinstance(outcome.state, Accepted)

    def cbs_links(self, *, reply_to: str | None = None, reply_name: str = "replies") -> None:
        """Attach a pair of links to `$cbs` with handles 0 and 1, and grant credit for the replies."""
        self.sender(0, "$cbs")
        self.receiver(1, "$cbs", name=reply_name, reply_to=reply_to, credit=100)

    def put_token(self, token: Any, audience: str, *, message_id: Any = "1", reply_to: str | None = None) -> Message:
        """Put a token over the links of `cbs_links` and return the reply."""
        request = Message(
            properties=Properties(message_id=message_id, reply_to=reply_to),
            application_properties={"operation": "put-token", "type": "jwt", "name": audience},
            value=token,
        )
        delivery_id = self.transfer(0, request.encode())
        outcome, reply = self.next_frame(), self.next_frame()
        assert isinstance(outcome.performative, Disposition)
        assert (outcome.performative.first, outcome.performative.settled) == (delivery_id, True)
        assert isinstance(outcome.performative.state, Accepted)
        return Message.decode(reply.payload)


def sas_token(resource: str, expiry: int, *, key: str = DEFAULT_KEY, rule: str = DEFAULT_KEY_NAME) -> str:
    """Return a shared access signature; `expiry` is in Unix seconds."""
    scope = quote_plus(resource)
    digest = hmac.digest(key.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256)
    return f"SharedAccessSignature sr={scope}&sig={quote_plus(base64.b64encode(digest))}&se={expiry}&skn={rule}"
