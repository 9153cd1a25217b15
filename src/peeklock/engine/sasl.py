"""The SASL exchange before a connection (5.3), as client or server.

This module knows the order of frames. The owner of the connection checks the credentials.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from peeklock.amqp.errors import Condition
from peeklock.amqp.sasl import SaslInit, SaslMechanisms, SaslOutcome
from peeklock.engine.errors import CloseConnection

OK, AUTH_FAILED = 0, 1

Authenticate = Callable[[str, bytes], Any]
"""Takes the mechanism and the initial response. Returns the identity of the client, or None to refuse it."""


class SaslRole(Protocol):
    """One side of the exchange. It returns the frames to send at the start, and in answer to each frame."""

    done: bool

    def start(self) -> list[Any]: ...
    def on_frame(self, frame: Any) -> list[Any]: ...


class SaslServer:
    """The server's side: offers mechanisms, and calls `authenticate` with the client's choice."""

    def __init__(self, mechanisms: Sequence[str], authenticate: Authenticate) -> None:
        self.done = False
        self.failed = False
        self.identity: Any = None
        self._mechanisms = list(mechanisms)
        self._authenticate = authenticate

    def start(self) -> list[Any]:
        return [SaslMechanisms(sasl_server_mechanisms=self._mechanisms)]

    def on_frame(self, frame: Any) -> list[Any]:
        if not isinstance(frame, SaslInit):
            raise CloseConnection(
                Condition.ILLEGAL_STATE, f"the frame {type(frame).__name__} arrived instead of sasl-init"
            )
        if frame.mechanism in self._mechanisms:
            self.identity = self._authenticate(frame.mechanism, frame.initial_response or b"")
        if self.identity is None:
            self.failed = True
            return [SaslOutcome(code=AUTH_FAILED)]
        self.done = True
        return [SaslOutcome(code=OK)]


@dataclass
class SaslClient:
    """The client's side: selects one mechanism and sends one response."""

    mechanism: str = "ANONYMOUS"
    response: bytes = b""
    hostname: str | None = None
    done: bool = False

    def start(self) -> list[Any]:
        return []

    def on_frame(self, frame: Any) -> list[Any]:
        if isinstance(frame, SaslMechanisms):
            offered = frame.sasl_server_mechanisms
            if self.mechanism not in offered:
                raise CloseConnection(
                    Condition.NOT_IMPLEMENTED,
                    f"the server does not offer SASL {self.mechanism}, only {', '.join(offered)}",
                )
            return [SaslInit(mechanism=self.mechanism, initial_response=self.response, hostname=self.hostname)]
        if isinstance(frame, SaslOutcome):
            if frame.code != OK:
                raise CloseConnection(
                    Condition.UNAUTHORIZED_ACCESS,
                    f"the server refused the credentials (SASL {self.mechanism}, outcome {frame.code})",
                )
            self.done = True
            return []
        raise CloseConnection(Condition.NOT_IMPLEMENTED, f"SASL {type(frame).__name__} is not supported")


def plain(name: str, password: str) -> SaslClient:
    """Return the client's side of SASL PLAIN (RFC 4616)."""
    return SaslClient("PLAIN", b"\x00" + name.encode() + b"\x00" + password.encode())
