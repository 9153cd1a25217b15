"""Events of the audit log: denied access, administration, and changes of many messages at once.

Events have no bodies, keys or tokens. The code that decides or changes something reports it; the server writes the log.
"""

from __future__ import annotations

from typing import Final, Protocol

OK: Final = "ok"
DENIED: Final = "denied"
FAILED: Final = "failed"


class Audit(Protocol):
    def record(
        self,
        action: str,
        outcome: str,
        *,
        connection: str,
        client: str = "",
        entity: str = "",
        count: int | None = None,
        reason: str = "",
    ) -> None:
        """`connection` is its name in the log; `client` is the name of its key or, without a key, the client's id."""
        ...


class NoAudit:
    """Used when there is no audit log."""

    def record(
        self,
        action: str,
        outcome: str,
        *,
        connection: str,
        client: str = "",
        entity: str = "",
        count: int | None = None,
        reason: str = "",
    ) -> None:
        pass


NO_AUDIT: Final[Audit] = NoAudit()
