"""Locks: messages lent to receivers, and how a lock is found by its tag.

A request to `$management` names locks by their tags. Receivers that settle on their links never do, and they are the
many. So the index by tag is made when a request asks for it, and is kept while requests go on asking.
"""

from __future__ import annotations

from typing import Any, Final

from peeklock.broker.accounts import Account
from peeklock.broker.backlog import memory_cost
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
