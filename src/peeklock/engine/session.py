"""Sessions (2.5): transfer windows, and the dispatch of performatives to links."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.fast_decoders import (
    TransferForm,
    declared_disposition,
    declared_flow,
    declared_transfer,
    decode_disposition,
    decode_flow,
    decode_transfer,
)
from peeklock.amqp.fast_encoders import encode_disposition
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
from peeklock.engine.handles import Handles
from peeklock.engine.links import Link, Receiver, Sender
from peeklock.engine.serial import SERIAL_MASK, serial_sub
from peeklock.engine.states import SESSION, LinkState, SessionInput, SessionState, step
from peeklock.limits.amqp import HANDLE_MAX, MAX_INCOMING_UNSETTLED

if TYPE_CHECKING:
    from peeklock.engine.connection import Connection

INCOMING_WINDOW: Final = 8192
"""The number of transfer frames that the peer may send before the next flow, which is sent when half are used."""
OUTGOING_WINDOW: Final = 0x7FFFFFFF

_RENEW_AFTER: Final = INCOMING_WINDOW // 2
_WIDEST_RANGE: Final = 0x80000000
_MAPPED: Final = SessionState.MAPPED


class Session:
    """One session of a connection, which either side has begun."""

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
        """The next-incoming-id at which a flow renews our window."""
        self.handles = Handles()
        self._receiving: dict[int, Receiver] = {}
        """Attached links that a transfer may arrive on, by the peer's handle."""
        self._held_frames: deque[tuple[Sender, bytes]] = deque()
        """Transfers that await the peer's window, in order."""
        self._dispositions = (Dispositions(), Dispositions())
        """Dispositions to be sent: as sender, and as receiver."""

    # --- our side ---

    @property
    def links(self) -> Iterable[Link]:
        """All links. After the end of the session, the links that it had when it ended."""
        return self.handles.links.values()

    def begin(self) -> None:
        """Begin the session, or answer the peer's begin."""
        answer = self.state is SessionState.BEGIN_RECEIVED
        self._step(SessionInput.SEND_BEGIN)
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
        """End the session, or answer the peer's end. No effect if it has ended already."""
        if (self.state, SessionInput.SEND_END) not in SESSION:
            return
        self.send(End(error=error))
        self._step(SessionInput.SEND_END)
        self._forget_links()
        if self.state is SessionState.UNMAPPED:
            self.connection.unmap(self)

    def sender(self, name: str) -> Sender:
        """Make a link to send on, without attaching it. Raise EndSession if the peer allows no more links."""
        link = Sender(self, name, self.handles.take())
        self.handles.add(link)
        return link

    def receiver(self, name: str) -> Receiver:
        """Make a link to receive on, without attaching it. Raise EndSession if the peer allows no more links."""
        link = Receiver(self, name, self.handles.take())
        self.handles.add(link)
        return link

    def start_receiving(self, link: Receiver) -> None:
        if link.remote is not None:
            self._receiving[link.remote.handle] = link

    def can_send(self) -> bool:
        """Return whether a transfer would be written at once: the peer's window and the transport have room."""
        return self.remote_incoming_window > 0 and not self._held_frames and not self.connection.congested

    @property
    def holds_transfers(self) -> bool:
        """Whether transfers wait because the peer's window has no room."""
        return bool(self._held_frames)

    def send(self, performative: Any, body: bytes | None = None) -> None:
        """Write a performative. `body` is its encoding, if the caller has it. No effect if the session has ended."""
        if self.state is SessionState.UNMAPPED or self.state is SessionState.END_SENT:
            return
        self.flush_dispositions()
        self.connection.send(self.channel, performative, body)

    def send_transfer(self, link: Sender, body: bytes) -> None:
        frame = encode_frame(self.channel, body)
        if self._held_frames or self.remote_incoming_window <= 0:
            self._held_frames.append((link, frame))
        else:
            self._write_transfer(frame)

    def send_flow(self, link: Link | None = None, *, echo: bool = False) -> None:
        """Send a flow with our windows and, if a link is given, its credit."""
        self._renew_at = (self.next_incoming_id + _RENEW_AFTER) & SERIAL_MASK
        flow = Flow(
            # The id is not known before the peer's begin (2.7.4).
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
        """Send the state of a delivery to the peer before the end of this turn."""
        if self.state is _MAPPED:
            self._dispositions[role].add(delivery_id, settled, state)
            self.connection.touched.add(self)

    def flush_dispositions(self) -> None:
        for role in (False, True):
            if self._dispositions[role]:
                for run in self._dispositions[role].take():
                    body = encode_disposition(role, run.first, run.last, run.settled, run.state)
                    self.out.append(encode_frame(self.channel, body))

    def forget_deliveries(self, link: Link) -> None:
        """Remove the unsettled deliveries of a link that is closing, and accept no more transfers on it."""
        if isinstance(link, Receiver):
            link.forget_partial()
            if link.remote is not None:
                self._receiving.pop(link.remote.handle, None)
        unsettled: dict[int, Any] = self.outgoing_unsettled if link.is_sender else self.incoming_unsettled
        for delivery_id in [key for key, delivery in unsettled.items() if delivery.link is link]:
            del unsettled[delivery_id]

    def forget(self) -> None:
        """End the session without sending anything, because its connection has ended."""
        self._step(SessionInput.LOSE_CONNECTION)
        self._forget_links()

    # --- the peer's side ---

    def on_performative(self, performative: Any, body: bytes) -> None:
        """Handle a performative other than begin. `body` is the body of its frame; some are decoded again from it."""
        kind = type(performative)
        if kind is End:
            self.on_end(performative)
        elif self.state is not _MAPPED:
            return  # the peer sent it before it received our end
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
        self._step(SessionInput.RECEIVE_BEGIN)
        self.next_incoming_id = begin.next_outgoing_id
        self._renew_at = (begin.next_outgoing_id + _RENEW_AFTER) & SERIAL_MASK
        self.remote_incoming_window = begin.incoming_window
        self.max_frame_size = self.connection.remote_max_frame_size
        self.handles.remote_max = begin.handle_max
        if self.state is SessionState.BEGIN_RECEIVED:
            self.begin()
        if self.state is _MAPPED:
            self.connection.emit(SessionBegun(self))

    def on_end(self, end: End) -> None:
        self._step(SessionInput.RECEIVE_END)
        if self.state is SessionState.END_RECEIVED:
            self.connection.emit(SessionEnded(self, end.error))
            self.end()
        else:
            self.connection.unmap(self)

    def on_attach(self, attach: Attach) -> None:
        self.handles.check_attach(attach.handle)
        we_send = attach.role  # the peer's role is receiver
        link = self.handles.take_awaited(attach.name, we_send)
        if link is None:
            link = self.sender(attach.name) if we_send else self.receiver(attach.name)
        link.on_attach(attach)
        self.handles.map(link, attach.handle)
        if link.state is LinkState.ATTACH_RECEIVED and (attach.unsettled or attach.incomplete_unsettled):
            link.refuse(
                Error(
                    condition=Condition.NOT_IMPLEMENTED,
                    description="links cannot be resumed: attach without unsettled deliveries",
                )
            )
        elif link.state is not LinkState.DETACH_SENT:
            self.connection.emit(LinkAttached(link))

    def on_detach(self, detach: Detach) -> None:
        link = self.handles.find(detach.handle)
        was_open = link.state is not LinkState.DETACH_SENT
        link.on_detach(detach)
        if was_open:
            self.connection.emit(LinkDetached(link, detach.error, closed=bool(detach.closed)))
            if link.local is None:
                link.accept(source=None, target=None)  # the attach must be answered before the detach
            if not link.answers_detach_later:
                link.detach()

    def on_flow(self, data: bytes, at: int, end: int) -> None:
        if self.state is not _MAPPED:
            return
        flow = decode_flow(data, at, end) or declared_flow(data, at, end)
        seen = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        was_shut = self.remote_incoming_window <= 0
        # Frames that the peer had not received count against the window (2.5.6).
        self.remote_incoming_window = flow.incoming_window - max(0, serial_sub(self.next_outgoing_id, seen))
        # The peer's own count applies even if it differs from ours: some peers count deliveries, not frames.
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
            link = self.handles.find(flow.handle)
            if link.state is not LinkState.DETACH_SENT:
                link.on_flow(flow)
        if flow.echo:
            self.send_flow(link if link is not None and link.attached else None)

    def on_transfer(self, data: bytes, at: int, end: int) -> None:
        """Handle the transfer at `at` in a frame that ends at `end`."""
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
        # Positional arguments, because keyword arguments more than double the cost of the call in interpreted code.
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
            # With serial numbers (RFC 1982) this range is almost all deliveries, which must be a mistake.
            raise EndSession(Condition.INVALID_FIELD, f"the range of a disposition is reversed: {first} to {last}")
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

    def _step(self, cause: SessionInput) -> None:
        self.state = step(SESSION, self.state, cause)

    def _write_transfer(self, frame: bytes) -> None:
        self.next_outgoing_id = (self.next_outgoing_id + 1) & SERIAL_MASK
        self.remote_incoming_window -= 1
        self.out.append(frame)

    def _hold(self, delivery: IncomingDelivery) -> None:
        unsettled = self.incoming_unsettled
        if len(unsettled) >= MAX_INCOMING_UNSETTLED:
            raise EndSession(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"{MAX_INCOMING_UNSETTLED} deliveries are unsettled; no more are allowed",
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
            return  # the peer sent it before it received our end
        link = self.handles.find(handle)
        if link.state is LinkState.DETACH_SENT:
            return  # the peer sent it before it received our detach
        if link.is_sender:
            raise EndSession(
                Condition.NOT_ALLOWED, f"a transfer has handle {handle}, which is a link on which the peer receives"
            )
        failure = DetachLink(Condition.TRANSFER_LIMIT_EXCEEDED, "a transfer arrived before the link was accepted")
        self._detach(link, failure)

    def _detach(self, link: Link, failure: DetachLink) -> None:
        error = Error(condition=failure.condition, description=failure.description)
        self.connection.emit(LinkDetached(link, error))
        link.detach(error)

    def _forget_links(self) -> None:
        for link in self.handles.links.values():
            link.forget()
        self.handles.clear()
        self._receiving.clear()
        self.outgoing_unsettled.clear()
        self.incoming_unsettled.clear()
        self._held_frames.clear()
        self._dispositions = (Dispositions(), Dispositions())
