"""Request/response over a pair of links: requests arrive on one link, and replies are sent on the other.

The request's reply-to selects the link for the reply. Subclasses of `RequestNode` answer the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.transactions import TransactionalState
from peeklock.broker.errors import (
    BrokerError,
    InvalidMessage,
    MessageSizeExceeded,
    OperationNotAllowed,
    QuotaExceeded,
)
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.links import Receiver, Sender
from peeklock.entities.names import fold
from peeklock.limits.amqp import MAX_CBS_BYTES, MAX_WAITING_REPLIES, MAX_WAITING_REPLY_BYTES
from peeklock.nodes.addresses import Address
from peeklock.nodes.node import Node, rejected
from peeklock.nodes.settling import ACCEPTED

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

REQUEST_CREDIT: Final = 200


class ReplyNode(Node):
    """The link on which replies are sent. Replies wait here for credit."""

    def __init__(self, peer: Peer, address: Address, link: Sender) -> None:
        super().__init__(peer, address)
        self.link = link
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_closed = False
        self._tags = count()
        link.accept()

    @property
    def full(self) -> bool:
        if len(self._waiting) >= MAX_WAITING_REPLIES or self._waiting_bytes >= MAX_WAITING_REPLY_BYTES:
            return True
        return bool(self._waiting) and self.peer.held.is_full

    @property
    def reply_address(self) -> str | None:
        target = self.link.remote.target if self.link.remote is not None else None
        return getattr(target, "address", None)

    def reply(self, encoded: bytes) -> None:
        if self._is_closed:
            return
        self._waiting.append(encoded)
        self._waiting_bytes += len(encoded)
        self.peer.held.take(len(encoded))
        self.on_credit()

    def on_closed(self) -> None:
        self._is_closed = True
        self._waiting.clear()
        self.peer.held.release(self._waiting_bytes)
        self._waiting_bytes = 0

    def on_credit(self) -> None:
        link = self.link
        if self._waiting and link.ready():
            # The outcome of a request is sent before its reply: without it some clients treat the request as failed.
            link.session.connection.flush_dispositions()
        while self._waiting and link.ready():
            reply = self._waiting.popleft()
            self._waiting_bytes -= len(reply)
            self.peer.held.release(len(reply))
            link.send(next(self._tags).to_bytes(8), (reply,), settled=True)
        if link.drain and not self._waiting:
            link.finish_drain()
            link.drain = False
        self.peer.wake()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, and the function that answers it."""

    message: Message
    state: Any
    """The state of its transfer: transactional-state, or None."""
    reply: Callable[[Message], None]
    """Sends the reply, a message without correlation-id. Call it once, or again if the message cannot be encoded."""
    size: int
    """The size of the request in bytes."""
    is_crowded: Callable[[], bool]
    """Whether so many replies await credit that no long reply should be made."""


class RequestNode(Node):
    """The link on which requests arrive. Subclasses answer them."""

    max_request_bytes = MAX_CBS_BYTES

    def __init__(self, peer: Peer, address: Address, link: Receiver) -> None:
        super().__init__(peer, address)
        self.link = link
        self._in_flight = 0
        link.max_message_size = self.max_request_bytes
        link.accept(max_message_size=self.max_request_bytes)
        link.grant(REQUEST_CREDIT)

    def answer(self, request: Request) -> None:
        """Answer the request with `request.reply`, now or later, also if the request is invalid."""
        raise NotImplementedError  # abstract

    def refusal(self, failure: BrokerError) -> Message:
        """Return the answer to a failed request."""
        raise NotImplementedError  # abstract

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """Accept the request and answer it; reject it if it cannot be answered."""
        try:
            if delivery.oversize:
                raise MessageSizeExceeded(f"The request is larger than {self.max_request_bytes} bytes.")
            try:
                request = Message.decode(delivery.payload)
            except DecodeError as error:
                raise InvalidMessage(f"The request could not be decoded: {error.description}.") from error
            properties = request.properties or Properties()
            replies = self._reply_node(properties.reply_to)
            if replies.full:
                raise QuotaExceeded("Too many replies await credit on the reply link.")
            state = delivery.state
            self._in_flight += 1
            # The request counts like a send that awaits its commit: the server throttles reading by this number.
            cost = delivery.end - delivery.at
            self.peer.unsaved_bytes += cost
            self.peer.namespace.journal.charge(cost)
            reply = partial(self._reply, replies, properties.message_id, cost)
        except Exception as failure:
            delivery.dispose(rejected(self.peer.failed(failure, self)))
        else:
            outcome = ACCEPTED
            if isinstance(state, TransactionalState):
                outcome = TransactionalState(state.txn_id, Accepted()).encode()
            delivery.dispose(outcome)
            try:
                self.answer(
                    Request(message=request, state=state, reply=reply, size=cost, is_crowded=lambda: replies.full)
                )
            except Exception as failure:
                reply(self.refusal(self.peer.failed(failure, self)))
        self._renew_credit()
        self.peer.wake()

    def _reply(self, replies: ReplyNode, message_id: Any, cost: int, reply: Message) -> None:
        reply.properties = Properties(correlation_id=message_id)
        encoded = reply.encode()  # before the counters, because if this fails the request still awaits an answer
        self._in_flight -= 1
        self.peer.unsaved_bytes -= cost
        self.peer.namespace.journal.discharge(cost)
        if replies.link.attached:
            replies.reply(encoded)
        self._renew_credit()

    def _renew_credit(self) -> None:
        if self.link.credit + self._in_flight < REQUEST_CREDIT // 2 and self.link.attached:
            self.link.grant(REQUEST_CREDIT - self._in_flight)

    def _reply_node(self, reply_to: Any) -> ReplyNode:
        """Find the reply link by address, by link name, or else in the same session: SDKs differ in reply-to."""
        path = fold(self.address.path)
        candidates = [
            node for node in self.peer.nodes if isinstance(node, ReplyNode) and fold(node.address.path) == path
        ]
        in_session = [node for node in candidates if node.link.session is self.link.session]
        ordered = in_session + [node for node in candidates if node not in in_session]
        for node in ordered:
            if reply_to is not None and node.reply_address == reply_to:
                return node
        for node in ordered:
            if reply_to is not None and node.link.name == reply_to:
                return node
        if ordered:
            return ordered[0]
        raise OperationNotAllowed(f"No link is attached for the replies of '{self.address.path}'.")
