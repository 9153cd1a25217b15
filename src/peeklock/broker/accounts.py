"""Limits on the memory that the broker holds for clients: per connection, per authorization rule, and in all.

When a rule, or all rules together, have reached the limit, accounts far below their fair share may still take some.
So the broker refuses a client that holds much memory, and serves clients that hold little.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from peeklock.broker.errors import QuotaExceeded
from peeklock.limits.amqp import MAX_ALL_PARTIAL_BYTES, MAX_RULE_PARTIAL_BYTES
from peeklock.limits.broker import MAX_ALL_HELD_BYTES, MAX_RULE_HELD_BYTES

STEP: Final = 4096
"""The least that an account reserves beyond what it holds, in bytes. The memory of a connection changes with every
message; because of the reserve, the pools above it need no update each time."""
SHARE_DIVISOR: Final = 8
"""Beyond the limit, an account may take more if it holds less than its fair share divided by this. The divisor bounds
the excess: without it, a thousand new accounts, each below its fair share, could take twice the limit."""
MAX_IDLE_RULES: Final = 1000
"""Pools of rules that hold nothing are removed when there are this many pools."""


class _Pool:
    """The total of the memory that the accounts, or pools, below it hold."""

    def __init__(self, limit: int, parent: _Pool | None) -> None:
        self.limit = limit
        self.parent = parent
        self.used = 0
        self.holders = 0
        """The number of accounts or pools below it that hold memory."""

    def allows(self, held: int) -> bool:
        """Return whether an account or pool below it that holds `held` bytes may take more."""
        if self.used >= self.limit:
            share = self.limit // (SHARE_DIVISOR * max(1, self.holders))
            if held >= share or self.used >= 2 * self.limit:
                return False
        return self.parent is None or self.parent.allows(self.used)

    def change(self, before: int, after: int) -> None:
        """Update the total: an account or pool below it held `before` bytes and now holds `after`."""
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
        """Accounts that may not take more. They are checked again when another account releases memory."""

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


def partial_accounts() -> Accounts:
    return Accounts(all_bytes=MAX_ALL_PARTIAL_BYTES, rule_bytes=MAX_RULE_PARTIAL_BYTES)


class Account:
    """The memory that one connection holds. Its locks keep the account after the connection has closed."""

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
        """Raise QuotaExceeded if the account is full."""
        if not self.has_room():
            raise QuotaExceeded(
                f"{self._what} hold {self.used} bytes of this connection and {self._accounts.used} bytes in all; "
                "the broker accepts no more until memory is released."
            )

    def has_room(self) -> bool:
        """Return whether the account may take more, after another check if it was full."""
        if self.is_full:
            self.recheck()
        return not self.is_full

    def take(self, size: int) -> None:
        """Add memory that the connection holds.

        The check happened before, and did not include this size: so a message larger than the limit can be accepted.
        """
        self.used += size
        if self.used >= self._reserved:
            ahead = self.used + max(STEP, self.used >> 3)
            self._reserve(max(self.used, min(ahead, self.limit)))
            self.recheck()

    def release(self, size: int) -> None:
        """Subtract memory that the connection no longer holds."""
        self.used -= size
        if self.used < self._reserved >> 1 or not self.used:
            self._reserve(self.used + max(STEP, self.used >> 3) if self.used else 0)
            for account in list(self._accounts.full):
                account.recheck()
        elif self.is_full:
            self.recheck()

    def recheck(self) -> None:
        """Check again whether the account is full, and call `on_room` if it no longer is."""
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
