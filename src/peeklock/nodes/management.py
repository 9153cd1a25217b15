"""`<entity>/$management`: handles requests about messages, locks, sessions and rules (see `operation_table`).

This module checks keys, types and rights, and encodes answers in a form that every SDK can read. The operations are in
modules of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.message import Message
from peeklock.amqp.transactions import TransactionalState
from peeklock.amqp.types import Int, Symbol
from peeklock.broker.agenda import Appointment
from peeklock.broker.audit import DENIED, FAILED, OK
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.errors import (
    BrokerError,
    InvalidProperty,
    MessageSizeExceeded,
    NotSupported,
    OperationNotAllowed,
    OperationTimedOut,
    Unauthorized,
)
from peeklock.engine.links import Receiver
from peeklock.entities.names import DefinitionError
from peeklock.limits.amqp import MAX_MANAGEMENT_BYTES, MAX_TIME_OUT_MS
from peeklock.nodes.addresses import Address
from peeklock.nodes.operation import Call, Operation
from peeklock.nodes.operation_table import OPERATIONS
from peeklock.nodes.request_response import Request, RequestNode

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

log = logging.getLogger(__name__)

SERVER_TIME_OUTS: Final = ("com.microsoft:server-timeout", "server-timeout")
TRACKING_ID: Final = "com.microsoft:tracking-id"
ASSOCIATED_LINK: Final = "associated-link-name"
SET_SESSION_STATE: Final = "com.microsoft:set-session-state"
PEEK: Final = "com.microsoft:peek-message"


class ManagementNode(RequestNode):
    """Answers requests about one entity."""

    max_request_bytes = MAX_MANAGEMENT_BYTES

    def __init__(self, peer: Peer, address: Address, link: Receiver, entity: AnyEntity) -> None:
        super().__init__(peer, address, link)
        self._entity = entity

    def answer(self, request: Request) -> None:
        reply = _Reply(self.peer, request)
        try:
            properties = request.message.application_properties or {}
            body = _body(request.message)
            operation = _operation(properties.get("operation"), body)
            address = self.address
            try:
                self.peer.grants.check(address.path, address.owner, operation.right, self.peer.namespace.now())
            except Unauthorized as denial:
                self.peer.audit(operation.name, DENIED, address.entity, reason=str(denial))
                raise
            if operation.max_request_bytes is not None and request.size > operation.max_request_bytes:
                raise MessageSizeExceeded(
                    f"A request for {operation.name} may have {operation.max_request_bytes} bytes; this one has "
                    f"{request.size}."
                )
            if operation.explain is not None:
                reply.explain = partial(operation.explain, self._entity)
            if operation.audited:
                reply.audited, reply.entity = operation.name, address.entity
            arguments = operation.check(body)
            request.message.value = None  # the request may wait, and decoded values are larger than the bytes
            numbers = arguments.get("sequence-numbers")
            reply.count = len(numbers) if isinstance(numbers, list) else None
            transaction = None
            if request.state is not None:
                if not isinstance(request.state, TransactionalState):
                    raise InvalidProperty("The state of the transfer is not transactional-state.")
                transaction = self.peer.transactions.get(request.state.txn_id)
                if not operation.transactional:
                    raise OperationNotAllowed(f"{operation.name} cannot be part of a transaction.")
            time_out = _time_out(properties)
            link_name = properties.get(ASSOCIATED_LINK)
            call = Call(
                entity=self._entity,
                arguments=arguments,
                transaction=transaction,
                scope=self.peer.scope(self.address.owner, self.link),
                link_name=str(link_name) if isinstance(link_name, str) else None,
                peer=self.peer,
                link=self.link,
                answer=reply.answer,
                fail=reply.fail,
                is_crowded=request.is_crowded,
            )
            if time_out is not None:
                reply.set_time_out(time_out)
            operation.run(call)
        except BrokerError as failure:
            self._fail(request, reply, failure)
        except DefinitionError as error:
            self._fail(request, reply, InvalidProperty(str(error)))
        except Exception:
            # One failed request must not affect other requests of the connection.
            log.exception("a request failed", extra={"fields": {"peer": self.peer.name, "node": self.address.path}})
            self._fail(request, reply, BrokerError("The broker failed at this request; see its log."))

    def refusal(self, failure: BrokerError) -> Message:
        return _answer(failure.status, str(failure), failure.condition, {})

    def _fail(self, request: Request, reply: _Reply, failure: BrokerError) -> None:
        if isinstance(request.state, TransactionalState):
            self.peer.transactions.mark_rollback_only(request.state.txn_id, failure)
        reply.fail(failure)


class _Reply:
    """The answer to a request, which is sent once."""

    def __init__(self, peer: Peer, request: Request) -> None:
        self._peer = peer
        self._request = request
        self._deadline: Appointment | None = None
        self._is_sent = False
        self.audited = ""
        """The name of the operation, if it is written to the audit log."""
        self.entity = ""
        self.count: int | None = None
        """The number of messages in the request; None if it does not list messages."""
        self.explain: Callable[[str], str] | None = None
        """Adds information to the reason of a refusal."""

    def set_time_out(self, milliseconds: int) -> None:
        late = OperationTimedOut("The operation did not complete within the client's server-timeout.")
        self._deadline = self._peer.namespace.agenda.after(milliseconds, partial(self.fail, late))

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        self._send(status, "OK" if status == 200 else "No Content", None, body)

    def fail(self, failure: BrokerError) -> None:
        description = str(failure)
        if self.explain is not None and not self._is_sent:
            description = self.explain(description)
        tracking_id = (self._request.message.application_properties or {}).get(TRACKING_ID)
        if isinstance(tracking_id, str):
            description = f"{description} TrackingId:{tracking_id}"
        self._send(failure.status, description, failure.condition, {})

    def _send(self, status: int, description: str, condition: str | None, body: dict[str, Any]) -> None:
        if self._is_sent:
            return
        self._request.reply(_answer(status, description, condition, body))
        self._is_sent = True
        if self.audited:
            count = self.count if self.count is not None else body.get("message-count")
            outcome = OK if status < 400 else FAILED
            reason = "" if status < 400 else description
            self._peer.audit(self.audited, outcome, self.entity, count=count, reason=reason)
        if self._deadline is not None:
            self._deadline.cancel()
        self._peer.wake()


def _answer(status: int, description: str, condition: str | None, body: dict[str, Any]) -> Message:
    # Both spellings, because SDKs differ in the one that they read.
    properties: dict[Any, Any] = {
        "statusCode": Int(status),
        "statusDescription": description,
        "status-code": Int(status),
        "status-description": description,
    }
    if condition is not None:
        properties["errorCondition"] = Symbol(condition)
        properties["error-condition"] = Symbol(condition)
    return Message(application_properties=properties, value=body)


def _body(message: Message) -> dict[str, Any]:
    body = message.value
    if not isinstance(body, dict):
        raise InvalidProperty("The body of the request must be a map.")
    return {str(key): value for key, value in body.items()}


def _operation(name: Any, body: dict[str, Any]) -> Operation:
    if not isinstance(name, str):
        raise InvalidProperty("The request has no string in the application property 'operation'.")
    if name == PEEK and "session-state" in body and "from-sequence-number" not in body:
        name = SET_SESSION_STATE  # one version of Microsoft's documentation has the wrong name for this operation
    operation = OPERATIONS.get(name)
    if operation is None:
        raise NotSupported(f"The operation '{name}' is not known.")
    return operation


def _time_out(properties: dict[Any, Any]) -> int | None:
    for name in SERVER_TIME_OUTS:
        value = properties.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidProperty(f"The property {name} must be a number of milliseconds.")
        return min(int(value), MAX_TIME_OUT_MS)
    return None
