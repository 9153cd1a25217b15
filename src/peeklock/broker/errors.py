"""What can go wrong in a namespace: each with the condition an AMQP peer reads and the status a request gets."""

from __future__ import annotations

from http import HTTPStatus
from typing import ClassVar

from peeklock.amqp.errors import Condition


class BrokerError(Exception):
    """The base: `str()` is one sentence for people."""

    condition: ClassVar[str] = Condition.INTERNAL_ERROR
    status: ClassVar[HTTPStatus] = HTTPStatus.INTERNAL_SERVER_ERROR


class EntityNotFound(BrokerError):
    """SDKs recognise the phrase and give up at once instead of trying again."""

    condition = Condition.NOT_FOUND
    status = HTTPStatus.NOT_FOUND

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity 'sb://peeklock/{path}' could not be found.")


class EntityExists(BrokerError):
    condition = Condition.ENTITY_ALREADY_EXISTS
    status = HTTPStatus.CONFLICT


class EntityChanging(BrokerError):
    """Another change of the same entity is on its way to the store."""

    condition = Condition.SERVER_BUSY
    status = HTTPStatus.CONFLICT


class SubscriptionInUse(BrokerError):
    """Another consumer has it, and what is asked for would take it away from that one."""

    condition = Condition.RESOURCE_LOCKED
    status = HTTPStatus.CONFLICT


class ClaimNameInUse(BrokerError):
    """Another client that is connected claims messages under that name."""

    condition = Condition.CLAIM_NAME_IN_USE
    status = HTTPStatus.CONFLICT


class Unauthorized(BrokerError):
    condition = Condition.UNAUTHORIZED_ACCESS
    status = HTTPStatus.UNAUTHORIZED


class InvalidToken(BrokerError):
    """A token that proves nothing: malformed, forged, expired, or for something else."""

    condition = Condition.AUTH_FAILED
    status = HTTPStatus.UNAUTHORIZED


class WrongKey(InvalidToken):
    """A token or a login that no key of that name fits: perhaps a guess."""


class TooManyFailedLogins(BrokerError):
    condition = Condition.SERVER_BUSY
    status = HTTPStatus.SERVICE_UNAVAILABLE


class OperationNotAllowed(BrokerError):
    condition = Condition.NOT_ALLOWED
    status = HTTPStatus.BAD_REQUEST


class SessionIdMissing(OperationNotAllowed):
    """A message without a session id, where there are sessions."""


class NotSupported(BrokerError):
    condition = Condition.NOT_IMPLEMENTED
    status = HTTPStatus.NOT_IMPLEMENTED


class InvalidMessage(BrokerError):
    """The bytes are not a message, or one that no receiver could be given."""

    condition = Condition.DECODE_ERROR
    status = HTTPStatus.BAD_REQUEST


class InvalidProperty(BrokerError):
    condition = Condition.ARGUMENT_ERROR
    status = HTTPStatus.BAD_REQUEST


class InvalidField(BrokerError):
    """A field of a performative cannot be what it is."""

    condition = Condition.INVALID_FIELD
    status = HTTPStatus.BAD_REQUEST


class MessageSizeExceeded(BrokerError):
    condition = Condition.MESSAGE_SIZE_EXCEEDED
    status = HTTPStatus.FORBIDDEN


class QuotaExceeded(BrokerError):
    condition = Condition.RESOURCE_LIMIT_EXCEEDED
    status = HTTPStatus.FORBIDDEN


class ServerBusy(BrokerError):
    """Not now, but soon: clients wait a while and try again."""

    condition = Condition.SERVER_BUSY
    status = HTTPStatus.SERVICE_UNAVAILABLE


class DiskFreeLow(ServerBusy):
    """The disk is nearly full: messages that would fill it are refused, while others can be received."""

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
    """The commit did not happen, and nothing of the transaction did."""

    condition = Condition.TRANSACTION_ROLLBACK
    status = HTTPStatus.CONFLICT


class StorageFull(BrokerError):
    """There is no room to keep what was sent; nothing of it was kept."""

    condition = Condition.RESOURCE_LIMIT_EXCEEDED
    status = HTTPStatus.INSUFFICIENT_STORAGE


class StorageFailed(BrokerError):
    """The disk refused; nothing was changed. Worth another try."""

    condition = Condition.INTERNAL_ERROR
    status = HTTPStatus.INTERNAL_SERVER_ERROR


class ChangeRefused(StorageFailed):
    """The store works and does not take this change, which it will not take later either."""


class TooManyHops(OperationNotAllowed):
    """A message that was forwarded as often as is allowed."""
