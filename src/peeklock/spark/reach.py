"""One entity within reach: a connection that is made again when it broke, and patience with a service that fails.

Knows which failures pass. Leaves what is asked of the entity, and what a failure means for it, to the caller.
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
"""Conditions after which the same may succeed."""
PATIENCE: Final = Patience(retries=12)
"""Long enough for a broker that is started anew."""


CLAIMS: Final = "peeklock:claims"
"""The capability that an open offers."""


class SourceFailed(Exception):
    """The entity could not be read, though it was tried as often as is allowed; the text says what and why."""


class Asked:
    """A request on its way."""

    def __init__(self, management: Management, submitted: Any) -> None:
        self._management = management
        self._submitted = submitted

    @property
    def is_answered(self) -> bool:
        """Whether `answer` need not wait, or can only fail."""
        return self._management.is_answered(self._submitted)

    def answer(self) -> dict[str, Any]:
        """Wait for it; to be called once. A connection that broke meanwhile is an error, and not made again."""
        return self._management.answer(self._submitted)


class Reach:
    """Links to one entity, opened when they are first needed. A context manager; for one thread."""

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
        """In a row, by what was tried: one thing that succeeds says nothing of another that never does."""

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connection(self) -> Connection:
        connection = self._connection
        if connection is not None:
            with suppress(ClientError):  # whether it is still there shows only when somebody looks
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
        """Whether the service keeps claims, and reads messages in packed pages."""
        return CLAIMS in self.connection.capabilities

    def ask(self, operation: str, body: dict[str, Any]) -> Asked:
        """Ask `$management`, and go on."""
        management = self.management
        return Asked(management, management.submit(operation, body))

    def keep_alive(self) -> None:
        """Do what is due on the connection, if there is one."""
        if self._connection is not None:
            with suppress(ClientError):  # whoever needs it next finds out
                self._connection.work()

    def pause(self, seconds: float) -> None:
        self._sleep(seconds)

    def receiver(self, mode: ReceiveMode) -> Receiver:
        """A link that gets only what is asked for. LinkClosed (not allowed) when the entity has sessions."""
        connection = self.connection
        receiver = self._receivers.get(mode)
        if receiver is None or receiver.closed:
            receiver = self._receivers[mode] = connection.receiver(self.address, credit=0, mode=mode)
        return receiver

    def peek(self, first: int, count: int, session_id: str | None = None, *, bodies: bool = True) -> list[bytes]:
        """Encoded messages from a number on, in any state; fewer than asked for does not mean that was all."""
        return self.peeked(self.ask_to_peek(first, count, session_id, bodies=bodies))

    def ask_to_peek(self, first: int, count: int, session_id: str | None = None, *, bodies: bool = True) -> Asked:
        """Ask, and go on; `peeked` waits for the answer."""
        body: dict[str, Any] = {"from-sequence-number": first, "message-count": Int(count)}
        if session_id is not None:
            body["session-id"] = session_id
        if not bodies:
            body["omit-message-body"] = True  # where the service can do it
        return self.ask("peek-message", body)

    def peeked(self, asked: Asked) -> list[bytes]:
        return [each["message"] for each in asked.answer().get("messages", ())]

    def attempt(self, what: str, work: Callable[[], T]) -> T:
        """Do what may be done again until it succeeds; SourceFailed when it does not."""
        while True:
            try:
                done = work()
            except ClientError as error:
                self.failed(what, error)
            else:
                self.succeeded(what)
                return done

    def failed(self, what: str, error: ClientError) -> None:
        """Start afresh, after a while; SourceFailed when there is no point in that."""
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
            with suppress(ClientError, OSError):  # it is left either way
                connection.close()
