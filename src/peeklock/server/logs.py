"""Logging: one line per event on standard error, with `key=value` fields after the name of the event.

    2026-01-01T00:00:00.000Z INFO  peeklock.server listening host=127.0.0.1 port=5672

It uses the standard `logging`, so the log lines of libraries have the same form. A record is always one line: line ends
and control characters are escaped. Keys and signatures are masked. Lines caused by clients (those with the field
`peer`) cannot fill the disk: beyond a limit for each event and address, lines are omitted and their number is logged.
The modules that log must not pass bodies or tokens.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Mapping

LEVELS: dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
MASK = "***"
MAX_ALIKE = 50
"""Lines of one event for one client address that are written within `ALIKE_SECONDS`."""
ALIKE_SECONDS = 10.0
_MAX_KINDS = 1000
"""Pairs of event and address with a count of their own; beyond this number addresses share one count per event."""

_LEVEL_NAMES = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO ",
    logging.WARNING: "WARN ",
    logging.ERROR: "ERROR",
    logging.CRITICAL: "FATAL",
}
_Kind = tuple[str, int, str, str]
"""Logger, level, event and the client's address without its port. Lines of one kind are counted together."""
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BARE = re.compile(r"[^\s\"=\\]+")
# The name of a secret, then "=", ":" or "%3D", then the secret. A key ends at the end of a connection string's field, a
# signature also at the end of a query parameter. In doubt more is masked, not less. SharedAccessKeyName is no secret.
_SECRETS = re.compile(
    r"((?:SharedAccessKey|PrimaryKey|SecondaryKey)[\"']?\s*(?:=|:|%3D)\s*)[^\s;]+"
    r"|((?<![A-Za-z0-9_])sig[\"']?\s*(?:=|:|%3D)\s*)[^\s;&]+",
    re.IGNORECASE,
)
_SECRET_FIELDS = frozenset(
    {"sig", "signature", "key", "token", "password", "sharedaccesskey", "primary_key", "secondary_key"}
)


def configure_logging(level: str) -> None:
    """Log to standard error from `level` on; ValueError when the level is unknown.

    Libraries are logged from warning on: their info is about their own internals.
    """
    number = LEVELS.get(level.lower())
    if number is None:
        raise ValueError(f"the log level {level!r} is unknown: it must be one of {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogfmtFormatter())
    handler.addFilter(FloodFilter())
    root = logging.getLogger()
    for former in [each for each in root.handlers if isinstance(each.formatter, LogfmtFormatter)]:
        root.removeHandler(former)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("peeklock").setLevel(number)
    logging.captureWarnings(True)


def event(logger: logging.Logger, level: int, name: str, /, **fields: object) -> None:
    """Log an event by its name, with fields. An exception passed as `exc` is logged with its traceback."""
    if not logger.isEnabledFor(level):
        return
    exc = fields.pop("exc", None)
    if isinstance(exc, BaseException):
        logger.log(level, name, extra={"fields": fields}, exc_info=exc)
        return
    if exc is not None:
        fields["exc"] = exc
    logger.log(level, name, extra={"fields": fields})


def redact(text: str) -> str:
    """Return the text with everything masked that looks like a SAS key or signature."""
    return _SECRETS.sub(lambda match: f"{match[1] or match[2]}{MASK}", text)


class FloodFilter(logging.Filter):
    """Omits lines of one kind beyond the limit, and logs their number at the end of the interval.

    It applies to lines with the field `peer`, except at debug.
    """

    def __init__(self, most: int = MAX_ALIKE, seconds: float = ALIKE_SECONDS) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._lock = threading.Lock()
        self._seen: dict[_Kind, tuple[float, int]] = {}
        """By kind: when its count began, and the count."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields = getattr(record, "fields", None)
        if record.levelno <= logging.DEBUG or not isinstance(fields, Mapping) or "peer" not in fields:
            return True  # at debug every frame is logged
        kind = record.name, record.levelno, str(record.msg), str(fields["peer"]).rpartition(":")[0]
        now = time.monotonic()
        with self._lock:
            if len(self._seen) >= _MAX_KINDS and kind not in self._seen:
                self._forget(now)
                if len(self._seen) >= _MAX_KINDS:
                    kind = (*kind[:3], "")
            since, seen = self._seen.get(kind, (now, 0))
            if self._is_over(since, seen, now):
                since, seen = now, 0
            seen += 1
            self._seen[kind] = since, seen
        if seen == self._most + 1:
            # A thread, because a log filter may run without an event loop; at most one for each kind of line.
            timer = threading.Timer(self._seconds, self._log_omitted, (kind,))
            timer.daemon = True
            timer.start()
        return seen <= self._most

    def _is_over(self, since: float, seen: int, now: float) -> bool:
        """Return whether a count has ended. A count with omitted lines ends when their number is logged."""
        return seen <= self._most and now - since > self._seconds

    def _forget(self, now: float) -> None:
        for kind, (since, seen) in list(self._seen.items()):
            if self._is_over(since, seen, now):
                del self._seen[kind]

    def _log_omitted(self, kind: _Kind) -> None:
        with self._lock:
            omitted = self._seen.pop(kind)[1] - self._most
        name, level, message, address = kind
        event(logging.getLogger(name), level, f"{message}: further lines were omitted", address=address, lines=omitted)


class LogfmtFormatter(logging.Formatter):
    """Formats each record as one line."""

    def format(self, record: logging.LogRecord) -> str:
        moment, millis = divmod(int(record.created * 1000), 1000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment))
        level = _LEVEL_NAMES.get(record.levelno, record.levelname)
        line = f"{stamp}.{millis:03}Z {level} {record.name} {_escape(redact(record.getMessage()))}"
        fields = getattr(record, "fields", None)
        if isinstance(fields, Mapping):
            line += "".join(f" {_escape(str(key))}={_value(str(key), value)}" for key, value in fields.items())
        if record.exc_info and record.exc_info[0] is not None:
            line += f" exc={_quote(redact(self.formatException(record.exc_info)))}"
        if record.stack_info:
            line += f" stack={_quote(redact(record.stack_info))}"
        return line


def _value(key: str, value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if key.lower() in _SECRET_FIELDS:
        return MASK
    text = redact(str(value))
    return text if _BARE.fullmatch(text) and text.isprintable() else _quote(text)


def _quote(text: str) -> str:
    return '"' + _escape(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _escape(text: str) -> str:
    """Escape characters that could end the line or control a terminal."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else _ESCAPES.get(character) or _code(character) for character in text
    )


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
