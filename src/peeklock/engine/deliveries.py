"""Deliveries in either direction, as long as they are not settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peeklock.engine.links import Receiver, Sender


class IncomingDelivery:
    """A whole message that arrived on a link; also the event that says so."""

    __slots__ = ("delivery_id", "link", "message_format", "oversize", "payload", "settled", "state", "tag")

    def __init__(
        self,
        link: Receiver,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        state: Any,
        payload: bytes,
        oversize: bool = False,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.payload = payload
        self.oversize = oversize
        """The message was larger than the link allows; its bytes were not kept."""

    def dispose(self, state: bytes, settled: bool = True) -> None:
        """Tell the sender the state of this delivery (encoded), and by default settle it."""
        if self.settled:
            return
        session = self.link.session
        if settled:
            self.settled = True
            if session.incoming_unsettled.pop(self.delivery_id, None) is None:
                return  # the link is gone, and its deliveries with it
        elif self.delivery_id not in session.incoming_unsettled:
            return
        session.dispose(True, self.delivery_id, settled, state)


class OutgoingDelivery:
    """A message sent on a link and not settled yet."""

    __slots__ = ("context", "delivery_id", "link", "tag")

    def __init__(self, link: Sender, delivery_id: int, tag: bytes, context: Any) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.context = context
        """What the sender of the message wants to find again when it is settled."""

    def settle(self, state: bytes) -> None:
        """Forget this delivery and tell the receiver so, with the final state (encoded)."""
        session = self.link.session
        if session.outgoing_unsettled.pop(self.delivery_id, None) is not None:
            self.link.unsettled -= 1
            session.dispose(False, self.delivery_id, True, state)

    def forget(self) -> None:
        """The receiver has settled; nothing is left to say."""
        if self.link.session.outgoing_unsettled.pop(self.delivery_id, None) is not None:
            self.link.unsettled -= 1
