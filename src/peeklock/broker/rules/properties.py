"""What expressions see of a message, and the names that they may use for it.

How a message is taken apart and put together again is for whoever implements these interfaces.
"""

from __future__ import annotations

from typing import Protocol

from peeklock.broker.rules.jms import JMS_PROPERTIES
from peeklock.broker.rules.values import Missing, Value
from peeklock.entities.names import fold


class Properties(Protocol):
    """What a filter reads. The types of values are exactly those of `Value`, no subclasses."""

    def system(self, name: str) -> Value:
        """The system property of this name, spelt as in `SYSTEM_PROPERTIES`; None when the message has none."""
        ...

    def user(self, name: str) -> Value | Missing:
        """The application property of this name, whatever its case; MISSING when there is none."""
        ...


class ChangeableProperties(Properties, Protocol):
    """What an action works on. Names as above; EvaluationError for a value that the property cannot have."""

    def set_system(self, name: str, value: Value) -> None: ...

    def set_user(self, name: str, value: Value) -> None: ...

    def remove_system(self, name: str) -> None: ...

    def remove_user(self, name: str) -> None: ...


SYSTEM_PROPERTIES: dict[str, bool] = {
    "MessageId": True,
    "CorrelationId": True,
    "Label": True,
    "To": True,
    "ReplyTo": True,
    "SessionId": True,
    "ReplyToSessionId": True,
    "ContentType": True,
    "PartitionKey": True,
    "ViaPartitionKey": True,
    "TimeToLive": True,
    "ScheduledEnqueueTimeUtc": True,
    "EnqueuedTimeUtc": False,
    "ExpiresAtUtc": False,
    "LockedUntilUtc": False,
    "SequenceNumber": False,
    "EnqueuedSequenceNumber": False,
    "DeliveryCount": False,
    "Size": False,
    "DeadLetterSource": False,
    "ForcePersistence": False,
    "State": False,
}
"""The system properties, and whether an action can change them. Those of JMS come beside them: none of them can."""

_ALIASES = {
    "Subject": "Label",
    "ScheduledEnqueueTime": "ScheduledEnqueueTimeUtc",
    "TransactionPartitionKey": "ViaPartitionKey",
    "EnqueuedTime": "EnqueuedTimeUtc",
    "ExpiresAt": "ExpiresAtUtc",
    "LockedUntil": "LockedUntilUtc",
}
"""The newer SDKs renamed some."""

_CANONICAL = {fold(name): name for name in (*SYSTEM_PROPERTIES, *JMS_PROPERTIES)}
_CANONICAL |= {fold(old): new for old, new in _ALIASES.items()}


def system_name(name: str) -> str | None:
    """The spelling of `SYSTEM_PROPERTIES` or JMS for a name in any case; None if it is no system property."""
    return _CANONICAL.get(fold(name))
