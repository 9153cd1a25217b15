"""One session, the receiver that holds it, and a receiver that waits for a session."""

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
        """Which messages of the session it takes; None for all."""
        ...

    def session_lost(self, failure: BrokerError) -> None:
        """The session's lock was lost."""
        ...


class Session:
    """A session with messages, or with a holder."""

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
        """Active messages, locked ones too."""
        self.holder: SessionHolder | None = None
        self.expires_at = 0
        """By the monotonic clock, which counts."""
        self.locked_until = 0
        """The same in Unix time, as the client was told."""
        self.timer: Appointment | None = None
        self.backlog: Backlog | None = None
        """While it is held."""
        self.selecting: SelectingSession | None = None
        """While its holder has a selector."""
        self.locks: dict[int, Lock] = {}
        self.awake = False

    @property
    def is_free(self) -> bool:
        """Whether no receiver holds it, and no settlement of its last holder is on its way to the store."""
        return self.holder is None and not self.locks

    def on_unlocked(self, lock: Lock) -> None:
        """A lock of one of its messages ended."""
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
