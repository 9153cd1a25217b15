"""A connection to one entity that is opened again when it breaks, with retries when the service fails.

This module knows which errors are transient. The caller decides what to request, and what a failure means.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from peeklock.amqp.errors import Condition
from peeklock.amqp.types import Int
from peeklock.client import ClientError, Connection, ConnectionLost, Management, ReceiveMode, Receiver, Timeout
from peeklock.spark.options import Options, redact
from peeklock.spark.sending import TRANSIENT, Patience

log = logging.getLogger(__name__)
T = TypeVar("T")

PASSING: Final = TRANSIENT | {
    Condition.MESSAGE_LOCK_LOST,
    Condition.SESSION_LOCK_LOST,
    Condition.SESSION_CANNOT_BE_LOCKED,
}
"""Error conditions after which the same request may succeed."""
PATIENCE: Final = Patience(retries=12)
"""Long enough for a broker to restart."""


CLAIMS: Final = "peeklock:claims"
"""The capability in the broker's open."""


class SourceFailed(Exception):
    """The entity could not be read within the allowed retries; the text has the operation and the reason."""


class Asked:
    """A request whose answer was not received yet."""

    def __init__(self, management: Management, submitted: Any) -> None:
        self._management = management
        self._submitted = submitted

    @property
    def is_answered(self) -> bool:
        """Whether `answer` returns or fails without waiting."""
        return self._management.is_answered(self._submitted)

    def answer(self) -> dict[str, Any]:
        """Wait for the answer; call it once. If the connection broke, this fails and does not reconnect."""
        return self._management.answer(self._submitted)


class Reach:
    """Links to one entity, attached when they are first used. A context manager, for use by one thread."""

    def __init__(
        self, options: Options, *, patience: Patience = PATIENCE, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.address = options.address
        self._options = options
        self._patience = patience
        self._sleep = sleep
        self._connection: Connection | None = None
        self._management: Management | None = None
        self._receivers: dict[ReceiveMode, Receiver] = {}
        self._failures: Counter[str] = Counter()
        """Consecutive failures by operation: success of one operation does not prove that another works."""

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connection(self) -> Connection:
        connection = self._connection
        if connection is not None:
            with suppress(ClientError):  # only using the connection shows whether it is still open
                connection.work()
            if connection.is_open:
                return connection
            self.close()
        self._connection = connection = self._options.connect()
        return connection

    @property
    def management(self) -> Management:
        connection = self.connection
        if self._management is None:
            self._management = connection.management(self.address)
        return self._management

    @property
    def offers_claims(self) -> bool:
        """Whether the service offers claims and packed pages."""
        return CLAIMS in self.connection.capabilities

    def ask(self, operation: str, body: dict[str, Any]) -> Asked:
        """Send a request to `$management` without waiting for the answer."""
        management = self.management
        return Asked(management, management.submit(operation, body))

    def keep_alive(self) -> None:
        """Send heartbeats and read what has arrived, if there is a connection."""
        if self._connection is not None:
            with suppress(ClientError):  # the next user of the connection gets the error
                self._connection.work()

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def receiver(self, mode: ReceiveMode) -> Receiver:
        """Return a link that receives only on request. LinkClosed (not allowed) when the entity has sessions."""
        connection = self.connection
        receiver = self._receivers.get(mode)
        if receiver is None or receiver.closed:
            receiver = self._receivers[mode] = connection.receiver(self.address, credit=0, mode=mode)
        return receiver

    def peek(self, first: int, count: int, session_id: str | None = None, *, bodies: bool = True) -> list[bytes]:
        """Peek encoded messages from a number on, in any state. A short answer does not mean that there are no more."""
        return self.peeked(self.ask_to_peek(first, count, session_id, bodies=bodies))

    def ask_to_peek(self, first: int, count: int, session_id: str | None = None, *, bodies: bool = True) -> Asked:
        """Request them without waiting; `peeked` waits for the answer."""
        body: dict[str, Any] = {"from-sequence-number": first, "message-count": Int(count)}
        if session_id is not None:
            body["session-id"] = session_id
        if not bodies:
            body["omit-message-body"] = True  # a service without this option ignores it
        return self.ask("peek-message", body)

    def peeked(self, asked: Asked) -> list[bytes]:
        return [each["message"] for each in asked.answer().get("messages", ())]

    def attempt(self, what: str, work: Callable[[], T]) -> T:
        """Repeat an idempotent operation until it succeeds; SourceFailed when the retries are used up."""
        while True:
            try:
                done = work()
            except ClientError as error:
                self.failed(what, error)
            else:
                self.succeeded(what)
                return done

    def failed(self, what: str, error: ClientError) -> None:
        """Close the connection and wait before the next attempt; SourceFailed when no retry can help."""
        self.close()
        self._failures[what] += 1
        failures = self._failures[what]
        text = redact(str(error), self._options.connection_string)
        passes = isinstance(error, ConnectionLost | Timeout) or error.condition in PASSING
        if not passes:
            raise SourceFailed(f"{what} '{self.address}' failed: {text}") from None
        if failures > self._patience.retries:
            raise SourceFailed(f"{what} '{self.address}' failed {failures} times in a row: {text}") from None
        delay = self._patience.delay(failures)
        log.warning("%s '%s' failed, again in %.1f seconds: %s", what, self.address, delay, text)
        self._sleep(delay)

    def succeeded(self, what: str) -> None:
        del self._failures[what]

    def close(self) -> None:
        connection, self._connection, self._management = self._connection, None, None
        self._receivers.clear()
        if connection is not None:
            with suppress(ClientError, OSError):  # the connection is dropped either way
                connection.close()
