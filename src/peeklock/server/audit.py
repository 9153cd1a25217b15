"""The audit log: a file of JSON lines, one for each thing that was denied, administered or changed in bulk.

Only its owner can read the file. Lines are written as they happen; a line that cannot be written is logged and counted,
and harms nobody. Clients that are denied without end cannot fill the disk: of their lines some are written, the rest is
one line with a number.
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
from peeklock.broker.audit import DENIED
from peeklock.server.logs import event, redact
from peeklock.server.peers import address_of
from peeklock.server.secrets import warn_of_readers

log = logging.getLogger(__name__)

MAX_ALIKE: Final = 50
"""Lines of one denied action that one address may cause within `ALIKE_MS`."""
ALIKE_MS: Final = 10_000
_MAX_KINDS: Final = 1000
"""Actions and addresses that are counted apart; beyond them addresses share a count."""
_MAX_TEXT: Final = 300
"""Characters of a field that a client chooses."""

_Kind = tuple[str, str]
"""Action and address."""


class AuditLog:
    """Appends to the file. OSError when it cannot be opened."""

    def __init__(self, path: Path, agenda: Agenda, on_failure: Callable[[], None]) -> None:
        self._path = path
        self._agenda = agenda
        self._on_failure = on_failure
        self._denied: dict[_Kind, int] = {}
        self._is_failing = False
        self._is_torn = False
        """The last line is not whole: the next one begins with a line end."""
        self._file = self._open()

    def record(
        self,
        action: str,
        outcome: str,
        *,
        connection: str,
        client: str = "",
        entity: str = "",
        count: int | None = None,
        reason: str = "",
    ) -> None:
        address = address_of(connection)
        if outcome == DENIED and self._is_left_out((action, address)):
            return
        self._write(
            {
                "time": self._time(),
                "connection": connection,
                "client": client[:_MAX_TEXT],
                "address": address,
                "action": action,
                "entity": entity[:_MAX_TEXT],
                "count": count,
                "outcome": outcome,
                "reason": redact(reason.partition("\n")[0][:_MAX_TEXT]),
            }
        )

    def reopen(self) -> None:
        """Go on in a new file of the same name, after the old one was moved away. A failure keeps the old one."""
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
            self._tell_left_out(kind)
        os.close(self._file)

    def _open(self) -> int:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        warn_of_readers(self._path, "the audit log")
        return file

    def _is_left_out(self, kind: _Kind) -> bool:
        if kind not in self._denied:
            if len(self._denied) >= _MAX_KINDS:
                kind = kind[0], ""
            if kind not in self._denied:
                self._denied[kind] = 0
                self._agenda.after(ALIKE_MS, partial(self._tell_left_out, kind))
        self._denied[kind] += 1
        return self._denied[kind] > MAX_ALIKE

    def _tell_left_out(self, kind: _Kind) -> None:
        left_out = self._denied.pop(kind, 0) - MAX_ALIKE
        if left_out > 0:
            action, address = kind
            reason = "further lines of this action and address were left out"
            line = {"time": self._time(), "connection": "", "client": "", "address": address, "action": action}
            self._write({**line, "entity": "", "count": left_out, "outcome": DENIED, "reason": reason})

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
                event(log, logging.INFO, "the audit log is written again", file=self._path)

    def _failed(self, error: OSError) -> None:
        """Told once, until it works again; counted every time."""
        self._on_failure()
        if not self._is_failing:
            self._is_failing = True
            reason = error.strerror or str(error)
            event(log, logging.ERROR, "the audit log cannot be written", file=self._path, reason=reason)
