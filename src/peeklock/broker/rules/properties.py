"""The interface of expressions to a message, and the names of system properties.

`view` implements it for encoded messages.
"""

from __future__ import annotations

from typing import Protocol

from peeklock.broker.rules.jms import JMS_PROPERTIES
from peeklock.broker.rules.values import Missing, Value
from peeklock.entities.names import fold


class Properties(Protocol):
    """The properties that a filter reads. Values have exactly the types of `Value`, not subclasses."""

    def system(self, name: str) -> Value:
        """The system property with a name spelt as in `SYSTEM_PROPERTIES`; None when the message does not have it."""
        ...

    def user(self, name: str) -> Value | Missing:
        """The application property with a case-insensitive name; MISSING when there is none."""
        ...


class ChangeableProperties(Properties, Protocol):
    """The properties that an action changes. EvaluationError for a value that a property cannot have."""

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
"""The system properties, and whether an action can change them. (It cannot change those of JMS.)"""

_ALIASES = {
    "Subject": "Label",
    "ScheduledEnqueueTime": "ScheduledEnqueueTimeUtc",
    "TransactionPartitionKey": "ViaPartitionKey",
    "EnqueuedTime": "EnqueuedTimeUtc",
    "ExpiresAt": "ExpiresAtUtc",
    "LockedUntil": "LockedUntilUtc",
}
"""Names of the newer SDKs."""

_CANONICAL = {fold(name): name for name in (*SYSTEM_PROPERTIES, *JMS_PROPERTIES)}
_CANONICAL |= {fold(old): new for old, new in _ALIASES.items()}


def system_name(name: str) -> str | None:
    """The canonical spelling of a case-insensitive system property; None if there is none of that name."""
    return _CANONICAL.get(fold(name))
