"""A small blocking client of the ATOM API, with the operations of the hosted service.

It uses HTTPS, or plain HTTP for a connection string with `UseDevelopmentEmulator=true`, and a token made of the
connection string's key. `documents` reads and writes the documents.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, TypeVar
from urllib.parse import quote
from xml.etree.ElementTree import Element

from peeklock.amqp.errors import Condition
from peeklock.atom.entries import entries_of
from peeklock.atom.markup import MarkupError
from peeklock.client.descriptions import SETTINGS, Entity, Kind, Rule
from peeklock.client.documents import (
    parse_answer,
    read_entity,
    read_facts,
    read_failure,
    read_rule,
    write_entity,
    write_rule,
)
from peeklock.client.errors import AuthenticationFailed, ConnectionLost, RequestRefused, Timeout
from peeklock.client.strings import Endpoint, parse_endpoint
from peeklock.client.tokens import LIFETIME_SECONDS, sas_token
from peeklock.entities.names import SUBSCRIPTIONS, subscription_path
from peeklock.entities.settings import Plain

API_VERSION: Final = "2021-05"
PAGE: Final = 100
MAX_ANSWER: Final = 16 * 1024 * 1024
TIMEOUT_SECONDS: Final = 30.0
CONDITIONS: Final = {
    400: Condition.ARGUMENT_ERROR,
    401: Condition.UNAUTHORIZED_ACCESS,
    403: Condition.RESOURCE_LIMIT_EXCEEDED,
    404: Condition.NOT_FOUND,
    409: Condition.ENTITY_ALREADY_EXISTS,
    412: Condition.PRECONDITION_FAILED,
    429: Condition.SERVER_BUSY,
    503: Condition.SERVER_BUSY,
}
"""The condition of the same failure over AMQP."""
_BEING_CHANGED: Final = "SubCode=40901"

T = TypeVar("T")


class AdministrationClient:
    """Made by `from_connection_string`. It is a context manager, and not thread-safe.

    RequestRefused has the status and the text of a refusal: 404 for a missing entity, 409 for an existing one, 401
    without the right to manage.
    """

    def __init__(
        self, endpoint: Endpoint, *, tls: ssl.SSLContext | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self.endpoint = endpoint
        host, port = endpoint.host, endpoint.http_port
        self._http: http.client.HTTPConnection
        if endpoint.tls:
            context = tls or ssl.create_default_context()
            self._http = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._http = http.client.HTTPConnection(host, port, timeout=timeout)
        self._timeout = timeout

    @classmethod
    def from_connection_string(
        cls, address: str, *, tls: ssl.SSLContext | None = None, timeout: float = TIMEOUT_SECONDS
    ) -> AdministrationClient:
        """Connect with a key. `tls` replaces the default context, for example to trust a broker's own authority."""
        return cls(parse_endpoint(address), tls=tls, timeout=timeout)

    def __enter__(self) -> AdministrationClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- queues, topics, subscriptions

    def create(
        self,
        kind: Kind,
        name: str,
        settings: Mapping[str, Plain] | None = None,
        *,
        topic: str | None = None,
        rule: Rule | None = None,
    ) -> Entity:
        """Create an entity. Settings that are not given get the service's defaults.

        A subscription is created in a topic. It starts with the given rule, or with a rule that every message passes.
        """
        wanted = Entity(kind=kind, name=name, topic=topic, settings=_checked(kind, settings or {}))
        return self._put_entity(wanted, {}, rule)

    def get(self, kind: Kind, name: str, *, topic: str | None = None) -> Entity:
        """Return an entity with its settings and counts."""
        entity = self._entry(_path(name, topic), lambda entry: read_entity(entry, topic))
        if entity.kind is not kind:
            raise _missing(f"'{entity.path}' is a {entity.kind.lower()}, not a {kind.lower()}.")
        return entity

    def update(self, kind: Kind, name: str, settings: Mapping[str, Plain], *, topic: str | None = None) -> Entity:
        """Change some settings and keep the rest. An empty text removes a setting."""
        changes = _checked(kind, settings)
        entity = self.get(kind, name, topic=topic)
        return self._put_entity(replace(entity, settings={**entity.settings, **changes}), {"If-Match": "*"}, None)

    def delete(self, kind: Kind, name: str, *, topic: str | None = None) -> None:
        """Delete an entity with its messages."""
        self.get(kind, name, topic=topic)  # fails if the address is that of another kind of entity
        self._request("DELETE", _path(name, topic))

    def exists(self, kind: Kind, name: str, *, topic: str | None = None) -> bool:
        try:
            self.get(kind, name, topic=topic)
        except RequestRefused as refused:
            if refused.status == http.client.NOT_FOUND:
                return False
            raise
        return True

    def entities(self, kind: Kind, *, topic: str | None = None) -> Iterator[Entity]:
        """Yield all entities of a kind; for subscriptions, those of a topic."""
        path = f"$Resources/{kind.lower()}s" if topic is None else f"{topic}/{SUBSCRIPTIONS}"
        return self._feed(path, lambda entry: read_entity(entry, topic))

    # --- rules

    def create_rule(self, topic: str, subscription: str, rule: Rule) -> Rule:
        return self._put_rule(topic, subscription, rule, {})

    def get_rule(self, topic: str, subscription: str, name: str) -> Rule:
        return self._entry(_path(subscription, topic, name), read_rule)

    def update_rule(self, topic: str, subscription: str, rule: Rule) -> Rule:
        """Replace the filter and the action of a rule."""
        return self._put_rule(topic, subscription, rule, {"If-Match": "*"})

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        self._request("DELETE", _path(subscription, topic, name))

    def rules(self, topic: str, subscription: str) -> Iterator[Rule]:
        return self._feed(f"{subscription_path(topic, subscription)}/Rules", read_rule)

    # --- the namespace

    def namespace(self) -> dict[str, str]:
        """Return the properties of the namespace by element: Name, MessagingSKU, CreatedTime, …"""
        return self._entry("$namespaceinfo", read_facts)

    # --- requests

    def _put_entity(self, entity: Entity, headers: dict[str, str], rule: Rule | None) -> Entity:
        for header, setting in _FORWARDING.items():
            destination = entity.settings.get(setting)
            if destination:
                headers[header] = self._token(str(destination))
        document = write_entity(entity, self.endpoint.host, rule)
        return self._entry(
            _path(entity.name, entity.topic), lambda entry: read_entity(entry, entity.topic), "PUT", document, headers
        )

    def _put_rule(self, topic: str, subscription: str, rule: Rule, headers: dict[str, str]) -> Rule:
        return self._entry(_path(subscription, topic, rule.name), read_rule, "PUT", write_rule(rule), headers)

    def _entry(
        self,
        path: str,
        read: Callable[[Element], T],
        method: str = "GET",
        document: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> T:
        found = self._read(path, self._request(method, path, document, headers), read)
        if not found:  # the hosted service answers with an empty feed for a missing entity
            raise _missing(f"'{path}' does not exist.")
        return found[0]

    def _feed(self, path: str, read: Callable[[Element], T]) -> Iterator[T]:
        skip = 0
        while True:
            page = self._read(path, self._request("GET", path, query=f"&$skip={skip}&$top={PAGE}"), read)
            yield from page
            skip += len(page)
            if len(page) < PAGE:
                return

    def _read(self, path: str, answer: bytes, read: Callable[[Element], T]) -> list[T]:
        try:
            return [read(entry) for entry in entries_of(parse_answer(answer))]
        except MarkupError as problem:
            raise RequestRefused(
                http.client.BAD_GATEWAY, Condition.DECODE_ERROR, f"The answer for '{path}' cannot be used. {problem}"
            ) from None

    def _request(
        self,
        method: str,
        path: str,
        document: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: str = "",
    ) -> bytes:
        target = f"/{quote(path)}?api-version={API_VERSION}{query}"
        sent = {"Authorization": self._token(path), **(headers or {})}
        if document is not None:
            sent["Content-Type"] = "application/atom+xml;type=entry;charset=utf-8"
        if method != "GET":
            # If the peer closed an idle connection during a change, it would be unknown whether the change was made.
            self._http.close()
        reused = self._http.sock is not None
        try:
            try:
                return self._ask(method, target, document, sent)
            except (ConnectionError, http.client.BadStatusLine):
                if not reused:
                    raise
                return self._ask(method, target, document, sent)  # the peer had closed the idle connection
        except http.client.HTTPException:
            raise self._unreachable("the peer does not speak HTTP") from None
        except TimeoutError:
            raise Timeout(f"no answer from {self._where} within {self._timeout:g} seconds") from None
        except OSError as error:
            raise self._unreachable(str(error) or type(error).__name__) from None

    def _ask(self, method: str, target: str, document: bytes | None, headers: Mapping[str, str]) -> bytes:
        try:
            self._http.request(method, target, document, dict(headers))
            response = self._http.getresponse()
            body = response.read(MAX_ANSWER + 1)
        except BaseException:
            self._http.close()
            raise
        if len(body) > MAX_ANSWER:
            self._http.close()
            raise self._unreachable(f"the answer is larger than {MAX_ANSWER} bytes")
        if response.status in (http.client.OK, http.client.CREATED, http.client.NO_CONTENT):
            return body
        said = read_failure(body) or f"The service answered {response.status} {response.reason}."
        condition = CONDITIONS.get(response.status, Condition.INTERNAL_ERROR)
        if _BEING_CHANGED in said:
            condition = Condition.RESOURCE_LOCKED
        raise RequestRefused(response.status, condition, said)

    def _token(self, path: str) -> str:
        endpoint = self.endpoint
        if endpoint.key is not None and endpoint.key_name is not None:
            uri = f"https://{endpoint.host}/{path}"
            return sas_token(uri, endpoint.key_name, endpoint.key, time.time() + LIFETIME_SECONDS)
        if endpoint.token is not None:
            return endpoint.token
        raise AuthenticationFailed(
            Condition.UNAUTHORIZED_ACCESS, "the connection string has neither a key nor a signature"
        )

    def _unreachable(self, why: str) -> ConnectionLost:
        return ConnectionLost(Condition.CONNECTION_FORCED, f"cannot reach the administration at {self._where}: {why}")

    @property
    def _where(self) -> str:
        return f"{self.endpoint.host}:{self.endpoint.http_port}"


_FORWARDING: Final = {
    "ServiceBusSupplementaryAuthorization": "ForwardTo",
    "ServiceBusDlqSupplementaryAuthorization": "ForwardDeadLetteredMessagesTo",
}
"""Headers with a token for the entity to which messages are forwarded."""


def _path(name: str, topic: str | None, rule: str | None = None) -> str:
    path = name if topic is None else subscription_path(topic, name)
    return path if rule is None else f"{path}/Rules/{rule}"


def _checked(kind: Kind, settings: Mapping[str, Plain]) -> Mapping[str, Plain]:
    for name in settings:
        if name not in SETTINGS[kind]:
            raise ValueError(f"a {kind.lower()} has no setting '{name}'; it has {', '.join(SETTINGS[kind])}")
    return settings


def _missing(sentence: str) -> RequestRefused:
    return RequestRefused(http.client.NOT_FOUND, Condition.NOT_FOUND, sentence)
