"""The audit log: a file of JSON lines, one for each denial, each administrative action and each change in bulk.

Only its owner can read the file. Events are written at once. A line that cannot be written is logged and counted, and
does not stop the broker. The number of lines for denied clients is limited, so that they cannot fill the disk: beyond
the limit, one line has the number of lines that were omitted.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from peeklock.broker.agenda import Agenda
from peeklock.broker.audit import DENIED, AuditEvent
from peeklock.server.logs import event as log_event
from peeklock.server.logs import redact
from peeklock.server.peers import address_of
from peeklock.server.secrets import warn_of_readers

log = logging.getLogger(__name__)

MAX_ALIKE: Final = 50
"""Lines written for one denied action of one address within `ALIKE_MS`."""
ALIKE_MS: Final = 10_000
_MAX_KINDS: Final = 1000
"""Pairs of action and address with a count of their own; beyond this number addresses share one count per action."""
_MAX_TEXT: Final = 300
"""Characters of a field whose content a client chooses; the rest is cut off."""

_Kind = tuple[str, str]
"""Action and address."""


class AuditLog:
    """Appends events to the file."""

    def __init__(self, path: Path, agenda: Agenda, on_failure: Callable[[], None]) -> None:
        """Open the file; OSError when that fails. `on_failure` is called for every line that cannot be written."""
        self._path = path
        self._agenda = agenda
        self._on_failure = on_failure
        self._denied: dict[_Kind, int] = {}
        self._is_failing = False
        self._is_torn = False
        """The last line was written in part: the next write begins with a line end."""
        self._file = self._open()

    def record(self, event: AuditEvent) -> None:
        address = address_of(event.connection)
        if event.outcome == DENIED and self._is_omitted((event.action, address)):
            return
        self._write_event(event, address)

    def reopen(self) -> None:
        """Open a file of the same name again, after the old one was moved. If that fails the old one stays in use."""
        try:
            file = self._open()
        except OSError as error:
            self._failed(error)
            return
        os.close(self._file)
        self._file = file
        self._is_torn = False

    def close(self) -> None:
        for kind in list(self._denied):
            self._write_omitted(kind)
        os.close(self._file)

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        warn_of_readers(self._path, "the audit log")
        return file

    def _is_omitted(self, kind: _Kind) -> bool:
        """Count a denial; return whether it is beyond the limit. The first one starts the interval of the count."""
        if kind not in self._denied:
            if len(self._denied) >= _MAX_KINDS:
                kind = kind[0], ""
            if kind not in self._denied:
                self._denied[kind] = 0
                self._agenda.after(ALIKE_MS, partial(self._write_omitted, kind))
        self._denied[kind] += 1
        return self._denied[kind] > MAX_ALIKE

    def _write_omitted(self, kind: _Kind) -> None:
        """Write the number of omitted lines of this kind, if there are any, and end its count."""
        omitted = self._denied.pop(kind, 0) - MAX_ALIKE
        if omitted > 0:
            action, address = kind
            reason = "further lines of this action and address were omitted"
            event = AuditEvent(action=action, outcome=DENIED, connection="", count=omitted, reason=reason)
            self._write_event(event, address)

    def _write_event(self, event: AuditEvent, address: str) -> None:
        self._write(
            {
                "time": self._time(),
                "connection": event.connection,
                "client": event.client[:_MAX_TEXT],
                "address": address,
                "action": event.action,
                "entity": event.entity[:_MAX_TEXT],
                "count": event.count,
                "outcome": event.outcome,
                "reason": redact(event.reason.partition("\n")[0][:_MAX_TEXT]),
            }
        )

    def _time(self) -> str:
        moment = datetime.fromtimestamp(self._agenda.now() / 1000, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def _write(self, line: dict[str, object]) -> None:
        data = (json.dumps(line) + "\n").encode()
        if self._is_torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError as error:
            self._is_torn = self._is_torn or written > 0
            self._failed(error)
        else:
            self._is_torn = False
            if self._is_failing:
                self._is_failing = False
                log_event(log, logging.INFO, "the audit log can be written again", file=self._path)

    def _failed(self, error: OSError) -> None:
        """Count a failure. Only the first one is logged, until a write succeeds."""
        self._on_failure()
        if not self._is_failing:
            self._is_failing = True
            reason = error.strerror or str(error)
            log_event(log, logging.ERROR, "the audit log cannot be written", file=self._path, reason=reason)
