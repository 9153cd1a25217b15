"""Names that Service Bus uses in messages, for the broker, the client and Spark."""

from __future__ import annotations

from typing import Final

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

START_OF_TIME: Final = -62_135_596_800_000
"""The first millisecond of the year 1, which is the earliest time that clients can represent."""
END_OF_TIME: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, which is the latest time that clients can represent."""

# Annotations of messages.
SCHEDULED_ENQUEUE_TIME: Final = "x-opt-scheduled-enqueue-time"
DELIVERY_TIME: Final = "x-opt-delivery-time"
"""The JMS name for the scheduled enqueue time. If a message has both annotations, this one is ignored."""
PARTITION_KEY: Final = "x-opt-partition-key"
VIA_PARTITION_KEY: Final = "x-opt-via-partition-key"
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
ENQUEUED_SEQUENCE_NUMBER: Final = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL: Final = "x-opt-locked-until"
DEAD_LETTER_SOURCE: Final = "x-opt-deadletter-source"
MESSAGE_STATE: Final = "x-opt-message-state"
LOCK_TOKEN: Final = "x-opt-lock-token"
