"""The watermark of free disk space. Below it the broker refuses messages from clients, long before the disk is full.

The disk is checked once a second, and the journal gets the error for sends. So the check of a send is one comparison.
Work that does not make the store grow is allowed: receiving, settling, dead-lettering, forwarding, deleting. On a full
disk that fails too, since each commit needs some space in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from peeklock.broker.agenda import Agenda
from peeklock.broker.errors import DiskFreeLow
from peeklock.broker.journal import Journal
from peeklock.store.base import DiskSpace

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 1000
DEFAULT_BYTES: Final = 1 << 30
"""The default watermark on large disks."""
DEFAULT_SHARE: Final = 20
"""The default is at most the size of the disk divided by this."""
MARGIN: Final = 4
"""Sends are accepted again when the free space exceeds the watermark by the watermark divided by this. Without the
margin, sends might be refused and accepted in quick succession."""


class Watermark:
    """Checks whether the disk has space for more messages."""

    def __init__(
        self, journal: Journal, agenda: Agenda, measure: Callable[[], DiskSpace], low_bytes: int | None = None
    ) -> None:
        """`measure` may raise OSError. `low_bytes` is the watermark; None: the default; 0: sends are never refused."""
        self.free_bytes: int | None = None
        """The free space at the last check; None when it could not be read."""
        self.low_bytes = low_bytes
        """The watermark; None while the default is not known, because it depends on the size of the disk."""
        self._journal = journal
        self._agenda = agenda
        self._measure = measure

    @property
    def refuses(self) -> bool:
        return self._journal.refusal is not None

    def start(self) -> None:
        """Check now, and once a second from now on."""
        self._look()
        self._agenda.after(INTERVAL_MS, self.start)

    def _look(self) -> None:
        try:
            free, total = self._measure()
        except OSError as error:
            # The broker continues: if the disk has failed, the store reports that.
            if self.free_bytes is not None:
                log.warning("the free space of the disk cannot be read: %s", error)
            self.free_bytes = None
            return
        self.free_bytes = free
        if self.low_bytes is None:
            self.low_bytes = min(DEFAULT_BYTES, total // DEFAULT_SHARE)
        low = self.low_bytes
        if free < low:
            if not self.refuses:
                log.warning("the disk is nearly full, and sends are refused", extra=_fields(free, low))
            self._journal.refusal = DiskFreeLow(free, low)
        elif self.refuses and free >= low + low // MARGIN:
            log.warning("the disk has space again, and sends are accepted", extra=_fields(free, low))
            self._journal.refusal = None


def _fields(free: int, low: int) -> dict[str, dict[str, int]]:
    return {"fields": {"free_bytes": free, "watermark_bytes": low}}
