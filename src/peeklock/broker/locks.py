"""The locks of a queue, by sequence number and by delivery tag.

Most receivers settle on their links; only requests to `$management` refer to locks by their tags. So the index by tag
is built when a request needs it, and is kept as long as requests use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from peeklock.broker.accounts import Account
from peeklock.broker.errors import BrokerError, MessageLockLost, SessionLockLost
from peeklock.broker.lock_tags import LockTags
from peeklock.broker.window_budget import memory_cost
from peeklock.store.base import StoredMessage

KEPT_FOR: Final = 1024
"""The least number of new locks after which an unused index is dropped."""


class Lock:
    """The lock of a message that was delivered to a receiver.

    The tag is the lock token on the wire: new for each delivery, and unguessable, because a request that has it may
    settle the message (see `lock_tags`).
    """

    __slots__ = ("account", "charged", "expires_at", "locked_until", "message", "session", "settling", "tag", "token")

    def __init__(
        self,
        message: StoredMessage,
        tag: bytes,
        token: bytes,
        expires_at: int,
        locked_until: int,
        session: Any = None,
    ) -> None:
        self.message = message
        self.tag = tag
        self.token = token
        """The tag in the byte order of a UUID on the wire."""
        self.expires_at = expires_at
        """The expiry of the lock by the monotonic clock."""
        self.locked_until = locked_until
        """The expiry of the lock in Unix time. It is only for the client: the broker decides by `expires_at`."""
        self.session = session
        """The session of the message, in a queue with sessions."""
        self.settling = False
        """Whether a settlement of the message is being committed."""
        self.account: Account | None = None
        """The account for the memory of the locked message."""
        self.charged = 0
        """Bytes counted in the account."""

    def lost(self) -> BrokerError:
        """Return the error for a settlement of an expired lock."""
        if self.session is not None:
            return SessionLockLost(f"The session lock of '{self.session.id}' has expired.")
        return MessageLockLost()

    def charge(self, account: Account) -> None:
        self.account = account
        self.charged = size = memory_cost(self.message)
        account.take(size)

    def release_memory(self) -> None:
        """Stop counting the memory of the message, when the lock has ended."""
        if self.account is not None:
            self.account.release(self.charged)


class TagIndex:
    """The locks of a queue by tag.

    Building the index is O(locks). It is dropped after four times as many new locks without a request. So the cost per
    lock is small, even if requests are rare.
    """

    def __init__(self, locks: dict[int, Lock]) -> None:
        self._locks = locks
        self._by_tag: dict[bytes, Lock] | None = None
        self._left = 0
        self.is_kept = False
        """Whether the index exists, so that `add` and `remove` must be called."""

    def find(self, tag: bytes) -> Lock | None:
        by_tag = self._by_tag
        if by_tag is None:
            by_tag = self._by_tag = {lock.tag: lock for lock in self._locks.values()}
            self.is_kept = True
        self._left = KEPT_FOR + 4 * len(by_tag)
        return by_tag.get(tag)

    def add(self, lock: Lock) -> None:
        self._left -= 1
        if self._left < 0 or self._by_tag is None:
            self._by_tag = None
            self.is_kept = False
        else:
            self._by_tag[lock.tag] = lock

    def remove(self, lock: Lock) -> None:
        if self._by_tag is not None:
            del self._by_tag[lock.tag]


class LockTable:
    """The locks of a queue."""

    def __init__(self, tags: LockTags) -> None:
        self.by_number: dict[int, Lock] = {}
        """Locks by sequence number, in the order in which they were made or renewed. Only this class changes it."""
        self._tags = tags
        self._index = TagIndex(self.by_number)

    def make(self, message: StoredMessage, expires_at: int, locked_until: int, session: Any = None) -> Lock:
        tag, token = self._tags.next()
        lock = Lock(message, tag, token, expires_at, locked_until, session)
        self.by_number[message.sequence_number] = lock
        if self._index.is_kept:
            self._index.add(lock)
        return lock

    def holds(self, lock: Lock) -> bool:
        """Return whether the lock is still the current lock of its message."""
        return self.by_number.get(lock.message.sequence_number) is lock

    def find(self, tags: Iterable[bytes]) -> list[Lock]:
        """Return the locks with these tags, without repetitions. Raise MessageLockLost if one does not exist.

        Expiry is not checked here: the settlement checks all locks at the same time.
        """
        found = [self._index.find(tag) for tag in dict.fromkeys(tags)]
        locks = [lock for lock in found if lock is not None and not lock.settling]
        if len(locks) < len(found):
            raise MessageLockLost
        return locks

    def renew(self, lock: Lock, expires_at: int, locked_until: int) -> None:
        """Extend a lock. It becomes the last in the order."""
        number = lock.message.sequence_number
        del self.by_number[number]
        self.by_number[number] = lock
        lock.expires_at, lock.locked_until = expires_at, locked_until

    def remove(self, lock: Lock) -> None:
        del self.by_number[lock.message.sequence_number]
        if self._index.is_kept:
            self._index.remove(lock)
        lock.release_memory()

    def forget(self) -> None:
        """Remove all locks after the queue was deleted, except those of messages that are being settled."""
        for lock in list(self.by_number.values()):
            if not lock.settling:
                self.remove(lock)
