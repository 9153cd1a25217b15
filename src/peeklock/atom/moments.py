"""Formatting of times for ATOM documents: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

UNSET: Final = "0001-01-01T00:00:00Z"
"""The time that .NET, and so every client, uses for "not set"."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def format_moment(ms: int | None) -> str:
    """Format Unix milliseconds; `UNSET` for None and 0."""
    if not ms:
        return UNSET
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")
