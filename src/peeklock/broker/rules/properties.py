"""The interface through which expressions read and change a message, and the names of system properties.

`view` implements the interface for encoded messages.
"""

from __future__ import annotations

from typing import Protocol

from peeklock.broker.rules.jms import JMS_PROPERTIES
from peeklock.broker.rules.values import Missing, Value
from peeklock.entities.names import fold


class Properties(Protocol):
    """The properties that a filter reads. Values have exactly the types of `Value`, not subclasses."""

    def system(self, name: str) -> Value:
        """Return a system property, whose name is spelt as in `SYSTEM_PROPERTIES`; None if the message lacks it."""
        ...

    def user(self, name: str) -> Value | Missing:
        """Return the application property with a case-insensitive name; MISSING if there is none."""
        ...


class ChangeableProperties(Properties, Protocol):
    """The properties that an action changes. Raises EvaluationError for a value that a property cannot have."""

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
"""The system properties, and whether an action can change them. (Actions cannot change the properties of JMS.)"""

_ALIASES = {
    "Subject": "Label",
    "ScheduledEnqueueTime": "ScheduledEnqueueTimeUtc",
    "TransactionPartitionKey": "ViaPartitionKey",
    "EnqueuedTime": "EnqueuedTimeUtc",
    "ExpiresAt": "ExpiresAtUtc",
    "LockedUntil": "LockedUntilUtc",
}
"""Names that newer SDKs use, with the names of this module."""

_CANONICAL = {fold(name): name for name in (*SYSTEM_PROPERTIES, *JMS_PROPERTIES)}
_CANONICAL |= {fold(old): new for old, new in _ALIASES.items()}


def system_name(name: str) -> str | None:
    """Return the spelling in `SYSTEM_PROPERTIES` of a case-insensitive name; None if there is no such property."""
    return _CANONICAL.get(fold(name))
