"""Locks: messages lent to receivers, by their numbers and by their tags.

A request to `$management` names locks by their tags. Receivers that settle on their links never do, and they are the
many. So the index by tag is made when a request asks for it, and is kept while requests go on asking.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from peeklock.broker.accounts import Account
from peeklock.broker.backlog import memory_cost
from peeklock.broker.errors import BrokerError, MessageLockLost, SessionLockLost
from peeklock.broker.lock_tags import LockTags
from peeklock.store.base import StoredMessage

KEPT_FOR: Final = 1024
"""Locks that are made before an unused index is dropped, at least."""


class Lock:
    """A message lent to a receiver.

    The tag is its name on the wire, the lock token: new for each delivery, and nobody can guess it, because a request
    that has it may settle the message (see `lock_tags`).
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
        """The tag in the order of bytes that a UUID has on the wire."""
        self.expires_at = expires_at
        """By the monotonic clock, which counts."""
        self.locked_until = locked_until
        """The same in Unix time, as the client was told."""
        self.session = session
        """The session it belongs to, where there are sessions."""
        self.settling = False
        """A settlement of it is on its way to the store."""
        self.account: Account | None = None
        """Where the memory is counted that the message holds as long as it is locked."""
        self.charged = 0
        """Bytes counted there."""

    def lost(self) -> BrokerError:
        """The error for a settlement after the lock expired."""
        if self.session is not None:
            return SessionLockLost(f"The session lock of '{self.session.id}' has expired.")
        return MessageLockLost()

    def charge(self, account: Account) -> None:
        self.account = account
        self.charged = size = memory_cost(self.message)
        account.take(size)

    def release_memory(self) -> None:
        """The lock ends, and with it what is counted for it."""
        if self.account is not None:
            self.account.give_back(self.charged)


class TagIndex:
    """The locks of an entity by tag.

    Making the index costs as much as there are locks. It is dropped after four times as many further locks without a
    request, so that this cost is a small part of theirs, however rarely a client asks.
    """

    def __init__(self, locks: dict[int, Lock]) -> None:
        self._locks = locks
        self._by_tag: dict[bytes, Lock] | None = None
        self._left = 0
        self.is_kept = False
        """Whether `added` and `removed` must be called."""

    def find(self, tag: bytes) -> Lock | None:
        by_tag = self._by_tag
        if by_tag is None:
            by_tag = self._by_tag = {lock.tag: lock for lock in self._locks.values()}
            self.is_kept = True
        self._left = KEPT_FOR + 4 * len(by_tag)
        return by_tag.get(tag)

    def added(self, lock: Lock) -> None:
        self._left -= 1
        if self._left < 0 or self._by_tag is None:
            self._by_tag = None
            self.is_kept = False
        else:
            self._by_tag[lock.tag] = lock

    def removed(self, lock: Lock) -> None:
        if self._by_tag is not None:
            del self._by_tag[lock.tag]


class LockTable:
    """The locks of an entity."""

    def __init__(self, tags: LockTags) -> None:
        self.by_number: dict[int, Lock] = {}
        """By sequence number, in the order in which they were made or renewed. Changed only here."""
        self._tags = tags
        self._index = TagIndex(self.by_number)

    def make(self, message: StoredMessage, expires_at: int, locked_until: int, session: Any = None) -> Lock:
        tag, token = self._tags.next()
        lock = Lock(message, tag, token, expires_at, locked_until, session)
        self.by_number[message.sequence_number] = lock
        if self._index.is_kept:
            self._index.added(lock)
        return lock

    def holds(self, lock: Lock) -> bool:
        """Whether the message is still lent by this lock."""
        return self.by_number.get(lock.message.sequence_number) is lock

    def find(self, tags: Iterable[bytes]) -> list[Lock]:
        """The locks of these tags, each once; MessageLockLost when there is none of one of them.

        Whether they still hold is for the settlement to check: all of them at one moment.
        """
        found = [self._index.find(tag) for tag in dict.fromkeys(tags)]
        locks = [lock for lock in found if lock is not None and not lock.settling]
        if len(locks) < len(found):
            raise MessageLockLost
        return locks

    def renew(self, lock: Lock, expires_at: int, locked_until: int) -> None:
        """Have it run out after all others."""
        number = lock.message.sequence_number
        del self.by_number[number]
        self.by_number[number] = lock
        lock.expires_at, lock.locked_until = expires_at, locked_until

    def remove(self, lock: Lock) -> None:
        del self.by_number[lock.message.sequence_number]
        if self._index.is_kept:
            self._index.removed(lock)
        lock.release_memory()

    def forget(self) -> None:
        """The entity is gone. What is being settled is for the settlement to end."""
        for lock in list(self.by_number.values()):
            if not lock.settling:
                self.remove(lock)
