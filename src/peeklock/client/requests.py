"""Requests and their responses, matched by correlation-id; several may be in flight."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from peeklock.amqp.errors import DecodeError
from peeklock.amqp.message import Message, Properties
from peeklock.amqp.outcomes import Accepted, Error, Rejected
from peeklock.amqp.performatives import Source, Target
from peeklock.client.errors import ClientError
from peeklock.client.receiver import ReceiveMode, Receiver
from peeklock.client.sender import Sender, Sent
from peeklock.engine.deliveries import IncomingDelivery

if TYPE_CHECKING:
    from peeklock.client.connection import Connection

_CREDIT: Final = 100
_ACCEPTED: Final = Accepted().encode()


class Requester:
    """A pair of links, made by `Connection.requester`. It is a context manager."""

    def __init__(self, connection: Connection, address: str, *, dynamic: bool, timeout: float) -> None:
        self._under_way: dict[Hashable, _Request] = {}
        reply_to = f"reply-{uuid4()}"
        source = Source(dynamic=True) if dynamic else Source(address=address)
        self._responses = _Responses(connection, source, reply_to, self._on_response, timeout)
        remote_source = self._responses.source
        if dynamic and remote_source is not None and remote_source.address:
            reply_to = remote_source.address
        self._reply_to = reply_to
        try:
            self._requests = Sender(connection, Target(address=address), None, timeout)
        except ClientError:
            self._responses.close()
            raise

    def __enter__(self) -> Requester:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._requests.closed or self._responses.closed

    def request(self, message: Message, timeout: float | None = None, *, state: Any = None) -> Message:
        """Send a request and wait for its response. SendRejected if the peer rejects the request."""
        return self.response(self.submit(message, timeout, state=state), timeout)

    def submit(self, message: Message, timeout: float | None = None, *, state: Any = None) -> Any:
        """Send a request and return its message-id, which `response` takes.

        A message-id that the message has is kept, and must not be under way already. The reply-to is ours. `state` is
        sent along, for a request in a transaction.
        """
        properties = message.properties or Properties()
        message_id = str(uuid4()) if properties.message_id is None else properties.message_id
        if message_id in self._under_way:
            raise ValueError(f"a request with message-id {message_id!r} is already in flight")
        properties = replace(properties, message_id=message_id, reply_to=self._reply_to)
        sent = self._requests.post(replace(message, properties=properties), state=state, timeout=timeout)
        self._under_way[message_id] = _Request(sent)
        return message_id

    def response(self, message_id: Any, timeout: float | None = None) -> Message:
        """Wait for the response to a request. After a failure or a time-out the request is forgotten."""
        request = self._under_way[message_id]
        try:
            self._responses.wait_for(
                lambda: request.is_over or self._requests.closed, timeout, f"the response to {message_id!r}"
            )
        finally:
            self.forget(message_id)
        if request.response is not None:
            return request.response
        if request.sent.refused is not None:
            raise request.sent.refused
        self._requests.check()
        raise AssertionError("a wait ended without a reason")

    def is_over(self, message_id: Any) -> bool:
        """Whether `response` would return, or raise, at once."""
        return self.closed or self._under_way[message_id].is_over

    def forget(self, message_id: Any) -> None:
        """Ignore the response of a request."""
        self._under_way.pop(message_id, None)

    def close(self) -> None:
        self._requests.close()
        self._responses.close()

    def _on_response(self, response: Message) -> None:
        properties = response.properties
        request = None if properties is None else self._under_way.get(properties.correlation_id)
        if request is not None:
            request.response = response


class _Request:
    """A request in flight."""

    __slots__ = ("response", "sent")

    def __init__(self, sent: Sent) -> None:
        self.sent = sent
        self.response: Message | None = None

    @property
    def is_over(self) -> bool:
        return self.response is not None or self.sent.refused is not None


class _Responses(Receiver):
    """Receives the responses."""

    def __init__(
        self,
        connection: Connection,
        source: Source,
        reply_to: str,
        on_response: Callable[[Message], None],
        timeout: float,
    ) -> None:
        self._on_response = on_response
        super().__init__(
            connection,
            source,
            credit=_CREDIT,
            mode=ReceiveMode.SETTLE_FIRST,
            target=reply_to,
            timeout=timeout,
        )

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        try:
            response = Message.decode(delivery.payload)
        except DecodeError as failure:
            error = Error(condition=failure.condition, description=failure.description)
            delivery.dispose(Rejected(error=error).encode())
        else:
            delivery.dispose(_ACCEPTED)
            self._on_response(response)
        self._top_up()
