"""Events of the audit log: denied access, administration, and changes of many messages at once.

Events have no bodies, keys or tokens. The code that makes a decision or a change records it; the server writes the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

OK: Final = "ok"
DENIED: Final = "denied"
FAILED: Final = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One line of the audit log, without its time."""

    action: str
    outcome: str
    """OK, DENIED or FAILED."""
    connection: str
    """The connection's name in the log."""
    client: str = ""
    """The name of the client's key or, without a key, the client's id."""
    entity: str = ""
    count: int | None = None
    """The number of messages changed."""
    reason: str = ""
    """Why the action was denied or failed."""


class Audit(Protocol):
    """The audit log."""

    def record(self, event: AuditEvent) -> None: ...


class NoAudit:
    """An audit log that records nothing."""

    def record(self, event: AuditEvent) -> None:
        pass


NO_AUDIT: Final[Audit] = NoAudit()
