"""The delays before the broker tries something again."""

from __future__ import annotations

from typing import Final

RETRY_MS: Final = 1000
"""The delay after a failure: the store refused a change or could not be read, or an entity could not be deleted."""
CLAIM_RETRY_MS: Final = 10
"""The delay before a request for a claim is tried again if the entity is reading a page of messages."""
BUSY_RETRY_MS: Final = 100
"""The delay if a page of messages is being read, so that messages may not be removed from the queue."""
