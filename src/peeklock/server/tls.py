"""The TLS context of the listeners. Its files are read again at SIGHUP and once an hour.

Open connections keep the certificate that they began with. If the files cannot be used, that is logged and the previous
certificate stays in use.
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
"""Certificates are renewed a month before they expire, so checking once an hour is enough."""

Files = tuple[Path, Path]
"""The paths of the certificate and its key."""


class Tls:
    """The TLS context for new connections, reloaded when the content of its files changes."""

    def __init__(self, find: Callable[[datetime], Files], client_authority: Path | None, agenda: Agenda) -> None:
        """Load the context; CertificateError or OSError when the files cannot be used.

        `find` returns the files to use at a time, after making or renewing certificates that need it. It may block.
        With `client_authority` clients must show a certificate that this authority signed.
        """
        self._find = find
        self._client_authority = client_authority
        self._agenda = agenda
        self._tasks: set[asyncio.Task[None]] = set()
        self._contents, self.context = self._load(self._now())

    def start(self) -> None:
        """Start the timer that reads the files again."""
        self._agenda.after(CHECK_EVERY_MS, self._check)

    def request_reload(self) -> None:
        """Start a task that reads the files again."""
        task = asyncio.get_running_loop().create_task(self.reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def reload(self) -> None:
        try:
            # In a thread: making a new certificate starts a process and waits for it.
            contents, context = await asyncio.to_thread(self._load, self._now())
        except (CertificateError, OSError) as error:
            message = "the TLS files cannot be used; the previous certificate stays in use"
            event(log, logging.ERROR, message, reason=error)
            return
        if contents != self._contents:
            self._contents, self.context = contents, context
            event(log, logging.INFO, "new connections get the new certificate")

    def _check(self) -> None:
        self.start()
        self.request_reload()

    def _load(self, now: datetime) -> tuple[list[bytes], ssl.SSLContext]:
        certificate, key = self._find(now)
        context = server_context(certificate, key, self._client_authority)
        files = [certificate, key] + ([] if self._client_authority is None else [self._client_authority])
        return [path.read_bytes() for path in files], context

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._agenda.now() / 1000, UTC)
