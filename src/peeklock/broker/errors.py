"""The errors of a namespace, each with its AMQP error condition and the status of a response."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from peeklock.amqp.errors import Condition


class BrokerError(Exception):
    """The base class. `str()` is a message for users."""

    condition: ClassVar[str] = Condition.INTERNAL_ERROR
    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR


class EntityNotFound(BrokerError):
    """There is no entity at a path. SDKs recognise the text of this error and do not retry."""

    condition = Condition.NOT_FOUND
    status = HTTPStatus.NOT_FOUND

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity 'sb://peeklock/{path}' could not be found.")


class EntityExists(BrokerError):
    condition = Condition.ENTITY_ALREADY_EXISTS
    status = HTTPStatus.CONFLICT


class EntityChanging(BrokerError):
    """Another change of the same entity is under way."""

    condition = Condition.SERVER_BUSY
    status = HTTPStatus.CONFLICT


class SubscriptionInUse(BrokerError):
    """Another consumer uses the subscription, which the request would delete or replace."""

    condition = Condition.RESOURCE_LOCKED
    status = HTTPStatus.CONFLICT


class ClaimNameInUse(BrokerError):
    """Another connected client claims messages under that name."""

    condition = Condition.CLAIM_NAME_IN_USE
    status = HTTPStatus.CONFLICT


class Unauthorized(BrokerError):
    condition = Condition.UNAUTHORIZED_ACCESS
    status = HTTPStatus.UNAUTHORIZED


class InvalidToken(BrokerError):
    """A token that gives no right: malformed, forged, expired, or for another path."""

    condition = Condition.AUTH_FAILED
    status = HTTPStatus.UNAUTHORIZED


class WrongKey(InvalidToken):
    """A token or a login with a key that does not match its name: possibly a guess."""


class TooManyFailedLogins(BrokerError):
    condition = Condition.SERVER_BUSY
    status = HTTPStatus.SERVICE_UNAVAILABLE


class OperationNotAllowed(BrokerError):
    condition = Condition.NOT_ALLOWED
    status = HTTPStatus.BAD_REQUEST


class SessionIdMissing(OperationNotAllowed):
    """A message has no session id, and the entity requires one."""


class NotSupported(BrokerError):
    condition = Condition.NOT_IMPLEMENTED
    status = HTTPStatus.NOT_IMPLEMENTED


class InvalidMessage(BrokerError):
    """The bytes are not a valid message, or cannot be delivered."""

    condition = Condition.DECODE_ERROR
    status = HTTPStatus.BAD_REQUEST


class InvalidProperty(BrokerError):
    condition = Condition.ARGUMENT_ERROR
    status = HTTPStatus.BAD_REQUEST


class InvalidField(BrokerError):
    """A field of a performative has an invalid value."""

    condition = Condition.INVALID_FIELD
    status = HTTPStatus.BAD_REQUEST


class MessageSizeExceeded(BrokerError):
    condition = Condition.MESSAGE_SIZE_EXCEEDED
    status = HTTPStatus.FORBIDDEN


class QuotaExceeded(BrokerError):
    condition = Condition.RESOURCE_LIMIT_EXCEEDED
    status = HTTPStatus.FORBIDDEN


class ServerBusy(BrokerError):
    """The broker cannot do this at the moment. Clients wait and retry."""

    condition = Condition.SERVER_BUSY
    status = HTTPStatus.SERVICE_UNAVAILABLE


class DiskFreeLow(ServerBusy):
    """The disk is nearly full: sends are refused. Messages can be received."""

    def __init__(self, free_bytes: int, low_bytes: int) -> None:
        super().__init__(
            f"The broker accepts no messages: its disk has {free_bytes >> 20} MiB free, below the watermark of "
            f"{low_bytes >> 20} MiB. Receive messages or free disk space, and send again."
        )


class EntityDisabled(BrokerError):
    condition = Condition.ENTITY_DISABLED
    status = HTTPStatus.BAD_REQUEST


class MessageLockLost(BrokerError):
    condition = Condition.MESSAGE_LOCK_LOST
    status = HTTPStatus.GONE

    def __init__(self) -> None:
        super().__init__(
            "The lock supplied is invalid. Either the lock expired, or the message has already been settled."
        )


class SessionLockLost(BrokerError):
    condition = Condition.SESSION_LOCK_LOST
    status = HTTPStatus.GONE


class SessionCannotBeLocked(BrokerError):
    condition = Condition.SESSION_CANNOT_BE_LOCKED
    status = HTTPStatus.GONE


class MessageNotFound(BrokerError):
    condition = Condition.MESSAGE_NOT_FOUND
    status = HTTPStatus.NOT_FOUND


class OperationTimedOut(BrokerError):
    condition = Condition.TIMEOUT
    status = HTTPStatus.REQUEST_TIMEOUT


class UnknownTransaction(BrokerError):
    condition = Condition.TRANSACTION_UNKNOWN_ID
    status = HTTPStatus.BAD_REQUEST


class TransactionTimedOut(BrokerError):
    condition = Condition.TRANSACTION_TIMEOUT
    status = HTTPStatus.REQUEST_TIMEOUT


class TransactionRolledBack(BrokerError):
    """The transaction was not committed; none of its work was done."""

    condition = Condition.TRANSACTION_ROLLBACK
    status = HTTPStatus.CONFLICT


class StorageFull(BrokerError):
    """The store has no space for the messages. None was stored."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED
    status = HTTPStatus.INSUFFICIENT_STORAGE


class StorageFailed(BrokerError):
    """The store failed. Nothing was changed, and the client may retry."""

    condition = Condition.INTERNAL_ERROR
    status = HTTPStatus.INTERNAL_SERVER_ERROR


class ChangeRefused(StorageFailed):
    """The store works but refused this change. It would refuse a retry too."""


class TooManyHops(OperationNotAllowed):
    """A message has reached the limit of forwarding hops."""
