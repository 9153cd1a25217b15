"""A connection without sockets: frames in, frames out, to a namespace whose clock the test moves.

Exceptions of the broker are raised in the test. Frames are bytes, so that invalid ones can be sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from broker.world import World
from peeklock.amqp.composites import decode_composite
from peeklock.amqp.frames import AMQP_HEADER, FRAME_HEADER, encode_frame
from peeklock.amqp.performatives import Attach, Begin, Close, Disposition, Flow, Open, Source, Target, Transfer
from peeklock.broker.access import Grant
from peeklock.broker.audit import NO_AUDIT, Audit
from peeklock.engine.connection import Connection
from peeklock.engine.opening import Settings
from peeklock.entities.authorization import Right
from peeklock.nodes.peer import Peer


def frame(performative: Any, payload: bytes = b"") -> bytes:
    return encode_frame(0, performative.encode() + payload)


class AnyLogins:
    """Never refuses a login."""

    def check_login(self) -> None: ...

    def login_failed(self) -> None: ...


class Wire:
    """One client. Its links have the handles 0, 1, … in the order of their attaches."""

    def __init__(self, world: World, *, opened: bool = True, audit: Audit = NO_AUDIT) -> None:
        self.world = world
        self.connection = Connection(Settings(container_id="broker"), is_server=True)
        self.peer = Peer(
            self.connection, world.namespace, name="wire", wake=lambda: None, logins=AnyLogins(), audit=audit
        )
        self.peer.grants.add(Grant("", "", frozenset(Right), None))
        self.heard: list[tuple[Any, bytes]] = []
        """Received performatives, with their payloads."""
        self._deliveries = 0
        self._handles = 0
        if opened:
            self.send_bytes(
                AMQP_HEADER
                + frame(Open(container_id="client", max_frame_size=1 << 20))
                + frame(Begin(next_outgoing_id=0, incoming_window=1 << 20, outgoing_window=1 << 20, handle_max=9999))
            )

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, and run all that follows from them."""
        self.peer.handle(self.connection.receive(data))
        self.world.run()
        self.read_output()

    def read_output(self) -> None:
        data = b"".join(self.connection.take_output())
        at = 0
        while at < len(data):
            if data[at : at + 4] == b"AMQP":
                at += 8
                continue
            size, offset, _, _ = FRAME_HEADER.unpack_from(data, at)
            body = data[at + offset * 4 : at + size]
            if body:
                performative, end = decode_composite(body)
                self.heard.append((performative, body[end:]))
            at += size

    def take(self, *kinds: type) -> list[Any]:
        """Remove and return the received performatives of these kinds."""
        taken = [each for each, _ in self.heard if isinstance(each, kinds)]
        self.heard = [each for each in self.heard if not isinstance(each[0], kinds)]
        return taken

    @property
    def closed(self) -> Close | None:
        return next((each for each, _ in self.heard if isinstance(each, Close)), None)

    # --- links ---

    def sender(self, address: str) -> int:
        """Attach a link to send on, and return its handle."""
        return self.attach(role=False, source=Source(address="here"), target=Target(address=address))

    def receiver(self, address: str, credit: int = 10_000, **fields: Any) -> int:
        handle = self.attach(role=True, source=Source(address=address, **fields), target=Target(address="here"))
        self.send_bytes(frame(flow(handle, credit)))
        return handle

    def attach(self, *, role: bool, **fields: Any) -> int:
        handle = self.next_handle()
        counted = {} if role else {"initial_delivery_count": 0}
        self.send_bytes(frame(Attach(name=f"link-{handle}", handle=handle, role=role, **counted, **fields)))
        return handle

    def next_handle(self) -> int:
        self._handles += 1
        return self._handles - 1

    # --- messages ---

    def transfer(self, handle: int, payload: bytes, **fields: Any) -> tuple[int, bytes]:
        """Return the id of a new delivery, and its transfer frame."""
        id = self._deliveries
        self._deliveries += 1
        return id, frame(Transfer(handle=handle, delivery_id=id, delivery_tag=b"tag", **fields), payload)

    def send(self, handle: int, payload: bytes, **fields: Any) -> Any:
        """Send a message, and return its outcome."""
        id, data = self.transfer(handle, payload, **fields)
        self.send_bytes(data)
        return self.outcomes().get(id)

    def outcomes(self) -> dict[int, Any]:
        """Return the outcomes of sent messages by delivery id."""
        found: dict[int, Any] = {}
        for disposition in self.take(Disposition):
            if disposition.role:
                last = disposition.first if disposition.last is None else disposition.last
                found |= dict.fromkeys(range(disposition.first, last + 1), disposition.state)
        return found

    def received(self, handle: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Return the received messages by delivery id."""
        id, parts = -1, b""
        kept: list[tuple[Any, bytes]] = []
        for performative, payload in self.heard:
            if not isinstance(performative, Transfer) or handle not in (None, performative.handle):
                kept.append((performative, payload))
                continue
            if performative.delivery_id is not None:
                id = performative.delivery_id
            parts += payload
            if not performative.more:
                yield id, parts
                parts = b""
        self.heard = kept


def flow(handle: int, credit: int) -> Flow:
    window = 1 << 20
    return Flow(
        next_incoming_id=0,
        incoming_window=window,
        next_outgoing_id=0,
        outgoing_window=window,
        handle=handle,
        delivery_count=0,
        link_credit=credit,
    )
