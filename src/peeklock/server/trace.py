"""The frames of one connection in the log, at debug: `->` what we send, `<-` what we receive.

Only what kind of frame it is, its channel and its size. What is inside (bodies, tokens, names) is never looked at,
so it cannot get into the log.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from typing import Final

from peeklock.amqp import performatives, sasl
from peeklock.server.logs import event

_HEADER: Final = struct.Struct(">IBBH")
_LOOK: Final = 16
"""Bytes of a frame that are looked at: its header and, most often, the descriptor of its performative."""
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
    """Finds the frames in a stream of bytes, however it is cut."""

    def __init__(self) -> None:
        self._start = b""
        """Of a frame whose first bytes are not all there yet."""
        self._skip = 0
        """Bytes left of a frame that has been told."""
        self._lost = False

    def read(self, data: bytes) -> Iterator[tuple[str, int, int]]:
        """Name, channel and size of each frame that starts in the data; after bytes that are no frame, nothing."""
        data = self._start + data
        self._start = b""
        at = min(self._skip, len(data))
        self._skip -= at
        while at < len(data) and not self._lost:
            if len(data) - at < 8:
                self._start = data[at:]
                return
            if data.startswith(b"AMQP", at):
                yield "header", 0, 8
                at += 8
                continue
            size, offset, _, channel = _HEADER.unpack_from(data, at)
            if size < 8 or offset < 2:
                self._lost = True
                return
            if len(data) - at < min(size, _LOOK):
                self._start = data[at:]
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
