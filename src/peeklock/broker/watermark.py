"""The watermark of free disk space: below it the broker refuses messages from clients, long before the disk is full.

The agenda checks the disk once a second and gives the journal an error for sends, so a send costs one comparison. Work
that does not make the store grow goes on: receiving, settling, dead-lettering, forwarding, deleting. A full disk
refuses that too, since each commit needs some space in the log.
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
DEFAULT_SHARE: Final = 20
"""The default is at most one part in so many of the disk."""
MARGIN: Final = 4
"""Sends are accepted again when the free space exceeds the watermark by one part in so many of it, so that they are not
refused and accepted in turn."""


class Watermark:
    """Whether the disk has space for more messages."""

    def __init__(
        self, journal: Journal, agenda: Agenda, measure: Callable[[], DiskSpace], low_bytes: int | None = None
    ) -> None:
        """`measure` may raise OSError. `low_bytes`: None is the default, 0 refuses nothing."""
        self.free_bytes: int | None = None
        """The free space at the last check; None when it could not be read."""
        self.low_bytes = low_bytes
        """None until the size of the disk is known, where the watermark depends on it."""
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
            # The store reports what is wrong with the disk.
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
