"""Two engines that are joined in memory, and a peer whose frames the test makes."""

from __future__ import annotations

from typing import Any, TypeVar

from peeklock.amqp.composites import decode_composite
from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, HEARTBEAT, encode_frame
from peeklock.amqp.performatives import Attach, Begin, Flow, Open, Source, Target
from peeklock.engine.connection import Connection
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.events import LinkAttached, SessionBegun
from peeklock.engine.links import Link, Receiver, Sender
from peeklock.engine.opening import Settings
from peeklock.engine.sasl import SaslRole
from peeklock.engine.session import Session

Event = TypeVar("Event")
TAG = b"0123456789abcdef"


def only(kind: type[Event], events: list[Any]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


class Pair:
    """A client and a server engine. `pump` transports bytes until there are none, and keeps the events."""

    def __init__(
        self,
        client_settings: Settings | None = None,
        server_settings: Settings | None = None,
        *,
        client_sasl: SaslRole | None = None,
        server_sasl: SaslRole | None = None,
        chunk: int = 0,
    ) -> None:
        self.client = Connection(client_settings or Settings(container_id="client"), client_sasl, is_server=False)
        self.server = Connection(server_settings or Settings(container_id="server"), server_sasl, is_server=True)
        self.client_events: list[Any] = []
        self.server_events: list[Any] = []
        self.chunk = chunk

    @classmethod
    def opened(cls, *args: Any, **kwargs: Any) -> Pair:
        pair = cls(*args, **kwargs)
        pair.client.connect()
        pair.pump()
        return pair

    def pump(self) -> None:
        while self.to_server() or self.to_client():
            pass

    def to_server(self) -> bool:
        return self._carry(self.client, self.server, self.server_events)

    def to_client(self) -> bool:
        return self._carry(self.server, self.client, self.client_events)

    def _carry(self, source: Connection, target: Connection, events: list[Any]) -> bool:
        data = b"".join(source.take_output())
        step = self.chunk or len(data) or 1
        for at in range(0, len(data), step):
            events += target.receive(data[at : at + step])
        return bool(data)

    def sessions(self) -> tuple[Session, Session]:
        """Begin a session, and return the client's end and the server's end."""
        session = self.client.begin()
        self.pump()
        return session, only(SessionBegun, self.server_events)[-1].session

    def sending(
        self, session: Session | None = None, *, name: str = "link", credit: int = 100, **accept: Any
    ) -> tuple[Sender, Receiver]:
        """Attach a link on which the client sends, and return both ends."""
        session = session or self.sessions()[0]
        sender = session.sender(name)
        sender.attach(attach(sender))
        self.pump()
        receiver = only(LinkAttached, self.server_events)[-1].link
        assert isinstance(receiver, Receiver)
        receiver.accept(**accept)
        if credit:
            receiver.grant(credit)
        self.pump()
        return sender, receiver

    def receiving(
        self, session: Session | None = None, *, name: str = "link", credit: int = 100, **fields: Any
    ) -> tuple[Receiver, Sender]:
        """Attach a link on which the client receives, and return both ends."""
        session = session or self.sessions()[0]
        receiver = session.receiver(name)
        receiver.attach(attach(receiver, **fields))
        self.pump()
        sender = only(LinkAttached, self.server_events)[-1].link
        assert isinstance(sender, Sender)
        sender.accept()
        if credit:
            receiver.grant(credit)
        self.pump()
        return receiver, sender

    def received(self) -> list[IncomingDelivery]:
        """Return all deliveries that the server received."""
        return only(IncomingDelivery, self.server_events)


def attach(link: Link, **fields: Any) -> Attach:
    return Attach(
        name=link.name,
        handle=link.handle,
        role=not link.is_sender,
        source=Source(address="source"),
        target=Target(address="queue"),
        initial_delivery_count=0 if link.is_sender else None,
        **fields,
    )


class Peer:
    """Sends frames that the test makes to one engine, and decodes its output."""

    def __init__(self, *, is_server: bool = True, settings: Settings | None = None, open_it: bool = True) -> None:
        """`is_server` is the role of the engine."""
        self.engine = Connection(settings or Settings(container_id="engine"), is_server=is_server)
        self.events: list[Any] = []
        self._unread = b""
        if not is_server:
            self.engine.connect()
        if open_it:
            self.raw(AMQP_HEADER)
            self.send(0, Open(container_id="peer"))
            assert self.engine.opened

    def raw(self, data: bytes) -> list[Any]:
        events = self.engine.receive(data)
        self.events += events
        return events

    def send(self, channel: int, performative: Any, payload: bytes = b"") -> list[Any]:
        return self.raw(encode_frame(channel, performative.encode() + payload))

    def begin(self, channel: int = 0, **fields: Any) -> Session:
        values = {"next_outgoing_id": 0, "incoming_window": 1000, "outgoing_window": 1000, **fields}
        self.send(channel, Begin(**values))
        return only(SessionBegun, self.events)[-1].session

    def attach(self, handle: int = 0, *, role: bool = False, name: str = "link", **fields: Any) -> Link:
        """Attach a link that is accepted, with credit for 100. The peer sends on it unless `role` is true."""
        self.attach_only(handle, role=role, name=name, **fields)
        link = only(LinkAttached, self.events)[-1].link
        link.accept()
        if isinstance(link, Receiver):
            link.grant(100)
        return link

    def attach_only(self, handle: int = 0, *, role: bool = False, name: str = "link", **fields: Any) -> list[Any]:
        performative = Attach(
            name=name,
            handle=handle,
            role=role,
            source=Source(address="queue"),
            target=Target(address="queue"),
            initial_delivery_count=None if role else 0,
            **fields,
        )
        return self.send(0, performative)

    def flow(self, **fields: Any) -> list[Any]:
        values = {"next_incoming_id": 0, "incoming_window": 1000, "next_outgoing_id": 0, "outgoing_window": 1000}
        return self.send(0, Flow(**{**values, **fields}))

    def answers(self) -> list[Any]:
        """Return the performatives that the engine wrote since the last call."""
        return [performative for _, performative, _ in self.frames()]

    def frames(self) -> list[tuple[int, Any, bytes]]:
        """Return the frames that the engine wrote since the last call, as channel, performative and payload."""
        data = b"".join(self.engine.take_output())
        found: list[tuple[int, Any, bytes]] = []
        at = 0
        while at < len(data):
            if data[at : at + 4] == AMQP_HEADER[:4]:
                at += 8
                continue
            size, doff, _, channel = FRAME_HEADER.unpack_from(data, at)
            frame = data[at : at + size]
            at += size
            if frame == HEARTBEAT:
                found.append((channel, None, b""))
                continue
            performative, payload_at = decode_composite(frame, doff * 4)
            found.append((channel, performative, frame[payload_at:]))
        return found
