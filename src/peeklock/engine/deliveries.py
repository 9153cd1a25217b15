"""Unsettled deliveries: incoming and outgoing ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from peeklock.engine.serial import SERIAL_MASK

if TYPE_CHECKING:
    from peeklock.engine.links import Receiver, Sender


class IncomingDelivery:
    """A complete message that arrived on a link. It is also the event that reports its arrival."""

    __slots__ = ("at", "data", "delivery_id", "end", "link", "message_format", "oversize", "settled", "state", "tag")

    def __init__(
        self,
        link: Receiver,
        delivery_id: int,
        tag: bytes,
        message_format: int,
        settled: bool,
        state: Any,
        data: bytes,
        at: int,
        end: int,
        oversize: bool = False,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.state = state
        self.data = data
        """Bytes that were read from the transport. The message is the part from `at` to `end`."""
        self.at = at
        self.end = end
        self.oversize = oversize
        """Whether the message is larger than the link allows. Its bytes were not kept."""

    @property
    def payload(self) -> bytes:
        return self.data[self.at : self.end]

    def drop_data(self) -> None:
        """Free the bytes that the message was read with. Called when the message has been copied."""
        self.data = b""

    def dispose(self, state: bytes, settled: bool = True) -> None:
        """Send the state of this delivery (encoded) to the sender, and by default settle it."""
        if self.settled:
            return
        session = self.link.session
        if settled:
            self.settled = True
            if session.incoming_unsettled.pop(self.delivery_id, None) is None:
                return  # the link is detached, and its deliveries were removed
        elif self.delivery_id not in session.incoming_unsettled:
            return
        session.dispose(True, self.delivery_id, settled, state)


class OutgoingDelivery:
    """An unsettled message that was sent on a link."""

    __slots__ = ("context", "delivery_id", "link", "tag")

    def __init__(self, link: Sender, delivery_id: int, tag: bytes, context: Any) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.context = context
        """A value that the owner needs when the message is settled."""

    def settle(self, state: bytes) -> None:
        """Settle this delivery, and send the final state (encoded) to the receiver."""
        session = self.link.session
        if session.outgoing_unsettled.pop(self.delivery_id, None) is not None:
            self.link.unsettled -= 1
            session.dispose(False, self.delivery_id, True, state)

    def forget(self) -> None:
        """Remove this delivery without a disposition, because the receiver has settled it."""
        if self.link.session.outgoing_unsettled.pop(self.delivery_id, None) is not None:
            self.link.unsettled -= 1


_AnyDelivery = TypeVar("_AnyDelivery", IncomingDelivery, OutgoingDelivery)


def between(unsettled: dict[int, _AnyDelivery], first: int, last: int, take: bool) -> list[_AnyDelivery]:
    """Return the deliveries with ids from first to last, and remove them if `take`.

    The work is bounded by the number of deliveries in the dictionary, whatever the width of the range.
    """
    width = (last - first) & SERIAL_MASK
    if width < len(unsettled):
        find = unsettled.pop if take else unsettled.get
        if last >= first:
            keys: Iterable[int] = range(first, last + 1)
        else:
            keys = (key & SERIAL_MASK for key in range(first, first + width + 1))
        return [delivery for key in keys if (delivery := find(key, None)) is not None]
    held = [delivery for key, delivery in unsettled.items() if (key - first) & SERIAL_MASK <= width]
    if take:
        for delivery in held:
            del unsettled[delivery.delivery_id]
    return held


def by_link(deliveries: list[Any]) -> Iterable[tuple[Any, list[Any]]]:
    """Group deliveries by link. Usually all are on one link."""
    if not deliveries:
        return ()
    first = deliveries[0].link
    for delivery in deliveries:
        if delivery.link is not first:
            break
    else:
        return ((first, deliveries),)
    grouped: dict[Any, list[Any]] = {}
    for delivery in deliveries:
        grouped.setdefault(delivery.link, []).append(delivery)
    return grouped.items()
