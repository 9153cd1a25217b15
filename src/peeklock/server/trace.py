"""The frames of one connection in the log, at debug: `->` for sent frames, `<-` for received ones.

A line has the frame's kind, its channel and its size. The content (bodies, tokens, names) is never decoded, so it
cannot get into the log.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Final

from peeklock.amqp import performatives, sasl
from peeklock.server.logs import event

_HEADER: Final = struct.Struct(">IBBH")
_PREFIX: Final = 16
"""Bytes of a frame that are needed: its header and, without an extended header, the descriptor of its performative."""
_KINDS: Final = (
    performatives.Open,
    performatives.Begin,
    performatives.Attach,
    performatives.Flow,
    performatives.Transfer,
    performatives.Disposition,
    performatives.Detach,
    performatives.End,
    performatives.Close,
    sasl.SaslMechanisms,
    sasl.SaslInit,
    sasl.SaslOutcome,
)
_NAMES: Final = {kind.CODE: kind.__name__ for kind in _KINDS}


class Trace:
    """Logs the frames in both directions."""

    def __init__(self, log: logging.Logger, peer: str) -> None:
        self._log = log
        self._peer = peer
        self._in = FrameReader()
        self._out = FrameReader()

    def received(self, data: bytes) -> None:
        self._write("<-", self._in, data)

    def sent(self, data: bytes) -> None:
        self._write("->", self._out, data)

    def _write(self, arrow: str, reader: FrameReader, data: bytes) -> None:
        for name, channel, size in reader.read(data):
            event(self._log, logging.DEBUG, f"{arrow} {name}", peer=self._peer, channel=channel, size=size)


class FrameReader:
    """Finds the frames in a byte stream that arrives in pieces of any size."""

    def __init__(self) -> None:
        self._prefix = b""
        """The bytes received of a frame whose first bytes are not complete yet."""
        self._skip = 0
        """Bytes still to come of a frame that was already yielded."""
        self._is_invalid = False
        """The stream had bytes that are not a frame, so that later frames cannot be found."""

    def read(self, data: bytes) -> Iterator[tuple[str, int, int]]:
        """Yield name, channel and size of each frame that starts in the data; nothing after an invalid frame."""
        data = self._prefix + data
        self._prefix = b""
        at = min(self._skip, len(data))
        self._skip -= at
        while at < len(data) and not self._is_invalid:
            if len(data) - at < 8:
                self._prefix = data[at:]
                return
            if data.startswith(b"AMQP", at):
                yield "header", 0, 8
                at += 8
                continue
            size, offset, _, channel = _HEADER.unpack_from(data, at)
            if size < 8 or offset < 2:
                self._is_invalid = True
                return
            if len(data) - at < min(size, _PREFIX):
                self._prefix = data[at:]
                return
            yield _name(data, at + 4 * offset, at + size), channel, size
            end = at + size
            self._skip = max(0, end - len(data))
            at = min(end, len(data))


def _name(data: bytes, at: int, end: int) -> str:
    if at >= end:
        return "heartbeat"
    descriptor = data[at : at + 3]
    return _NAMES.get(descriptor[2], "unknown") if len(descriptor) == 3 and descriptor[:2] == b"\x00\x53" else "unknown"
