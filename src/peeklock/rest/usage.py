"""Limits on the clients' usage of HTTP: waiting receives, memory of locked messages, and bodies in transfer.

A client may use any number of connections, so everything is counted by authorization rule.
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


class WaitingReceive(Protocol):
    """A receive that waits for a message."""

    def on_memory_freed(self) -> None:
        """Called when the rule's clients may receive messages again."""
        ...


class RuleUsage:
    """The usage of all clients that authenticate with one authorization rule."""

    def __init__(self, rule: str, namespace: NamespaceUsage, held: Accounts) -> None:
        self.rule = rule
        self._namespace = namespace
        self._waiting: dict[WaitingReceive, None] = {}
        self.account = Account("Messages received over HTTP", MAX_HELD_BYTES, held, self._on_memory_freed)
        """The memory of locked messages, which outlive the request, and of responses that are being written."""
        self.account.join(rule)

    @property
    def is_full(self) -> bool:
        """Whether the limit of memory is reached, so that no more messages may be received."""
        return self.account.is_full

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self.account.used

    def check_memory(self) -> None:
        """Raise QuotaExceeded if the limit of memory is reached."""
        self.account.recheck()
        if self.is_full:
            raise QuotaExceeded(
                f"The messages that clients with this key have received over HTTP and not settled have "
                f"{self.account.used} bytes, which reaches the limit. Complete or unlock some of them."
            )

    def add_waiting(self, waiting: WaitingReceive) -> None:
        """Register a waiting receive. Raise ServerBusy if too many are waiting."""
        if len(self._waiting) >= MAX_WAITING_RECEIVES_OF_RULE:
            raise ServerBusy(
                f"{MAX_WAITING_RECEIVES_OF_RULE} receives with this key are waiting for messages; no more are allowed."
            )
        if self._namespace.waiting >= MAX_WAITING_RECEIVES:
            raise ServerBusy(f"{MAX_WAITING_RECEIVES} receives are waiting for messages; no more are allowed.")
        self._waiting[waiting] = None
        self._namespace.waiting += 1

    def remove_waiting(self, waiting: WaitingReceive) -> None:
        if waiting in self._waiting:
            del self._waiting[waiting]
            self._namespace.waiting -= 1

    def _on_memory_freed(self) -> None:
        for waiting in list(self._waiting):
            waiting.on_memory_freed()


class NamespaceUsage:
    """The usage of all clients of a namespace, by authorization rule."""

    def __init__(self, held: Accounts) -> None:
        self._held = held
        self._bodies = Accounts(all_bytes=MAX_BODIES_BYTES, rule_bytes=MAX_RULE_BODIES_BYTES)
        self._rules: dict[str, RuleUsage] = {}
        self._sweep_at = 100
        self.waiting = 0
        """The number of waiting receives of all rules."""

    def of(self, rule: str) -> RuleUsage:
        found = self._rules.get(rule)
        if found is None:
            if len(self._rules) >= self._sweep_at:
                # Remove idle rules, which may no longer exist; their usage is created again when needed.
                self._rules = {name: usage for name, usage in self._rules.items() if not usage.is_idle}
                self._sweep_at = 2 * len(self._rules) + 100
            found = self._rules[rule] = RuleUsage(rule, self, self._held)
        return found

    @contextmanager
    def count_body(self, rule: str) -> Iterator[Body]:
        """Count the body of one request or response until the end of the block. Add its bytes with `Body.take`."""
        account = Account("Bodies of requests", MAX_RULE_BODIES_BYTES, self._bodies)
        account.join(rule)
        try:
            yield Body(account)
        finally:
            account.release(account.used)


class Body:
    """The body of one request or response in memory."""

    def __init__(self, account: Account) -> None:
        self._account = account

    def take(self, size: int) -> None:
        """Add bytes of the body. Raise ServerBusy if all bodies together have reached the limit."""
        if self._account.is_full:
            self._account.recheck()
        if self._account.is_full:
            raise ServerBusy("The broker is reading too many request bodies at once; try again later.")
        self._account.take(size)
