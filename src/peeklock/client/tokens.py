"""Shared access signatures: making them, putting them to `$cbs`, and renewing them before they expire."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote_plus

from peeklock.amqp.errors import Condition
from peeklock.amqp.message import Message
from peeklock.amqp.types import Timestamp
from peeklock.client.errors import AuthenticationFailed
from peeklock.client.strings import Endpoint

if TYPE_CHECKING:
    from peeklock.client.requests import Requester

SAS_TOKEN: Final = "servicebus.windows.net:sastoken"
LIFETIME_SECONDS: Final = 3600.0


def sas_token(uri: str, key_name: str, key: str, expires_at: float) -> str:
    """Make a shared access signature for `uri`, valid until `expires_at` (Unix seconds)."""
    resource, expiry = quote_plus(uri), str(int(expires_at))
    digest = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = quote_plus(base64.b64encode(digest).decode())
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"


class Tokens:
    """The audiences for which a connection has put a token."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._renew_at: dict[str, float] = {}
        """Time of renewal by entity, in Unix seconds."""

    def has(self, entity: str) -> bool:
        return entity in self._renew_at

    def put(self, requester: Requester, entity: str, timeout: float) -> None:
        """Put a token for the entity and wait until the peer accepts it."""
        answer = requester.request(self._request(entity), timeout=timeout)
        properties = answer.application_properties or {}
        status = properties.get("status-code", properties.get("statusCode"))
        if status not in (200, 202):
            description = properties.get("status-description", properties.get("statusDescription")) or ""
            condition = properties.get("error-condition") or Condition.UNAUTHORIZED_ACCESS
            if status != HTTPStatus.NOT_FOUND or not description:  # the description of 404 names the entity
                description = f"{description} (status {status} for '{entity}')".strip()
            raise AuthenticationFailed(str(condition), description)
        self._renew_later(entity)

    def is_due(self) -> bool:
        """Whether a token is about to expire. A ready-made signature cannot be renewed."""
        now = time.time()
        return self._endpoint.key is not None and any(due <= now for due in self._renew_at.values())

    def renew(self, requester: Requester) -> None:
        """Put new tokens in place of those that are about to expire, without waiting for the answer."""
        now = time.time()
        for entity in [entity for entity, due in self._renew_at.items() if due <= now]:
            requester.forget(requester.submit(self._request(entity), timeout=0))
            self._renew_later(entity)

    def _renew_later(self, entity: str) -> None:
        self._renew_at[entity] = time.time() + 0.75 * LIFETIME_SECONDS

    def _request(self, entity: str) -> Message:
        endpoint = self._endpoint
        audience = entity if "://" in entity else f"sb://{endpoint.host}/{entity}"
        properties: dict[str, Any] = {"operation": "put-token", "type": SAS_TOKEN, "name": audience}
        if endpoint.key is not None and endpoint.key_name is not None:
            expires_at = time.time() + LIFETIME_SECONDS
            token = sas_token(audience, endpoint.key_name, endpoint.key, expires_at)
            properties["expiration"] = Timestamp(int(expires_at * 1000))
        elif endpoint.token is not None:
            token = endpoint.token
        else:
            raise AuthenticationFailed(
                Condition.UNAUTHORIZED_ACCESS, "the connection string has neither a key nor a signature"
            )
        return Message(application_properties=properties, value=token)
