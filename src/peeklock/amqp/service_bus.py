"""Names of Service Bus in messages, used by the broker, the client and Spark."""

from __future__ import annotations

from typing import Final

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"
