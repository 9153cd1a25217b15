"""Admission of connections: limits in total and per address, a reserve for administration, and failed logins.

Every connection has a ticket from accept to close. When `max_connections` are open, `reserved_connections` more are
admitted for administration. Such a connection has `reserved_seconds` to show a key with the right Manage; when the
reserve is full, a new connection replaces the oldest one that has not shown a key. So an administrator can connect even
when clients hold all other connections.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Final

from peeklock.broker.agenda import Clock
from peeklock.broker.errors import TooManyFailedLogins
from peeklock.limits.server import Limits
from peeklock.server.loopback import is_loopback
from peeklock.server.unauthenticated import Unauthenticated

TOO_MANY: Final = "too many connections are open"
TOO_MANY_OF_ADDRESS: Final = "too many connections from this address are open"
LOGIN_WINDOW_MS: Final = 60_000
_MAX_ADDRESSES: Final = 10_000
"""Addresses with their own count of failed logins; beyond this number addresses share one count."""


def _nothing() -> None:
    pass


class Ticket:
    """A connection's place within the connection limits, from its accept until `release`."""

    __slots__ = ("_admission", "_is_released", "address", "evict", "is_reserved", "token_verified")

    def __init__(self, admission: Admission, address: str, is_reserved: bool) -> None:
        self._admission = admission
        self.address = address
        self.is_reserved = is_reserved
        """Whether the connection is in the reserve, for administration only."""
        self.evict: Callable[[], None] = _nothing
        """Closes the connection. Set by the object that owns the socket: listener, sniffer or HTTP protocol."""
        self.token_verified: Callable[[], None] = _nothing
        """Called when the token of an HTTP request is valid. Set by the HTTP protocol."""
        self._is_released = False

    def mark_key_shown(self) -> None:
        """Note that the client has shown a key with the right Manage, so that the connection is not evicted."""
        self._admission.awaiting_key.pop(self, None)

    @property
    def awaits_key(self) -> bool:
        """Whether the connection is in the reserve and has shown no key with the right Manage yet."""
        return self in self._admission.awaiting_key

    @property
    def unauthenticated(self) -> Unauthenticated:
        """The count of memory that connections hold before they log in."""
        return self._admission.unauthenticated

    def first_bytes_timeout(self, seconds: float) -> float:
        """Return the time for the first bytes: `seconds`, or less for a connection in the reserve."""
        return min(seconds, self._admission.limits.reserved_seconds) if self.is_reserved else seconds

    def check_login(self) -> None:
        """Raise TooManyFailedLogins while logins from this address are refused."""
        self._admission.failed_logins.check(self.address)

    def login_failed(self) -> None:
        self._admission.failed_logins.add(self.address)

    def release(self) -> None:
        """Free the connection's place; it has ended. Further calls have no effect."""
        if not self._is_released:
            self._is_released = True
            # Breaks reference cycles, so that the connection is freed without the collector.
            self.evict = self.token_verified = _nothing
            self._admission.on_released(self)


class Admission:
    """Admits connections within the limits."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.limits = limits
        self.failed_logins = FailedLogins(limits.max_failed_logins, clock)
        self.unauthenticated = Unauthenticated(limits.unauthenticated_bytes)
        self.awaiting_key: dict[Ticket, None] = {}
        """Tickets of the reserve that have shown no key, the oldest first."""
        self._by_address: Counter[str] = Counter()
        self._ordinary = 0
        self._reserved = 0

    @property
    def open(self) -> int:
        """The number of open connections of any protocol."""
        return self._ordinary + self._reserved

    def admit(self, address: str) -> Ticket | str:
        """Return a ticket for a connection from the address, or the reason why it is refused."""
        if self._by_address[address] >= self._most_of(address):
            return TOO_MANY_OF_ADDRESS
        is_reserved = self._ordinary >= self.limits.max_connections
        if is_reserved and self._reserved >= self.limits.reserved_connections:
            oldest = next(iter(self.awaiting_key), None)
            if oldest is None:
                return TOO_MANY
            oldest.evict()
            oldest.release()
        ticket = Ticket(self, address, is_reserved)
        self._by_address[address] += 1
        if is_reserved:
            self._reserved += 1
            self.awaiting_key[ticket] = None
        else:
            self._ordinary += 1
        return ticket

    def on_released(self, ticket: Ticket) -> None:
        self.awaiting_key.pop(ticket, None)
        if ticket.is_reserved:
            self._reserved -= 1
        else:
            self._ordinary -= 1
        self._by_address[ticket.address] -= 1
        if not self._by_address[ticket.address]:
            del self._by_address[ticket.address]

    def _most_of(self, address: str) -> int:
        most = self.limits.max_connections_per_address
        if most is not None:
            return most
        return sys.maxsize if is_loopback(address) else max(1, self.limits.max_connections // 2)


class FailedLogins:
    """Counts logins with a wrong key for each address.

    After too many failures all logins from the address are refused until the minute is over, also with the right key:
    otherwise guessing keys would continue at full speed.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._now = clock.monotonic
        self._failed: dict[str, tuple[int, int]] = {}
        """By address: when the count began, and the count."""

    def check(self, address: str) -> None:
        since, failed = self._failed.get(self._counted_as(address), (0, 0))
        left = since + LOGIN_WINDOW_MS - self._now()
        if self._most and failed >= self._most and left > 0:
            raise TooManyFailedLogins(
                f"{failed} logins from this address failed within a minute; try again in {-(-left // 1000)} seconds."
            )

    def add(self, address: str) -> None:
        now = self._now()
        address = self._counted_as(address)
        since, failed = self._failed.get(address, (now, 0))
        if now - since >= LOGIN_WINDOW_MS:
            since, failed = now, 0
        self._failed[address] = since, failed + 1

    def _counted_as(self, address: str) -> str:
        if address in self._failed or len(self._failed) < _MAX_ADDRESSES:
            return address
        now = self._now()
        self._failed = {known: each for known, each in self._failed.items() if now - each[0] < LOGIN_WINDOW_MS}
        return address if len(self._failed) < _MAX_ADDRESSES else ""
