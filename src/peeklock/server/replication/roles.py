"""The role of a node, and when it changes: a state machine without I/O.

`node` reports what it sees of the lease, with the time, and carries out the actions that it gets in return. Two clocks
are involved. The times of `lease_seen` come from the monotonic clock. All other times come from a clock that also runs
while the machine sleeps: a node that was asleep must not believe that its lease is still fresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

POLL_SECONDS: Final = 0.25
"""Seconds between a standby's reads of the lease, and between attempts to renew it after a failure."""
SESSIONS_GONE_SECONDS: Final = 1.5
"""A standby takes over when the sessions of the active node have been gone for so long."""
COUNTED_SECONDS: Final = 2 * POLL_SECONDS
"""The most that counts of the time between two reads. More means that the database did not answer meanwhile."""
EXIT_DONE: Final = 0
EXIT_FENCED: Final = 75
"""EX_TEMPFAIL of sysexits.h: the node must be started again, and is then a standby."""


class LeaseSeen(Protocol):
    """What a standby sees of the lease; `store.postgres.lease.Lease` has it."""

    @property
    def epoch(self) -> int: ...
    @property
    def beat(self) -> int: ...
    @property
    def owner(self) -> str | None: ...
    @property
    def has_sessions(self) -> bool: ...


class Role(Enum):
    """What a node does."""

    STANDBY = auto()
    """Relays connections to the active node, and reads the lease."""
    TAKING_OVER = auto()
    """Has asked for the lease and waits for the answer."""
    ACTIVE = auto()
    """Has the lease, runs the broker and renews the lease."""
    SUSPENDED = auto()
    """Could not renew the lease for its whole duration: delivers nothing, but keeps the broker's memory."""
    STOPPING = auto()
    """Stops the broker in good order, and renews the lease until that is done."""
    EXITED = auto()
    """The process must end."""


class Input(Enum):
    """What happens to a node."""

    LEASE_HELD = auto()
    """The lease was read, and another node holds it."""
    LEASE_FREE = auto()
    """The lease was read, and this node may take over."""
    POLL_FAILED = auto()
    TAKEN = auto()
    NOT_TAKEN = auto()
    """The take-over failed, or its outcome is unknown."""
    RENEWED = auto()
    RENEWAL_FAILED = auto()
    """It is unknown whether the node still has the lease."""
    LEASE_LOST = auto()
    """Another node has the lease."""
    OVERDUE = auto()
    """The duration of the lease is over since the last successful renewal began."""
    STORE_FAILED = auto()
    """The store is fenced, or PostgreSQL lost commits."""
    STOP = auto()
    """An operator stops the node."""
    STOPPED = auto()
    """The broker has stopped in good order."""


class Action(Enum):
    """What a node does next."""

    POLL = auto()
    """Read the lease after POLL_SECONDS."""
    TAKE = auto()
    """Take over the lease as it was seen last."""
    START = auto()
    """Start the broker."""
    RENEW = auto()
    """Renew the lease after a third of its duration."""
    RENEW_SOON = auto()
    """Renew the lease after POLL_SECONDS."""
    SUSPEND = auto()
    """Stop accepting and delivering, and close the clients' connections."""
    RESUME = auto()
    STOP = auto()
    """Stop the broker in good order."""
    EXIT = auto()
    """Give up the lease if the node has it, and end the process."""
    EXIT_FENCED = auto()
    """End the process at once, with status 75."""


_R, _I, _A = Role, Input, Action
_FENCED = (Role.EXITED, (Action.EXIT_FENCED,))

