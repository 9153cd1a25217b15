"""Which connections are let in: how many at once, how many from one address, and who failed to log in too often.

Every connection has a ticket from its accept to its end. When all ordinary places are taken there is a reserve for
administration: a connection there has a moment to show a key, and the oldest that has not gives way to the next. So
clients that hold all connections cannot keep out who would put an end to it.
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

TOO_MANY: Final = "too many are open"
TOO_MANY_OF_ADDRESS: Final = "too many are open from this address"
RESERVED_SECONDS: Final = 2.0
"""For a connection in the reserve to show a key."""
LOGIN_WINDOW_MS: Final = 60_000
_MAX_ADDRESSES: Final = 10_000
"""Whose failed logins are counted apart; beyond them addresses share a count."""


def _nothing() -> None:
    pass


class Ticket:
    """The place of one connection."""

    __slots__ = ("_admission", "_is_released", "address", "evict", "is_reserved")

    def __init__(self, admission: Admission, address: str, is_reserved: bool) -> None:
        self._admission = admission
        self.address = address
        self.is_reserved = is_reserved
        """For administration only, until it has shown a key: then it is one like any other."""
        self.evict: Callable[[], None] = _nothing
        """Closes the connection; whoever holds it at the moment sets this."""
        self._is_released = False

    def prove(self) -> None:
        """The connection has shown a key that administers."""
        self._admission.unproven.pop(self, None)

    @property
    def is_proven(self) -> bool:
        return self not in self._admission.unproven

    @property
    def unauthenticated(self) -> Unauthenticated:
        """Where is counted what connections hold before they log in."""
        return self._admission.unauthenticated

    def check_login(self) -> None:
        """TooManyFailedLogins while logins from this address are refused."""
        self._admission.failed_logins.check(self.address)

    def login_failed(self) -> None:
        self._admission.failed_logins.add(self.address)

    def release(self) -> None:
        """The connection has ended. May be said twice."""
        if not self._is_released:
            self._is_released = True
            self.evict = _nothing  # what it closes has the ticket, and would stay until cycles are looked for
            self._admission.on_released(self)


class Admission:
    """Gives out tickets."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self.failed_logins = FailedLogins(limits.max_failed_logins, clock)
        self.unauthenticated = Unauthenticated(limits.unauthenticated_bytes)
        self.unproven: dict[Ticket, None] = {}
        """Tickets of the reserve that have shown no key, the oldest first."""
        self._by_address: Counter[str] = Counter()
        self._ordinary = 0
        self._reserved = 0

    @property
    def open(self) -> int:
        """How many connections there are, whatever they speak."""
        return self._ordinary + self._reserved

    def admit(self, address: str) -> Ticket | str:
        """A ticket for a connection from that address, or why there is none."""
        if self._by_address[address] >= self._most_of(address):
            return TOO_MANY_OF_ADDRESS
        is_reserved = self._ordinary >= self._limits.max_connections
        if is_reserved and self._reserved >= self._limits.reserved_connections:
            oldest = next(iter(self.unproven), None)
            if oldest is None:
                return TOO_MANY
            oldest.evict()
            oldest.release()
        ticket = Ticket(self, address, is_reserved)
        self._by_address[address] += 1
        if is_reserved:
            self._reserved += 1
            self.unproven[ticket] = None
        else:
            self._ordinary += 1
        return ticket

    def on_released(self, ticket: Ticket) -> None:
        self.unproven.pop(ticket, None)
        if ticket.is_reserved:
            self._reserved -= 1
        else:
            self._ordinary -= 1
        self._by_address[ticket.address] -= 1
        if not self._by_address[ticket.address]:
            del self._by_address[ticket.address]

    def _most_of(self, address: str) -> int:
        most = self._limits.max_connections_per_address
        if most is not None:
            return most
        return sys.maxsize if is_loopback(address) else max(1, self._limits.max_connections // 2)


class FailedLogins:
    """Counts logins with a wrong key, by address.

    Beyond the limit even the right key is refused until the minute is over: else guessing would go on at full speed.
    """

    def __init__(self, most: int, clock: Clock) -> None:
        self._most = most
        self._now = clock.monotonic
        self._failed: dict[str, tuple[int, int]] = {}
        """By address: since when, and how many."""

    def check(self, address: str) -> None:
        since, failed = self._failed.get(self._counted_as(address), (0, 0))
        left = since + LOGIN_WINDOW_MS - self._now()
        if self._most and failed >= self._most and left > 0:
            raise TooManyFailedLogins(
                f"{failed} logins from this address failed within a minute: try again in {-(-left // 1000)} seconds."
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
