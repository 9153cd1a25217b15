"""Asking a broker over ATOM without an SDK."""

from __future__ import annotations

import time
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

from peeklock.atom.markup import ATOM, INSTANCE, SERVICE_BUS
from peeklock.client.tokens import sas_token
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from raw_client import HOST, PATIENCE

A, S = f"{{{ATOM}}}", f"{{{SERVICE_BUS}}}"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def xml(self) -> Element:
        return fromstring(self.text)

    @property
    def titles(self) -> list[str | None]:
        """Of the entries of a feed."""
        return [entry.findtext(f"{A}title") for entry in self.xml.findall(f"{A}entry")]

    @property
    def links(self) -> list[tuple[str | None, str | None]]:
        return [(link.get("rel"), link.get("href")) for link in self.xml.findall(f"{A}link")]

    @property
    def description(self) -> Element:
        return next(iter(self.xml.find(f"{A}content") or ()))

    def said(self, name: str) -> str | None:
        """What the description says."""
        return self.description.findtext(f"{S}{name}")

    @property
    def etag(self) -> str:
        return self.headers["etag"]

    @property
    def detail(self) -> str:
        """Of an error."""
        assert self.xml.tag == "Error"
        assert self.xml.findtext("Code") == str(self.status)
        return self.xml.findtext("Detail") or ""


class AtomClient:
    """Who has a key asks for paths."""

    def __init__(self, port: int, key_name: str = DEFAULT_KEY_NAME, key: str = DEFAULT_KEY) -> None:
        self.port = port
        self._key_name, self._key = key_name, key

    def token(self, path: str = "", expires_in: float = 3600) -> str:
        return sas_token(f"https://{HOST}:{self.port}/{path}", self._key_name, self._key, time.time() + expires_in)

    def ask(self, method: str, path: str, body: str | bytes = "", **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = HTTPConnection(HOST, self.port, timeout=PATIENCE)
        try:
            data = body.encode() if isinstance(body, str) else body
            connection.request(method, path, data or None, {"Authorization": self.token(), **named})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read().decode())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, **headers)

    def put(self, path: str, body: str | bytes, **headers: str) -> Answer:
        return self.ask("PUT", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        return self.ask("DELETE", path, **headers)


def sent(name: str) -> bytes:
    """A request as an SDK sends it."""
    return (Path(__file__).parent / "sent" / f"{name}.xml").read_bytes()


def entry(description: str, inner: str = "") -> str:
    """A request with that description."""
    return (
        f'<entry xmlns="{ATOM}"><content type="application/xml">'
        f'<{description} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{inner}</{description}></content></entry>'
    )


def queue(inner: str = "") -> str:
    return entry("QueueDescription", inner)


def topic(inner: str = "") -> str:
    return entry("TopicDescription", inner)


def subscription(inner: str = "") -> str:
    return entry("SubscriptionDescription", inner)


def rule(inner: str = "") -> str:
    return entry("RuleDescription", inner)
