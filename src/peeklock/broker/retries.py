"""How long the broker waits before it tries something again."""

from __future__ import annotations

from typing import Final

RETRY_MS: Final = 1000
"""After a failure: the store refused or could not be read, an entity could not be deleted, an appointment failed."""
BUSY_RETRY_MS: Final = 100
"""While a page of messages is being read, and nothing may be removed from the queue."""
