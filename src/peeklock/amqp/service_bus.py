"""Names that Service Bus gives to things within messages, and that the broker, the client and Spark share."""

from __future__ import annotations

from typing import Final

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"
