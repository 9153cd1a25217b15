"""The delays before the broker tries something again."""

from __future__ import annotations

from typing import Final

RETRY_MS: Final = 1000
"""After a failure: the store refused or could not be read, an entity could not be deleted, an appointment failed."""
BUSY_RETRY_MS: Final = 100
"""If a page of messages is being read, so that messages may not be removed from the queue."""
