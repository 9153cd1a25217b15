"""Links (2.6): attach and detach, credit, and the conversion between messages and transfer frames.

A `Sender` is a link on which we send, a `Receiver` one on which we receive, whichever side attached first. `link.node`
is for the owner of the connection: the object that handles the messages of the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.fast_decoders import FlowFields, TransferForm
from peeklock.amqp.fast_encoders import TransferEncoder
from peeklock.amqp.performatives import Attach, Detach, Error, Transfer
from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
from peeklock.engine.errors import DetachLink
from peeklock.engine.events import CreditChanged
from peeklock.engine.serial import SERIAL_MASK, serial_sub
from peeklock.engine.states import LINK, LinkInput, LinkState, step
from peeklock.limits.amqp import MAX_PARTIAL_BYTES, MAX_UNSETTLED

if TYPE_CHECKING:
    from peeklock.engine.session import Session

_ATTACHED: Final = LinkState.ATTACHED

PART_BYTES = 64
"""About how much memory a frame of an incomplete message uses in addition to its payload."""


class Link:
    """A link in either direction, from attach to detach."""

    __slots__ = ("answers_detach_later", "handle", "local", "name", "node", "remote", "session", "state")
    is_sender: bool

    def __init__(self, session: Session, name: str, handle: int) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.state = LinkState.DETACHED
        self.local: Attach | None = None
        self.remote: Attach | None = None
        self.node: Any = None
        self.answers_detach_later = False
        """Whether the owner answers the peer's detach by calling `detach`. Otherwise it is answered at once."""

    @property
    def attached(self) -> bool:
        return self.state is LinkState.ATTACHED

    def attach(self, attach: Attach) -> None:
        """Attach before the peer does, as a client. The handle of `attach` must be this link's."""
        self._send_attach(attach)
        self.session.handles.await_attach(self)

    def accept(
        self,
        *,
        max_message_size: int | None = None,
        properties: dict[Any, Any] | None = None,
        source: Any = ...,
        target: Any = ...,
    ) -> None:
        """Answer the peer's attach, with the peer's settle modes and, unless given here, the peer's termini.

        No effect if no attach is unanswered. Raise EncodeError if the peer's values cannot be encoded again.
        """
        remote = self.remote
        if remote is None or self.state not in (LinkState.ATTACH_RECEIVED, LinkState.DETACH_RECEIVED):
            return
        self._send_attach(
            Attach(
                name=self.name,
                handle=self.handle,
                role=not self.is_sender,
                snd_settle_mode=remote.snd_settle_mode,
                rcv_settle_mode=remote.rcv_settle_mode,
                source=remote.source if source is ... else source,
                target=remote.target if target is ... else target,
                initial_delivery_count=0 if self.is_sender else None,
                max_message_size=max_message_size,
                properties=properties if properties is not None else {},
            )
        )

    def refuse(self, error: Error) -> None:
        """Answer the peer's attach with null termini, which means that the link was not created (2.6.3), and detach."""
        if self.state is LinkState.ATTACH_RECEIVED:
            self.accept(source=None, target=None)
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Close the link, or answer the peer's detach. No effect if it is detached already."""
        if self.state is LinkState.ATTACH_RECEIVED:
            self.refuse(error or Error(condition=Condition.INTERNAL_ERROR, description="the link was not accepted"))
        elif (self.state, LinkInput.SEND_DETACH) in LINK:
            self._step(LinkInput.SEND_DETACH)
            self.session.forget_deliveries(self)
            # `closed` is always true: a suspended link could be resumed, which is not supported.
            self.session.send(Detach(handle=self.handle, closed=True, error=error))
            if self.state is LinkState.DETACHED:
                self.session.handles.unmap(self)

    def on_attach(self, attach: Attach) -> None:
        self._step(LinkInput.RECEIVE_ATTACH)
        self.remote = attach

    def on_detach(self, detach: Detach) -> None:
        self._step(LinkInput.RECEIVE_DETACH)
        self.session.forget_deliveries(self)
        if self.state is LinkState.DETACHED:
            self.session.handles.unmap(self)

    def on_flow(self, flow: FlowFields) -> None:
        raise NotImplementedError  # abstract

    def forget(self) -> None:
        """End the link without sending anything, because its session has ended."""
        self._step(LinkInput.LOSE_SESSION)

    def _step(self, cause: LinkInput) -> None:
        self.state = step(LINK, self.state, cause)

    def _send_attach(self, attach: Attach) -> None:
        # Before the state changes, so that the owner can still refuse the link after an EncodeError.
        body = attach.encode()
        self._step(LinkInput.SEND_ATTACH)
        self.session.send(attach, body)
        self.local = attach


