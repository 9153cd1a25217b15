"""Sessions: channels, transfer windows, and handles (2.5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.fast import (
    TransferForm,
    declared_disposition,
    declared_flow,
    declared_transfer,
    decode_disposition,
    decode_flow,
    decode_transfer,
    encode_disposition,
)
from peeklock.amqp.frames import encode_frame
from peeklock.amqp.performatives import Attach, Begin, Detach, Disposition, End, Error, Flow, Transfer
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery, between, by_link
from peeklock.engine.dispositions import Dispositions
from peeklock.engine.errors import DetachLink, EndSession
from peeklock.engine.events import (
    IncomingDisposed,
    LinkAttached,
    LinkDetached,
    OutgoingDisposed,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from peeklock.engine.links import Link, Receiver, Sender
from peeklock.engine.serial import SERIAL_MASK, serial_sub
from peeklock.engine.states import SESSION, LinkState, SessionInput, SessionState, step

if TYPE_CHECKING:
    from peeklock.engine.connection import Connection

INCOMING_WINDOW: Final = 8192
"""Frames the peer may send before it hears from us; renewed when half are used."""
MAX_INCOMING_UNSETTLED: Final = 65536
"""Deliveries we hold for the owner to settle; a peer that sends more loses the session."""
OUTGOING_WINDOW: Final = 0x7FFFFFFF
HANDLE_MAX: Final = 4095

_RENEW_AFTER: Final = INCOMING_WINDOW // 2
_WIDEST_RANGE: Final = 0x80000000
_MAPPED: Final = SessionState.MAPPED


class Session:
    """One session of a connection, from either side."""

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = SessionState.UNMAPPED
        self.out = connection.out
        self.max_frame_size = connection.remote_max_frame_size
        self.next_outgoing_id = 0
        self.next_delivery_id = 0
        self.next_incoming_id = 0
        self.remote_incoming_window = 0
        self.outgoing_unsettled: dict[int, OutgoingDelivery] = {}
        self.incoming_unsettled: dict[int, IncomingDelivery] = {}
        self._renew_at = _RENEW_AFTER
        """The next-incoming-id at which the peer is told our window anew."""
        self._remote_handle_max = HANDLE_MAX
        self._by_handle: dict[int, Link] = {}
        """By our handle."""
        self._awaited: dict[tuple[str, bool], Link] = {}
        """Links that we attached first and the peer has not answered, by name and whether we send."""
        self._by_remote_handle: dict[int, Link] = {}
        self._receiving: dict[int, Receiver] = {}
        """Those that a transfer may come on now, by the peer's handle."""
        self._next_handle = 0
        self._free_handles: list[int] = []
        self._held_frames: deque[tuple[Sender, bytes]] = deque()
        """Transfers that wait for the peer's window; they keep their order."""
        self._dispositions = (Dispositions(), Dispositions())
        """To be said, as sender and as receiver."""

    # --- our side ---

    @property
    def links(self) -> Iterable[Link]:
        """Those that are there, or were when the session ended."""
        return self._by_handle.values()

    def begin(self) -> None:
        """Begin the session, or answer the peer's begin."""
        answer = self.state is SessionState.BEGIN_RECEIVED
        self.state = step(SESSION, self.state, SessionInput.SEND_BEGIN)
        self.send(
            Begin(
                remote_channel=self.remote_channel if answer else None,
                next_outgoing_id=self.next_outgoing_id,
                incoming_window=INCOMING_WINDOW,
                outgoing_window=OUTGOING_WINDOW,
                handle_max=HANDLE_MAX,
                properties={},
            )
        )

    def end(self, error: Error | None = None) -> None:
        """End the session, or answer the peer's end. Without effect on one that is over."""
        if (self.state, SessionInput.SEND_END) not in SESSION:
            return
        self.send(End(error=error))
        self.state = step(SESSION, self.state, SessionInput.SEND_END)
        self._forget_links()
        if self.state is SessionState.UNMAPPED:
            self.connection.unmap(self)

    def sender(self, name: str) -> Sender:
        """A new link to send on, not attached yet. EndSession when the peer allows no more links."""
        link = Sender(self, name, self._take_handle())
        self._by_handle[link.handle] = link
        return link

    def receiver(self, name: str) -> Receiver:
        """A new link to receive on, not attached yet. EndSession when the peer allows no more links."""
        link = Receiver(self, name, self._take_handle())
        self._by_handle[link.handle] = link
        return link

    def await_attach(self, link: Link) -> None:
        """We attached first: the peer's attach of that name is the answer."""
        self._awaited[link.name, link.is_sender] = link

    def start_receiving(self, link: Receiver) -> None:
        if link.remote is not None:
            self._receiving[link.remote.handle] = link

    def can_send(self) -> bool:
        """Whether a transfer would leave at once."""
        return self.remote_incoming_window > 0 and not self._held_frames and not self.connection.congested

    def send(self, performative: Any) -> None:
        """Write a performative. Without effect on a session that is over."""
        if self.state is SessionState.UNMAPPED or self.state is SessionState.END_SENT:
            return
        self.flush_dispositions()
        self.connection.send(self.channel, performative)

    def send_transfer(self, link: Sender, body: bytes) -> None:
        frame = encode_frame(self.channel, body)
        if self._held_frames or self.remote_incoming_window <= 0:
            self._held_frames.append((link, frame))
        else:
            self._write_transfer(frame)

    def send_flow(self, link: Link | None = None, *, echo: bool = False) -> None:
        """Tell the peer our windows and, with a link, that link's credit."""
        self._renew_at = (self.next_incoming_id + _RENEW_AFTER) & SERIAL_MASK
        flow = Flow(
            # There is no such id before the peer's begin (2.7.4).
            next_incoming_id=None if self.remote_channel is None else self.next_incoming_id,
            incoming_window=INCOMING_WINDOW,
            next_outgoing_id=self.next_outgoing_id,
            outgoing_window=OUTGOING_WINDOW,
            echo=echo,
        )
        if link is not None:
            assert isinstance(link, Sender | Receiver)
            flow.handle = link.handle
            flow.delivery_count = link.delivery_count
            flow.link_credit = max(0, link.credit)
            flow.drain = link.drain
        self.send(flow)

    def dispose(self, role: bool, delivery_id: int, settled: bool, state: bytes) -> None:
        """Say a delivery's state, some time in this turn."""
        if self.state is _MAPPED:
            self._dispositions[role].say(delivery_id, settled, state)
            self.connection.touched.add(self)

    def flush_dispositions(self) -> None:
        for role in (False, True):
            if self._dispositions[role]:
                for said in self._dispositions[role].take():
                    body = encode_disposition(role, said.first, said.last, said.settled, said.state)
                    self.out.append(encode_frame(self.channel, body))

    def unmap(self, link: Link) -> None:
        """The link is gone on both sides: its handles are free again."""
        if self._by_handle.pop(link.handle, None) is not None:
            heappush(self._free_handles, link.handle)
        self._awaited.pop((link.name, link.is_sender), None)
        if link.remote is not None and self._by_remote_handle.get(link.remote.handle) is link:
            del self._by_remote_handle[link.remote.handle]

    def forget_deliveries(self, link: Link) -> None:
        """The link is closing: nothing more is taken on it, and nothing is left to settle."""
        if isinstance(link, Receiver):
            link.forget_partial()
            if link.remote is not None:
                self._receiving.pop(link.remote.handle, None)
        unsettled: dict[int, Any] = self.outgoing_unsettled if link.is_sender else self.incoming_unsettled
        for delivery_id in [key for key, delivery in unsettled.items() if delivery.link is link]:
            del unsettled[delivery_id]

    def forget(self) -> None:
        """The connection is over, and so is the session; nothing is said to the peer."""
        self.state = SessionState.UNMAPPED
        self._forget_links()

    # --- the peer's side ---

    def on_performative(self, performative: Any, body: bytes) -> None:
        """Take any performative but begin; `body` is the frame's, for those that are read from it."""
        kind = type(performative)
        if kind is End:
            self.on_end(performative)
        elif self.state is not _MAPPED:
            return  # we have ended the session; this was on its way
        elif kind is Transfer:
            self.on_transfer(body, 0, len(body))
        elif kind is Disposition:
            self.on_disposition(body, 0, len(body))
        elif kind is Attach:
            self.on_attach(performative)
        elif kind is Flow:
            self.on_flow(body, 0, len(body))
        else:
            self.on_detach(performative)

    def on_begin(self, begin: Begin) -> None:
        self.state = step(SESSION, self.state, SessionInput.RECEIVE_BEGIN)
        self.next_incoming_id = begin.next_outgoing_id
        self._renew_at = (begin.next_outgoing_id + _RENEW_AFTER) & SERIAL_MASK
        self.remote_incoming_window = begin.incoming_window
        self.max_frame_size = self.connection.remote_max_frame_size
        self._remote_handle_max = begin.handle_max
        if self.state is SessionState.BEGIN_RECEIVED:
            self.begin()
        if self.state is _MAPPED:
            self.connection.emit(SessionBegun(self))

    def on_end(self, end: End) -> None:
        self.state = step(SESSION, self.state, SessionInput.RECEIVE_END)
        if self.state is SessionState.END_RECEIVED:
            self.connection.emit(SessionEnded(self, end.error))
            self.end()
        else:
            self.connection.unmap(self)

    def on_attach(self, attach: Attach) -> None:
        if attach.handle > HANDLE_MAX:
            raise EndSession(
                Condition.RESOURCE_LIMIT_EXCEEDED, f"handle {attach.handle} is above handle-max {HANDLE_MAX}"
            )
        if attach.handle in self._by_remote_handle:
            raise EndSession(Condition.HANDLE_IN_USE, f"handle {attach.handle} is attached already")
        we_send = attach.role  # the peer's role is receiver
        link = self._awaited.pop((attach.name, we_send), None)
        if link is None:
            link = self.sender(attach.name) if we_send else self.receiver(attach.name)
        link.on_attach(attach)
        self._by_remote_handle[attach.handle] = link
        if link.state is LinkState.ATTACH_RECEIVED and (attach.unsettled or attach.incomplete_unsettled):
            link.refuse(
                Error(
                    condition=Condition.NOT_IMPLEMENTED,
                    description="links cannot be resumed here: attach without unsettled deliveries",
                )
            )
        elif link.state is not LinkState.DETACH_SENT:
            self.connection.emit(LinkAttached(link))

    def on_detach(self, detach: Detach) -> None:
        link = self._linked(detach.handle)
        was_open = link.state is not LinkState.DETACH_SENT
        link.on_detach(detach)
        if was_open:
            self.connection.emit(LinkDetached(link, detach.error, bool(detach.closed)))
            if link.local is None:
                link.accept(source=None, target=None)  # a detach is not answered before the attach is
            if not link.answers_detach_later:
                link.detach()

    def on_flow(self, data: bytes, at: int, end: int) -> None:
        if self.state is not _MAPPED:
            return
        flow = decode_flow(data, at, end) or declared_flow(data, at, end)
        seen = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        was_shut = self.remote_incoming_window <= 0
        # What is on the way already counts against the window (2.5.6).
        self.remote_incoming_window = flow.incoming_window - max(0, serial_sub(self.next_outgoing_id, seen))
        # The peer's own count is right even where it differs from ours: some count deliveries, not frames.
        drift = serial_sub(flow.next_outgoing_id, self.next_incoming_id)
        self.next_incoming_id = flow.next_outgoing_id
        self._renew_at = (self._renew_at + drift) & SERIAL_MASK
        while self._held_frames and self.remote_incoming_window > 0:
            sender, frame = self._held_frames.popleft()
            if sender.attached:
                self._write_transfer(frame)
        if was_shut and self.can_send():
            self.connection.emit(WindowOpened(self))
        link = None
        if flow.handle is not None:
            link = self._linked(flow.handle)
            if link.state is not LinkState.DETACH_SENT:
                link.on_flow(flow)
        if flow.echo:
            self.send_flow(link if link is not None and link.attached else None)

    def on_transfer(self, data: bytes, at: int, end: int) -> None:
        """Take the transfer at `at` in a frame that ends at `end`."""
        handle, delivery_id, tag, form, payload_at = decode_transfer(data, at, end)
        if form is None:
            handle, delivery_id, tag, form, payload_at = declared_transfer(data, at, end)
        self.next_incoming_id = (self.next_incoming_id + 1) & SERIAL_MASK
        if self.next_incoming_id == self._renew_at:
            self.send_flow()
        link = self._receiving.get(handle)
        if link is None:
            self._on_errant_transfer(handle)
            return
        if form.more or form.aborted or link.partial is not None or delivery_id is None or tag is None:
            self._on_partial_transfer(link, delivery_id, tag, form, data[payload_at:end])
            return
        link.credit -= 1
        link.delivery_count = (link.delivery_count + 1) & SERIAL_MASK
        oversize = 0 < link.max_message_size < end - payload_at
        delivery = IncomingDelivery(
            link,
            delivery_id,
            tag,
            form.message_format or 0,
            form.settled or False,
            form.state,
            b"" if oversize else data,
            payload_at,
            end,
            oversize,
        )
        if not form.settled:
            self._hold(delivery)
        self.connection.events.append(delivery)

    def on_disposition(self, data: bytes, at: int, end: int) -> None:
        if self.state is not _MAPPED:
            return
        fields = decode_disposition(data, at, end) or declared_disposition(data, at, end)
        role, first, last, settled, state = fields
        if last is None:
            last = first
        elif (last - first) & SERIAL_MASK >= _WIDEST_RANGE:
            # Taken as serial numbers this would be almost all deliveries; it is a mistake (RFC 1982).
            raise EndSession(Condition.INVALID_FIELD, f"a disposition from {first} to {last} goes backwards")
        if role:
            for sender, outgoing in by_link(between(self.outgoing_unsettled, first, last, settled)):
                if settled:
                    sender.unsettled -= len(outgoing)
                self.connection.emit(OutgoingDisposed(sender, outgoing, state, settled))
        else:
            for receiver, incoming in by_link(between(self.incoming_unsettled, first, last, settled)):
                if settled:
                    for delivery in incoming:
                        delivery.settled = True
                self.connection.emit(IncomingDisposed(receiver, incoming, state, settled))

    # --- inside ---

    def _write_transfer(self, frame: bytes) -> None:
        self.next_outgoing_id = (self.next_outgoing_id + 1) & SERIAL_MASK
        self.remote_incoming_window -= 1
        self.out.append(frame)

    def _hold(self, delivery: IncomingDelivery) -> None:
        unsettled = self.incoming_unsettled
        if len(unsettled) >= MAX_INCOMING_UNSETTLED:
            raise EndSession(
                Condition.RESOURCE_LIMIT_EXCEEDED, f"{MAX_INCOMING_UNSETTLED} deliveries wait to be settled"
            )
        unsettled[delivery.delivery_id] = delivery

    def _on_partial_transfer(
        self, link: Receiver, delivery_id: int | None, tag: bytes | None, form: TransferForm, part: bytes
    ) -> None:
        try:
            delivery = link.on_transfer(delivery_id, tag, form, part)
        except DetachLink as failure:
            self._detach(link, failure)
            return
        if delivery is not None:
            if not delivery.settled:
                self._hold(delivery)
            self.connection.emit(delivery)

    def _on_errant_transfer(self, handle: int) -> None:
        if self.state is not _MAPPED:
            return  # sent before the peer saw that the session has ended
        link = self._linked(handle)
        if link.state is LinkState.DETACH_SENT:
            return  # sent before the peer saw that the link is closed
        if link.is_sender:
            raise EndSession(Condition.NOT_ALLOWED, f"a transfer with handle {handle}, on which we send")
        self._detach(link, DetachLink(Condition.TRANSFER_LIMIT_EXCEEDED, "a transfer before the link was accepted"))

    def _detach(self, link: Link, failure: DetachLink) -> None:
        error = Error(condition=failure.condition, description=failure.description)
        self.connection.emit(LinkDetached(link, error))
        link.detach(error)

    def _forget_links(self) -> None:
        for link in self._by_handle.values():
            link.state = LinkState.DETACHED
            if isinstance(link, Receiver):
                link.forget_partial()
        self._awaited.clear()
        self._by_remote_handle.clear()
        self._receiving.clear()
        self.outgoing_unsettled.clear()
        self.incoming_unsettled.clear()
        self._held_frames.clear()
        self._dispositions = (Dispositions(), Dispositions())

    def _linked(self, remote_handle: int) -> Link:
        link = self._by_remote_handle.get(remote_handle)
        if link is None:
            raise EndSession(Condition.UNATTACHED_HANDLE, f"no link is attached with handle {remote_handle}")
        return link

    def _take_handle(self) -> int:
        if self._free_handles:
            return heappop(self._free_handles)
        if self._next_handle > self._remote_handle_max:
            raise EndSession(Condition.RESOURCE_LIMIT_EXCEEDED, f"all {self._remote_handle_max + 1} handles are taken")
        self._next_handle += 1
        return self._next_handle - 1
