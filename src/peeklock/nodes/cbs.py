"""`$cbs`: claims-based security. A client sends its tokens here before it attaches other links."""

from __future__ import annotations

import logging
from typing import Any

from peeklock.amqp.message import Message
from peeklock.amqp.types import Int, Symbol
from peeklock.broker.access import key_name_of, resource_path, spelt_path
from peeklock.broker.audit import DENIED
from peeklock.broker.errors import BrokerError, EntityNotFound, InvalidToken, NotSupported, WrongKey
from peeklock.nodes.request_response import Request, RequestNode

log = logging.getLogger(__name__)


class CbsNode(RequestNode):
    """Answers `put-token` requests. Attaching to it requires no grant."""

    def answer(self, request: Request) -> None:
        try:
            self._put_token(request.message)
        except BrokerError as failure:
            log.warning("token refused", extra={"fields": {"peer": self.peer.name, "reason": str(failure)}})
            if not isinstance(failure, EntityNotFound):
                self._audit(request.message, failure)
            request.reply(self.refusal(failure))
        else:
            request.reply(_reply(202, "Accepted"))

    def refusal(self, failure: BrokerError) -> Message:
        return _reply(failure.status, str(failure), failure.condition)

    def _audit(self, request: Message, failure: BrokerError) -> None:
        audience = (request.application_properties or {}).get("name")
        try:
            client = key_name_of(_token(request))
        except InvalidToken:
            client = ""
        entity = resource_path(audience) if isinstance(audience, str) else ""
        self.peer.audit("put-token", DENIED, entity, client=client, reason=str(failure))

    def _put_token(self, request: Message) -> None:
        properties = request.application_properties or {}
        if properties.get("operation") != "put-token":
            raise NotSupported(f"The operation {properties.get('operation')!r} of '$cbs' is not known.")
        audience = properties.get("name")
        if not isinstance(audience, str):
            raise InvalidToken("The request has no property 'name' with the audience of the token.")
        peer = self.peer
        peer.logins.check_login()
        try:
            grant = peer.namespace.keys.verify(_token(request), audience, peer.namespace.now())
        except WrongKey:
            peer.logins.login_failed()
            raise
        # After the token was verified, because clients without a valid token must not learn which entities exist.
        peer.namespace.check_audience(spelt_path(audience))
        peer.add_grant(grant)
        log.info("token accepted", extra={"fields": {"peer": peer.name, "audience": grant.path or "/"}})


def _token(request: Message) -> str:
    """Return the token of a request. It is in the amqp-value or, from some clients, in a data section."""
    token: Any = b"".join(request.data) if request.data else request.value
    if isinstance(token, bytes):
        try:
            return token.decode()
        except UnicodeDecodeError:
            raise InvalidToken("The token is not UTF-8 text.") from None
    if not isinstance(token, str):
        raise InvalidToken("The request has no token in its body.")
    return token


def _reply(status: int, description: str, condition: str | None = None) -> Message:
    properties: dict[Any, Any] = {"status-code": Int(status), "status-description": description}
    if condition is not None:
        properties["error-condition"] = Symbol(condition)
    return Message(application_properties=properties, value=None)