class Sender(Link):
    """A link on which we send."""

    __slots__ = ("_encoder", "credit", "delivery_count", "drain", "unsettled")
    is_sender = True

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.credit = 0
        self.delivery_count = 0
        self.drain = False
        self.unsettled = 0
        self._encoder = TransferEncoder(session.channel, handle)

    @property
    def max_message_size(self) -> int:
        """The size of the largest message that the receiver accepts, in bytes; 0: no limit."""
        return (self.remote.max_message_size if self.remote else None) or 0

    def ready(self) -> bool:
        """Return whether the link has credit, and a message would be written to the transport without waiting."""
        return (
            self.credit > 0 and self.state is _ATTACHED and self.unsettled < MAX_UNSETTLED and self.session.can_send()
        )

    def send(
        self,
        tag: bytes,
        parts: Sequence[bytes],
        *,
        settled: bool = False,
        context: Any = None,
        message_format: int = 0,
        state: Any = None,
    ) -> OutgoingDelivery | None:
        """Send a message, which is given in parts. Return the delivery unless it is sent settled."""
        session = self.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & SERIAL_MASK
        self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
        self.credit -= 1
        size = 0
        for part in parts:
            size += len(part)
        encoder = self._encoder
        if (
            len(tag) == 16
            and not message_format
            and state is None
            and size + encoder.overhead <= session.max_frame_size
            and session.can_send()
        ):
            session.next_outgoing_id = (session.next_outgoing_id + 1) & SERIAL_MASK
            session.remote_incoming_window -= 1
            out = session.out
            out.append(encoder.encode(delivery_id, tag, settled, size))
            out += parts
        else:
            self._send_frames(delivery_id, tag, b"".join(parts), settled, message_format, state)
        if settled:
            return None
        delivery = session.outgoing_unsettled[delivery_id] = OutgoingDelivery(self, delivery_id, tag, context)
        self.unsettled += 1
        return delivery

    def finish_drain(self) -> None:
        """Answer a drain: use up the credit, because there are no more messages to send, and send a flow (2.6.7)."""
        self.delivery_count = (self.delivery_count + self.credit) & SERIAL_MASK
        self.credit = 0
        self.session.send_flow(self)

    def on_flow(self, flow: FlowFields) -> None:
        if flow.link_credit is not None:
            # Credit counts from what the receiver had seen; sends since then are spent (2.6.7).
            seen = flow.delivery_count if flow.delivery_count is not None else 0
            # A receiver that counts frames instead of deliveries is ahead of us. Its link-credit is then the maximum.
            spent = max(0, serial_sub(self.delivery_count, seen))
            self.credit = max(0, flow.link_credit - spent)
        self.drain = flow.drain
        self.session.connection.emit(CreditChanged(self))

    def _send_frames(
        self, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: Any
    ) -> None:
        session = self.session
        first = Transfer(
            handle=self.handle,
            delivery_id=delivery_id,
            delivery_tag=tag,
            message_format=message_format,
            settled=settled,
            more=False,
            state=state,
        )
        head = first.encode()
        room = session.max_frame_size - 8
        if len(head) + len(payload) <= room:
            session.send_transfer(self, head + payload)
            return
        # Both values of `more` take one byte, so the length of the head does not change.
        first.more = True
        at = room - len(head)
        session.send_transfer(self, first.encode() + payload[:at])
        # Only the first frame has the id and the tag: some receivers treat a second id as a new delivery.
        following = Transfer(handle=self.handle, settled=settled, more=True).encode()
        last = Transfer(handle=self.handle, settled=settled, more=False).encode()
        step_size = room - len(following)
        while len(payload) - at > step_size:
            session.send_transfer(self, following + payload[at : at + step_size])
            at += step_size
        session.send_transfer(self, last + payload[at:])


