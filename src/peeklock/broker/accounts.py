"""Limits of the memory that the broker holds for clients: per connection, per authorization rule, and in all.

When a rule, or all of them together, reached the limit, accounts far below their fair share may still take some.
So a client that holds much is refused, and clients that hold little are served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peeklock.broker.errors import QuotaExceeded
from peeklock.limits.broker import MAX_ALL_HELD_BYTES, MAX_RULE_HELD_BYTES

STEP: Final = 4096
"""What an account reserves at least beyond what it holds. A connection holds another amount after every message, and
the pools above it are not updated each time."""
MODESTY: Final = 8
"""Beyond the limit an account may take more if it holds less than its fair share divided by this. The divisor bounds
the excess: without it a thousand new accounts, each below its fair share, could take twice the limit."""
MAX_IDLE_RULES: Final = 1000


class _Pool:
    """The sum of what the accounts, or pools, below it hold."""

    def __init__(self, limit: int, parent: _Pool | None) -> None:
        self.limit = limit
        self.parent = parent
        self.used = 0
        self.holders = 0
        """How many accounts or pools below it hold something."""

    def allows(self, held: int) -> bool:
        """Whether an account or pool below it that holds so much may take more."""
        if self.used >= self.limit:
            share = self.limit // (MODESTY * max(1, self.holders))
            if held >= share or self.used >= 2 * self.limit:
                return False
        return self.parent is None or self.parent.allows(self.used)

    def change(self, before: int, after: int) -> None:
        """An account or pool below it holds another amount."""
        own = self.used
        self.used = own + after - before
        self.holders += (after > 0) - (before > 0)
        if self.parent is not None:
            self.parent.change(own, self.used)


class Accounts:
    """The accounts for one kind of memory."""

    def __init__(self, *, all_bytes: int, rule_bytes: int) -> None:
        self._all = _Pool(all_bytes, None)
        self._rule_bytes = rule_bytes
        self._rules: dict[str, _Pool] = {}
        self.full: set[Account] = set()
        """Accounts that may not take more, and are told when they may."""

    @property
    def used(self) -> int:
        return self._all.used

    def rule(self, name: str) -> _Pool:
        pool = self._rules.get(name)
        if pool is None:
            if len(self._rules) >= MAX_IDLE_RULES:
                self._rules = {name: pool for name, pool in self._rules.items() if pool.used}
            pool = self._rules[name] = _Pool(self._rule_bytes, self._all)
        return pool


def held_accounts() -> Accounts:
    return Accounts(all_bytes=MAX_ALL_HELD_BYTES, rule_bytes=MAX_RULE_HELD_BYTES)


class Account:
    """What one connection holds. It outlives the connection as long as locks of that are left."""

    def __init__(self, what: str, limit: int, accounts: Accounts, on_room: Callable[[], None] = lambda: None) -> None:
        self._what = what
        self.limit = limit
        self._accounts = accounts
        self._on_room = on_room
        """Called when the account may take more again."""
        self._pool: _Pool | None = None
        self._reserved = 0
        self.used = 0
        self.is_full = False

    def join(self, rule: str) -> None:
        """Count the connection under the rule it logged in with. Only the first login counts."""
        if self._pool is None:
            self._pool = self._accounts.rule(rule)
            self._reserve(self._reserved)

    def check(self) -> None:
        """QuotaExceeded when the account may take no more."""
        if self.is_full:
            self.look_again()
            if self.is_full:
                raise QuotaExceeded(
                    f"{self._what} hold {self.used} bytes of this connection and {self._accounts.used} bytes in all; "
                    "this is more than the broker keeps in memory for it."
                )

    def take(self, size: int) -> None:
        """Add what the connection holds.

        Only what it held before is checked, so a large message is accepted in the end.
        """
        self.used += size
        if self.used >= self._reserved:
            ahead = self.used + max(STEP, self.used >> 3)
            self._reserve(max(self.used, min(ahead, self.limit)))
            self.look_again()

    def release(self, size: int) -> None:
        self.used -= size
        if self.used < self._reserved >> 1 or not self.used:
            self._reserve(self.used + max(STEP, self.used >> 3) if self.used else 0)
            for account in list(self._accounts.full):
                account.look_again()
        elif self.is_full:
            self.look_again()

    def look_again(self) -> None:
        """Check again whether the account is full."""
        pool = self._pool
        is_full = self.used >= self.limit or (pool is not None and not pool.allows(self._reserved))
        if is_full is self.is_full:
            return
        self.is_full = is_full
        if is_full:
            self._accounts.full.add(self)
        else:
            self._accounts.full.discard(self)
            self._on_room()

    def _reserve(self, size: int) -> None:
        before, self._reserved = self._reserved, size
        if self._pool is not None:
            self._pool.change(before, size)