TRANSITIONS: Final[dict[tuple[Role, Input], tuple[Role, tuple[Action, ...]]]] = {
    (_R.STANDBY, _I.LEASE_HELD): (_R.STANDBY, (_A.POLL,)),
    (_R.STANDBY, _I.LEASE_FREE): (_R.TAKING_OVER, (_A.TAKE,)),
    (_R.STANDBY, _I.POLL_FAILED): (_R.STANDBY, (_A.POLL,)),
    (_R.STANDBY, _I.STOP): (_R.EXITED, (_A.EXIT,)),
    (_R.TAKING_OVER, _I.TAKEN): (_R.ACTIVE, (_A.RENEW_SOON, _A.START)),
    (_R.TAKING_OVER, _I.NOT_TAKEN): (_R.STANDBY, (_A.POLL,)),
    (_R.TAKING_OVER, _I.STOP): (_R.EXITED, (_A.EXIT,)),
    (_R.ACTIVE, _I.RENEWED): (_R.ACTIVE, (_A.RENEW,)),
    (_R.ACTIVE, _I.RENEWAL_FAILED): (_R.ACTIVE, (_A.RENEW_SOON,)),
    (_R.ACTIVE, _I.OVERDUE): (_R.SUSPENDED, (_A.SUSPEND,)),
    (_R.ACTIVE, _I.LEASE_LOST): _FENCED,
    (_R.ACTIVE, _I.STORE_FAILED): _FENCED,
    (_R.ACTIVE, _I.STOP): (_R.STOPPING, (_A.STOP,)),
    (_R.SUSPENDED, _I.RENEWED): (_R.ACTIVE, (_A.RENEW, _A.RESUME)),
    (_R.SUSPENDED, _I.RENEWAL_FAILED): (_R.SUSPENDED, (_A.RENEW_SOON,)),
    (_R.SUSPENDED, _I.OVERDUE): (_R.SUSPENDED, ()),
    (_R.SUSPENDED, _I.LEASE_LOST): _FENCED,
    (_R.SUSPENDED, _I.STORE_FAILED): _FENCED,
    (_R.SUSPENDED, _I.STOP): (_R.STOPPING, (_A.STOP,)),
    (_R.STOPPING, _I.RENEWED): (_R.STOPPING, (_A.RENEW,)),
    (_R.STOPPING, _I.RENEWAL_FAILED): (_R.STOPPING, (_A.RENEW_SOON,)),
    (_R.STOPPING, _I.OVERDUE): (_R.STOPPING, ()),  # the broker accepts nothing any more, and closes its connections
    (_R.STOPPING, _I.LEASE_LOST): _FENCED,
    (_R.STOPPING, _I.STORE_FAILED): _FENCED,
    (_R.STOPPING, _I.STOP): (_R.STOPPING, ()),
    (_R.STOPPING, _I.STOPPED): (_R.EXITED, (_A.EXIT,)),
    # What was under way when the node exited may still end.
    **{(_R.EXITED, each): (_R.EXITED, ()) for each in Input},
}
"""The next role and the actions. A pair that is absent is a mistake of the caller."""


class UnexpectedInput(Exception):
    """The input does not occur in this role."""


@dataclass(slots=True)
class Roles:
    """The role of one node. Every method returns the actions that follow, in order."""

    owner: str
    """The id of this node in the lease; no other process uses it."""
    lease_seconds: float
    role: Role = Role.STANDBY
    seen: LeaseSeen | None = None
    """The lease as it was read last."""
    _read_at: float | None = None
    """When the lease was read last; None after a failure."""
    _unchanged: float = 0.0
    """Seconds for which reads have shown the same epoch and beat."""
    _without_sessions: float = 0.0
    """Seconds for which reads have shown no session of the active node."""
    _renewed_at: float = 0.0
    """When the last successful renewal began."""

    @property
    def renewal_seconds(self) -> float:
        return self.lease_seconds / 3

    def lease_seen(self, lease: LeaseSeen, at: float) -> tuple[Action, ...]:
        """The lease was read. `at` is the time of the answer, on the monotonic clock."""
        previous, self.seen = self.seen, lease
        passed = 0.0 if self._read_at is None else min(max(0.0, at - self._read_at), COUNTED_SECONDS)
        self._read_at = at
        is_unchanged = previous is not None and (previous.epoch, previous.beat) == (lease.epoch, lease.beat)
        self._unchanged = self._unchanged + passed if is_unchanged else 0.0
        had_sessions = previous is None or previous.has_sessions or previous.epoch != lease.epoch
        self._without_sessions = 0.0 if lease.has_sessions or had_sessions else self._without_sessions + passed
        return self.handle(Input.LEASE_FREE if self._is_free(lease) else Input.LEASE_HELD)

    def poll_failed(self) -> tuple[Action, ...]:
        """The lease could not be read. The time until the next successful read does not count.

        The sessions of the active node are lost with the server too, so it gets the whole time to connect again.
        """
        self._read_at = None
        self._without_sessions = 0.0
        return self.handle(Input.POLL_FAILED)

    def taken(self, began_at: float) -> tuple[Action, ...]:
        """This node has taken over; the attempt began at this time."""
        self._renewed_at = began_at
        return self.handle(Input.TAKEN)

    def not_taken(self) -> tuple[Action, ...]:
        self._read_at = None
        return self.handle(Input.NOT_TAKEN)

    def renewed(self, began_at: float) -> tuple[Action, ...]:
        """The lease was renewed; the renewal began at this time."""
        self._renewed_at = began_at
        return self.handle(Input.RENEWED)

    def tick(self, now: float) -> tuple[Action, ...]:
        """Time has passed."""
        holds_lease = self.role in (Role.ACTIVE, Role.SUSPENDED, Role.STOPPING)
        if holds_lease and now - self._renewed_at >= self.lease_seconds:
            return self.handle(Input.OVERDUE)
        return ()

    def handle(self, what: Input) -> tuple[Action, ...]:
        """Change the role as the table says. Raise UnexpectedInput for an input that does not occur in this role."""
        try:
            self.role, actions = TRANSITIONS[self.role, what]
        except KeyError:
            raise UnexpectedInput(f"{what.name} in the role {self.role.name}") from None
        return actions

    def _is_free(self, lease: LeaseSeen) -> bool:
        """Return whether this node may take over."""
        return (
            # Its own id: an earlier take-over whose outcome was unknown. Taking over again makes it certain.
            lease.owner in (None, self.owner)
            or self._without_sessions >= SESSIONS_GONE_SECONDS
            or self._unchanged >= self.lease_seconds
        )
