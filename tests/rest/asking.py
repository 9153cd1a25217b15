"""Asking a broker for messages over HTTP without an SDK."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit
from xml.etree.ElementTree import fromstring

from peeklock.client.tokens import sas_token
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME
from raw_client import HOST, PATIENCE


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def broker_properties(self) -> dict[str, Any]:
        found = json.loads(self.headers["BrokerProperties"])
        assert isinstance(found, dict)
        return found

    @property
    def location(self) -> str:
        """The path of the locked message."""
        return urlsplit(self.headers["Location"]).path

    @property
    def detail(self) -> str:
        """Of an error."""
        document = fromstring(self.body)
        assert (document.tag, document.findtext("Code")) == ("Error", str(self.status))
        return document.findtext("Detail") or ""


class RestClient:
    """A client that has a key."""

    def __init__(self, port: int, key_name: str = DEFAULT_KEY_NAME, key: str = DEFAULT_KEY) -> None:
        self.port = port
        self._key_name, self._key = key_name, key

    def token(self, path: str = "", expires_in: float = 3600) -> str:
        return sas_token(f"https://{HOST}:{self.port}/{path}", self._key_name, self._key, time.time() + expires_in)

    def ask(self, method: str, path: str, body: str | bytes = b"", **headers: str) -> Answer:
        """Headers by their names, with `_` for `-`."""
        connection = self.connect()
        try:
            self.begin(connection, method, path, body, **headers)
            return self.end(connection)
        finally:
            connection.close()

    def connect(self) -> HTTPConnection:
        return HTTPConnection(HOST, self.port, timeout=PATIENCE)

    def begin(
        self, connection: HTTPConnection, method: str, path: str, body: str | bytes = b"", **headers: str
    ) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body.encode() if isinstance(body, str) else body
        connection.request(method, path, data or None, {"Authorization": self.token(), **named})

    def end(self, connection: HTTPConnection) -> Answer:
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def send(
        self, body: str | bytes, path: str = "queue", properties: dict[str, Any] | None = None, **headers: str
    ) -> None:
        if properties is not None:
            headers["BrokerProperties"] = json.dumps(properties)
        answer = self.ask("POST", f"/{path}/messages", body, **headers)
        assert answer.status == 201, answer.body

    def send_batch(self, items: Any, path: str = "queue") -> Answer:
        body = items if isinstance(items, str) else json.dumps(items)
        return self.ask("POST", f"/{path}/messages", body, Content_Type="application/vnd.microsoft.servicebus.json")

    def lock(self, path: str = "queue", timeout: int = 0) -> Answer:
        return self.ask("POST", f"/{path}/messages/head?timeout={timeout}")

    def take(self, path: str = "queue", timeout: int = 0) -> Answer:
        """Receive and delete."""
        return self.ask("DELETE", f"/{path}/messages/head?timeout={timeout}")

    def take_all(self, path: str = "queue") -> list[bytes]:
        bodies = []
        while (answer := self.take(path)).status == 200:
            bodies.append(answer.body)
        assert answer.status == 204, answer.body
        return bodies
