"""What an audit log is told: access that was denied, administration, and changes of many messages at once.

Never bodies, keys or tokens. Whoever decides or changes something says so; where it is written is for the server.
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
        """`connection` is its name in the log; `client` is the name of a key or, if none was shown, the client's id."""
        ...


class NoAudit:
    """Where there is no audit log."""

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
