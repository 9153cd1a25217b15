"""The message properties that have names in JMS only, according to the AMQP JMS mapping.

Rules that were translated from selectors use them as system properties (`sys.JMSPriority`). Actions cannot change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol
from uuid import UUID

from peeklock.broker.rules.values import Value

DEFAULT_PRIORITY: Final = 4

_ID_PREFIX: Final = "ID:"
_ENCODINGS: Final = ("AMQP_BINARY:", "AMQP_UUID:", "AMQP_ULONG:", "AMQP_STRING:", "AMQP_NO_PREFIX:")

# Fields of the properties section (3.2.4).
_MESSAGE_ID, _USER_ID, _CORRELATION_ID, _ABSOLUTE_EXPIRY, _CREATION_TIME, _GROUP_SEQUENCE = 0, 1, 5, 8, 9, 11


class Fields(Protocol):
    """The parts of a message from which the JMS properties are computed."""

    @property
    def priority(self) -> int | None:
        """The priority that the sender set; None for the default."""
        ...

    @property
    def durable(self) -> bool:
        """Whether the sender set the message durable."""
        ...

    @property
    def delivery_count(self) -> int:
        """The number of earlier deliveries of the message."""
        ...

    def field(self, index: int) -> Any:
        """Return a decoded field of the properties section; None if the message does not have it."""
        ...


def _id(value: Any, without_prefix: str) -> Value:
    """Format an id as JMS does: with a prefix for its type, unless it is a text that has the JMS prefix."""
    if value is None:
        return None
    if isinstance(value, UUID):
        return f"{_ID_PREFIX}AMQP_UUID:{value}"
    if isinstance(value, bytes):
        return f"{_ID_PREFIX}AMQP_BINARY:{value.hex().upper()}"
    if not isinstance(value, str):
        return f"{_ID_PREFIX}AMQP_ULONG:{value}"
    text = str(value)
    if not text.startswith(_ID_PREFIX):
        return without_prefix + text
    if text.startswith(_ENCODINGS, len(_ID_PREFIX)):
        return f"{_ID_PREFIX}AMQP_STRING:{text}"
    return text


def _number(value: Any) -> int | None:
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _user_id(value: Any) -> Value:
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex().upper()


JMS_PROPERTIES: Final[dict[str, Callable[[Fields], Value]]] = {
    "JMSMessageID": lambda message: _id(message.field(_MESSAGE_ID), f"{_ID_PREFIX}AMQP_NO_PREFIX:"),
    "JMSCorrelationID": lambda message: _id(message.field(_CORRELATION_ID), ""),
    "JMSPriority": lambda message: DEFAULT_PRIORITY if message.priority is None else message.priority,
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.durable else "NON_PERSISTENT",  # stored either way
    "JMSTimestamp": lambda message: _number(message.field(_CREATION_TIME)),
    "JMSExpiration": lambda message: _number(message.field(_ABSOLUTE_EXPIRY)) or 0,
    "JMSXGroupSeq": lambda message: _number(message.field(_GROUP_SEQUENCE)),
    "JMSXDeliveryCount": lambda message: message.delivery_count + 1,
    "JMSXUserID": lambda message: _user_id(message.field(_USER_ID)),
}
