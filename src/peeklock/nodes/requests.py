"""Request/response over a pair of links: requests in on one, replies out on another, matched by reply-to.

What a request means is the business of the node that is built on this.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message, Properties
from peeklock.broker.errors import BrokerError, InvalidMessage, QuotaExceeded
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.links import Receiver, Sender
from peeklock.nodes.addresses import Address
from peeklock.nodes.node import Node, rejected
from peeklock.nodes.sending import ACCEPTED

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

REQUEST_CREDIT: Final = 200
MAX_REQUEST_BYTES: Final = 1024 * 1024
MAX_WAITING_REPLIES: Final = 1000
"""Replies kept for a client that gives no credit; beyond them its requests are refused."""


class ReplyNode(Node):
    """The link on which replies leave. They wait here for credit."""

    def __init__(self, peer: Peer, address: Address, link: Sender) -> None:
        super().__init__(peer, address)
        self.link = link
        self._waiting: deque[bytes] = deque()
        self._tags = count()
        link.accept()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= MAX_WAITING_REPLIES

    @property
    def reply_address(self) -> str | None:
        target = self.link.remote.target if self.link.remote is not None else None
        return getattr(target, "address", None)

    def reply(self, message: Message) -> None:
        self._waiting.append(message.encode())
        self.on_credit()

    def on_credit(self) -> None:
        link = self.link
        while self._waiting and link.ready():
            link.send(next(self._tags).to_bytes(8), (self._waiting.popleft(),), settled=True)
        if link.drain and not self._waiting:
            link.drained()
            link.drain = False
        self.peer.wake()


class RequestNode(Node):
    """The link on which requests arrive. Subclasses answer them."""

    max_request_bytes = MAX_REQUEST_BYTES

    def __init__(self, peer: Peer, address: Address, link: Receiver) -> None:
        super().__init__(peer, address)
        self.link = link
        link.max_message_size = self.max_request_bytes
        link.accept(max_message_size=self.max_request_bytes)
        link.grant(REQUEST_CREDIT)

    def answer(self, request: Message) -> Message:
        """The reply to a request, without its correlation-id. A BrokerError rejects the request."""
        raise NotImplementedError  # abstract

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        try:
            if delivery.oversize:
                raise InvalidMessage(f"The request is larger than {self.max_request_bytes} bytes.")
            try:
                request = Message.decode(delivery.payload)
            except DecodeError as error:
                raise InvalidMessage(f"The request could not be read: {error.description}.") from error
            properties = request.properties or Properties()
            replies = self._reply_node(properties.reply_to)
            if replies.full:
                raise QuotaExceeded("Too many replies wait for credit on the reply link.")
            reply = self.answer(request)
            reply.properties = Properties(correlation_id=properties.message_id)
            delivery.dispose(ACCEPTED)
            replies.reply(reply)
        except BrokerError as failure:
            delivery.dispose(rejected(failure))
        if self.link.credit < REQUEST_CREDIT // 2:
            self.link.grant(REQUEST_CREDIT)
        self.peer.wake()

    def _reply_node(self, reply_to: Any) -> ReplyNode:
        """By address, by link name, or the one in the same session: SDKs differ in what they say."""
        path = self.address.path.casefold()
        candidates = [
            node
            for node in self.peer.nodes
            if isinstance(node, ReplyNode) and node.address.path.casefold() == path
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
        raise InvalidMessage(f"No link receives the replies of '{self.address.path}'.")
