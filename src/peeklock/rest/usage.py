"""What clients hold of the broker over HTTP: waiting receives, locked messages, bodies on their way in and out.

Requests come on any number of connections, so it is counted by the rule whose key they show.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from peeklock.broker.accounts import Account, Accounts
from peeklock.broker.errors import QuotaExceeded, ServerBusy
from peeklock.limits.broker import MAX_HELD_BYTES
from peeklock.limits.http import (
    MAX_BODIES_BYTES,
    MAX_RULE_BODIES_BYTES,
    MAX_WAITING_RECEIVES,
    MAX_WAITING_RECEIVES_OF_RULE,
)


class Waiting(Protocol):
    """A receive that waits."""

    def can_hold(self) -> None:
        """There is room again for a locked message."""
        ...


class Holder:
    """All clients that show a key of one rule."""

    def __init__(self, rule: str, holders: Holders, held: Accounts) -> None:
        self.rule = rule
        self._holders = holders
        self._waiting: dict[Waiting, None] = {}
        self.account = Account("Messages received over HTTP", MAX_HELD_BYTES, held, self._on_room)
        """Of locked messages, which outlive the request, and of answers that are being written."""
        self.account.join(rule)

    @property
    def is_full(self) -> bool:
        """Whether no more messages may be received."""
        return self.account.is_full

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self.account.used

    def check_room(self) -> None:
        """QuotaExceeded when no more messages may be received."""
        self.account.recheck()
        if self.is_full:
            raise QuotaExceeded(
                f"Messages that clients with this key have received over HTTP hold {self.account.used} bytes; this is "
                "more than the broker keeps in memory for it. Complete or unlock some."
            )

    def enter(self, waiting: Waiting) -> None:
        """ServerBusy when too many wait already."""
        if len(self._waiting) >= MAX_WAITING_RECEIVES_OF_RULE:
            raise ServerBusy(
                f"{MAX_WAITING_RECEIVES_OF_RULE} receives with this key wait for messages; no more are allowed."
            )
        if self._holders.waiting >= MAX_WAITING_RECEIVES:
            raise ServerBusy(f"{MAX_WAITING_RECEIVES} receives wait for messages; no more are allowed.")
        self._waiting[waiting] = None
        self._holders.waiting += 1

    def leave(self, waiting: Waiting) -> None:
        if waiting in self._waiting:
            del self._waiting[waiting]
            self._holders.waiting -= 1

    def _on_room(self) -> None:
        for waiting in list(self._waiting):
            waiting.can_hold()


class Holders:
    """The holders of a namespace, by rule."""

    def __init__(self, held: Accounts) -> None:
        self._held = held
        self._bodies = Accounts(all_bytes=MAX_BODIES_BYTES, rule_bytes=MAX_RULE_BODIES_BYTES)
        self._holders: dict[str, Holder] = {}
        self._sweep_at = 100
        self.waiting = 0
        """Receives, in all."""

    def of(self, rule: str) -> Holder:
        found = self._holders.get(rule)
        if found is None:
            if len(self._holders) >= self._sweep_at:
                # Rules come and go; those that hold nothing are made again when they are needed.
                self._holders = {name: holder for name, holder in self._holders.items() if not holder.is_idle}
                self._sweep_at = 2 * len(self._holders) + 100
            found = self._holders[rule] = Holder(rule, self, self._held)
        return found

    @contextmanager
    def body(self, rule: str) -> Iterator[Body]:
        """Count the body of one request or answer for as long as this lasts."""
        account = Account("Bodies of requests", MAX_RULE_BODIES_BYTES, self._bodies)
        account.join(rule)
        try:
            yield Body(account)
        finally:
            account.release(account.used)


class Body:
    """A body that comes or goes."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def take(self, size: int) -> None:
        """So much more of it is in memory. ServerBusy when that is too much of all of them together."""
        if self._account.is_full:
            self._account.recheck()
        if self._account.is_full:
            raise ServerBusy("The broker reads too many bodies of requests at once; try again.")
        self._account.take(size)