class Receiver(Link):
    """A link on which we receive."""

    __slots__ = ("_held", "_parts", "_size", "credit", "delivery_count", "drain", "max_message_size", "partial")
    is_sender = False

    def __init__(self, session: Session, name: str, handle: int) -> None:
        super().__init__(session, name, handle)
        self.credit = 0
        self.delivery_count = 0
        self.drain = False
        self.max_message_size = 0
        self.partial: tuple[int, bytes, TransferForm] | None = None
        """The id, the tag and the other fields of the first frame of an incomplete delivery."""
        self._parts: list[bytes] = []
        self._size = 0
        self._held = 0
        """The memory that the parts use."""

    def grant(self, credit: int, *, drain: bool = False, echo: bool = False) -> None:
        """Allow the sender to send `credit` more messages from now on. No effect on a detached link."""
        if self.state is not LinkState.ATTACHED and self.state is not LinkState.ATTACH_SENT:
            return
        self.credit = credit
        self.drain = drain
        self.session.send_flow(self, echo=echo)

    def on_attach(self, attach: Attach) -> None:
        super().on_attach(attach)
        self.delivery_count = attach.initial_delivery_count or 0
        if self.state is LinkState.ATTACHED:
            self.session.start_receiving(self)

    def on_flow(self, flow: FlowFields) -> None:
        # The delivery-count of a sender matters only if it is ahead: the sender has answered a drain.
        if self.drain and flow.delivery_count is not None:
            passed = serial_sub(flow.delivery_count, self.delivery_count)
            if passed > 0:
                self.delivery_count = flow.delivery_count
                self.credit = max(0, self.credit - passed)
            if self.credit <= 0:
                self.drain = False

    def on_transfer(
        self, delivery_id: int | None, tag: bytes | None, form: TransferForm, part: bytes
    ) -> IncomingDelivery | None:
        """Handle one frame of a delivery that has several. Return the delivery when it is complete."""
        first = self.partial
        if first is None:
            if delivery_id is None or tag is None:
                raise DetachLink(
                    Condition.INVALID_FIELD, "the first transfer of a delivery needs delivery-id and delivery-tag"
                )
            self.credit -= 1
            self.delivery_count = (self.delivery_count + 1) & SERIAL_MASK
            first = self.partial = (delivery_id, tag, form)
        elif delivery_id is not None and delivery_id != first[0]:
            raise DetachLink(
                Condition.INVALID_FIELD, f"delivery {delivery_id} started before delivery {first[0]} was complete"
            )
        if form.aborted:
            self.forget_partial()
            return None
        self._size += len(part)
        oversize = 0 < self.max_message_size < self._size
        if oversize:
            self._drop_parts()  # the message is too large, so only its size is counted from here
        elif part:
            self._keep(part)
        if form.more:
            return None
        payload = b"".join(self._parts)
        self.forget_partial()
        first_id, first_tag, first_form = first
        return IncomingDelivery(
            self,
            first_id,
            first_tag,
            message_format=first_form.message_format or 0,
            settled=bool(first_form.settled or form.settled),
            state=first_form.state if form.state is None else form.state,
            data=payload,
            at=0,
            end=len(payload),
            oversize=oversize,
        )

    def forget_partial(self) -> None:
        """Drop the parts of a delivery that was aborted or is complete."""
        self.partial = None
        self._size = 0
        self._drop_parts()

    def forget(self) -> None:
        super().forget()
        self.forget_partial()

    def _send_attach(self, attach: Attach) -> None:
        super()._send_attach(attach)
        if self.state is LinkState.ATTACHED:
            self.session.start_receiving(self)

    def _keep(self, part: bytes) -> None:
        cost = len(part) + PART_BYTES
        connection = self.session.connection
        if connection.partial_bytes + cost > MAX_PARTIAL_BYTES:
            raise DetachLink(
                Condition.RESOURCE_LIMIT_EXCEEDED,
                f"the incomplete messages of the connection have more than {MAX_PARTIAL_BYTES} bytes",
            )
        memory = connection.partial_memory
        if memory is not None:
            if not memory.has_room():
                raise DetachLink(
                    Condition.RESOURCE_LIMIT_EXCEEDED,
                    "the incomplete messages of all connections have too many bytes, and this connection has the most",
                )
            memory.take(cost)
        self._parts.append(part)
        self._held += cost
        connection.partial_bytes += cost

    def _drop_parts(self) -> None:
        self._parts = []
        if self._held:
            connection = self.session.connection
            connection.partial_bytes -= self._held
            if connection.partial_memory is not None:
                connection.partial_memory.release(self._held)
            self._held = 0
