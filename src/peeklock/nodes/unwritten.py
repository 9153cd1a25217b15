"""The memory of messages that a connection receives and deletes, from their removal until they are written.

Such a message has no lock whose account could count it. It is in no queue any more, so the broker must keep it until
the transport has it.
"""

from __future__ import annotations

from collections.abc import Callable

from peeklock.broker.accounts import Account


class Unwritten:
    """The messages of one connection that are being removed, or are removed and not written yet."""

    def __init__(self, account: Account, on_none: Callable[[], None]) -> None:
        self._account = account
        self._on_none = on_none
        """Called when there are none, if a link waits for that."""
        self._sent = 0
        """Bytes of messages that were given to the engine, and that the transport may not have written."""
        self.bytes = 0
        """Bytes of all these messages."""
        self.is_awaited = False
        """Whether a link waits until there are none, because the account is full."""

    def reserve(self, size: int) -> None:
        """Count a message that is being removed."""
        self.bytes += size
        self._account.take(size)

    def cancel(self, size: int) -> None:
        """Stop counting a message that was not removed, or whose link is closed."""
        self.bytes -= size
        self._account.release(size)
        if self.is_awaited and not self.bytes:
            self.is_awaited = False
            self._on_none()

    def on_sent(self, size: int) -> None:
        """A message was removed and given to the engine."""
        self._sent += size

    def on_written(self) -> None:
        """The transport has written all that the engine had, or the connection is closed."""
        sent, self._sent = self._sent, 0
        if sent:
            self.cancel(sent)
