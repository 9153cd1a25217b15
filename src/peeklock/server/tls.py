"""The TLS context that listeners use, made again when its files change: at SIGHUP, and by a timer.

Connections keep the certificate that they began with. Files that cannot be used are logged and change nothing.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from peeklock.broker.agenda import Agenda
from peeklock.server.certificates import CertificateError, server_context
from peeklock.server.logs import event

log = logging.getLogger(__name__)

CHECK_EVERY_MS: Final = 3_600_000
"""Certificates are renewed a month before they end, so that once an hour is often enough."""

Files = tuple[Path, Path]
"""The certificate and its key."""


class Tls:
    """The context of a listener, and what keeps it fresh."""

    def __init__(self, find: Callable[[datetime], Files], client_authority: Path | None, agenda: Agenda) -> None:
        """`find` makes or renews what has to be at that time, and may block; CertificateError when it cannot."""
        self._find = find
        self._client_authority = client_authority
        self._agenda = agenda
        self._tasks: set[asyncio.Task[None]] = set()
        self._contents, self.context = self._load(self._now())

    def start(self) -> None:
        """Look at the files from time to time."""
        self._agenda.after(CHECK_EVERY_MS, self._check)

    def ask(self) -> None:
        """Read the files again."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> None:
        try:
            # In a thread, because a new certificate is made in a process of its own.
            contents, context = await asyncio.to_thread(self._load, self._now())
        except (CertificateError, OSError) as error:
            event(log, logging.ERROR, "the TLS files cannot be used and change nothing", reason=error)
            return
        if contents != self._contents:
            self._contents, self.context = contents, context
            event(log, logging.INFO, "new connections get a new certificate")

    def _check(self) -> None:
        self.start()
        self.ask()

    def _load(self, now: datetime) -> tuple[list[bytes], ssl.SSLContext]:
        certificate, key = self._find(now)
        context = server_context(certificate, key, self._client_authority)
        files = [certificate, key] + ([] if self._client_authority is None else [self._client_authority])
        return [path.read_bytes() for path in files], context

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._agenda.now() / 1000, UTC)
