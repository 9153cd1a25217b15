"""The conditions of AMQP errors, and the exceptions that have a condition.

The conditions are those of the specification (2.8.15 to 2.8.18, 4.5.8) and of Service Bus. The code that catches an
exception decides what it ends: a delivery, a link, a session or a connection.
"""

from __future__ import annotations

from enum import StrEnum


class Condition(StrEnum):
    """The error conditions that the broker sends, and those that it knows."""

    # 2.8.15: AMQP errors
    INTERNAL_ERROR = "amqp:internal-error"
    NOT_FOUND = "amqp:not-found"
    UNAUTHORIZED_ACCESS = "amqp:unauthorized-access"
    DECODE_ERROR = "amqp:decode-error"
    RESOURCE_LIMIT_EXCEEDED = "amqp:resource-limit-exceeded"
    NOT_ALLOWED = "amqp:not-allowed"
    INVALID_FIELD = "amqp:invalid-field"
    NOT_IMPLEMENTED = "amqp:not-implemented"
    RESOURCE_LOCKED = "amqp:resource-locked"
    PRECONDITION_FAILED = "amqp:precondition-failed"
    ILLEGAL_STATE = "amqp:illegal-state"
    FRAME_SIZE_TOO_SMALL = "amqp:frame-size-too-small"

    # 2.8.16: connection errors
    CONNECTION_FORCED = "amqp:connection:forced"
    FRAMING_ERROR = "amqp:connection:framing-error"

    # 2.8.17: session errors
    HANDLE_IN_USE = "amqp:session:handle-in-use"
    UNATTACHED_HANDLE = "amqp:session:unattached-handle"

    # 2.8.18: link errors
    DETACH_FORCED = "amqp:link:detach-forced"
    TRANSFER_LIMIT_EXCEEDED = "amqp:link:transfer-limit-exceeded"
    MESSAGE_SIZE_EXCEEDED = "amqp:link:message-size-exceeded"

    # 4.5.8: transaction errors
    TRANSACTION_UNKNOWN_ID = "amqp:transaction:unknown-id"
    TRANSACTION_ROLLBACK = "amqp:transaction:rollback"
    TRANSACTION_TIMEOUT = "amqp:transaction:timeout"

    # Service Bus
    TIMEOUT = "com.microsoft:timeout"
    SERVER_BUSY = "com.microsoft:server-busy"
    OPERATION_CANCELLED = "com.microsoft:operation-cancelled"
    AUTH_FAILED = "com.microsoft:auth-failed"
    MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
    SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
    SESSION_CANNOT_BE_LOCKED = "com.microsoft:session-cannot-be-locked"
    MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
    SESSION_NOT_FOUND = "com.microsoft:session-not-found"
    ENTITY_DISABLED = "com.microsoft:entity-disabled"
    ENTITY_ALREADY_EXISTS = "com.microsoft:entity-already-exists"
    ARGUMENT_ERROR = "com.microsoft:argument-error"
    ARGUMENT_OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
    NO_MATCHING_SUBSCRIPTION = "com.microsoft:no-matching-subscription"
    PARTITION_NOT_OWNED = "com.microsoft:partition-not-owned"
    MESSAGE_WAIT_TIMEOUT = "com.microsoft:message-wait-timeout"
    CONTAINER_CLOSE = "com.microsoft:container-close"
    CLAIM_NAME_IN_USE = "peeklock:claim-name-in-use"
    DEAD_LETTER = "com.microsoft:dead-letter"
    """Not an error: clients send it in the outcome `rejected` to dead-letter a message."""


class AmqpError(Exception):
    """A failure that can be sent to a peer. It has a condition for programs and a description for people."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(condition, description)
        self.condition = condition
        self.description = description

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}"


class DecodeError(AmqpError):
    """The peer's bytes are malformed."""

    def __init__(self, description: str) -> None:
        super().__init__(Condition.DECODE_ERROR, description)
        self.args = (description,)  # copying and pickling call `__init__` with these arguments


class EncodeError(AmqpError):
    """A value of this side cannot be encoded. The peer gets `amqp:internal-error`."""

    def __init__(self, description: str) -> None:
        super().__init__(Condition.INTERNAL_ERROR, description)
        self.args = (description,)
