"""A session of a queue, the receiver that holds it, and a receiver that waits for a session."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from peeklock.broker.agenda import Appointment
from peeklock.broker.backlog import Backlog
from peeklock.broker.consumer import Consumer
from peeklock.broker.errors import BrokerError
from peeklock.broker.locks import Lock
from peeklock.broker.selecting import Selects

if TYPE_CHECKING:
    from peeklock.broker.session_selecting import SelectingSession


class SessionHolder(Consumer, Protocol):
    """A receiver that holds a session."""

    @property
    def selector(self) -> Selects | None:
        """The selector of the messages that the receiver takes; None: it takes all."""
        ...

    def on_session_lost(self, failure: BrokerError) -> None:
        """The receiver lost the session, because its lock expired."""
        ...


class Session:
    """A session that has messages or a holder."""

    __slots__ = (
        "_on_free",
        "active",
        "awake",
        "backlog",
        "expires_at",
        "holder",
        "id",
        "locked_until",
        "locks",
        "selecting",
        "timer",
    )

    def __init__(self, id: str, on_free: Callable[[Session], None]) -> None:
        self.id = id
        self._on_free = on_free
        self.active = 0
        """The number of active messages, including locked ones."""
        self.holder: SessionHolder | None = None
        self.expires_at = 0
        """The expiry of the session's lock by the monotonic clock."""
        self.locked_until = 0
        """The expiry of the lock in Unix time. It is only for the client: the broker decides by `expires_at`."""
        self.timer: Appointment | None = None
        """The appointment for the expiry of the lock."""
        self.backlog: Backlog | None = None
        """The active messages; None unless a receiver holds the session."""
        self.selecting: SelectingSession | None = None
        """Set while the holder has a selector."""
        self.locks: dict[int, Lock] = {}
        """The locks of its messages, by sequence number."""
        self.awake = False
        """Whether a delivery at the end of this turn is scheduled."""

    @property
    def is_free(self) -> bool:
        """Whether no receiver holds the session, and no settlement of its last holder is being committed."""
        return self.holder is None and not self.locks

    def on_unlocked(self, lock: Lock) -> None:
        """The lock of a message of the session ended."""
        self.locks.pop(lock.message.sequence_number, None)
        if self.is_free:
            self._on_free(self)


class Waiter:
    """A receiver that waits for a session."""

    __slots__ = ("deadline", "holder", "outcome")

    def __init__(self, holder: SessionHolder, outcome: Callable[[Session | BrokerError], None]) -> None:
        self.holder = holder
        self.outcome: Callable[[Session | BrokerError], None] | None = outcome
        self.deadline: Appointment | None = None
