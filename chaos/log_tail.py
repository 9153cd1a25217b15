"""The end of SQLite's write-ahead log after a kill: bytes that no commit covers may be torn, cut off or anything.

The wal-index says how many frames are committed. Only what lies behind them is touched: that is what a disk may have in
any state after a power cut, because nobody was told yet that it is written.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from random import Random
from typing import Final

_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_SALT_IN_LOG: Final = slice(16, 24)
_SALT_IN_INDEX: Final = slice(32, 40)
_INDEX_HEADER: Final = 48


def committed_bytes(database: Path) -> int | None:
    """How much of the log is committed; None when the index does not tell of the log as it is."""
    log, index = Path(f"{database}-wal"), Path(f"{database}-shm")
    if not log.exists() or not index.exists():
        return None
    with log.open("rb") as file:
        log_header = file.read(_LOG_HEADER)
    with index.open("rb") as file:
        header, copy = file.read(_INDEX_HEADER), file.read(_INDEX_HEADER)
    if len(log_header) < _LOG_HEADER or len(copy) < _INDEX_HEADER or header != copy:
        return None
    # A log that starts again has new salts in the index first: its bytes are still those of the one before, whole.
    if log_header[_SALT_IN_LOG] != header[_SALT_IN_INDEX]:
        return None
    page_size, frames = struct.unpack_from("=HI", header, 14)
    page_size = 65536 if page_size == 1 else page_size
    return _LOG_HEADER + int(frames) * (_FRAME_HEADER + int(page_size))


def tear(database: Path, chance: Random) -> str:
    """Do something to the bytes behind what is committed; says what. The broker must not run."""
    committed = committed_bytes(database)
    if committed is None:
        return "nothing: the log was about to start again"
    log = Path(f"{database}-wal")
    behind = log.stat().st_size - committed
    if behind < 0:
        return "nothing: the log is shorter than what is committed"
    with log.open("r+b") as file:
        at = committed + chance.randrange(behind + 1)
        match chance.choice(("cut", "zeros", "noise", "more")):
            case "cut":
                file.truncate(at)
                return f"cut off {committed + behind - at} of {behind} bytes"
            case "zeros":
                length = min(512 * chance.randint(1, 8), committed + behind - at)
                os.pwrite(file.fileno(), bytes(length), at)
                return f"{length} of {behind} bytes are zeros"
            case "noise":
                length = min(chance.randint(1, 4096), committed + behind - at)
                os.pwrite(file.fileno(), chance.randbytes(length), at)
                return f"{length} of {behind} bytes are noise"
            case _:
                noise = chance.randbytes(chance.randint(1, 8192))
                os.pwrite(file.fileno(), noise, committed + behind)
                return f"{len(noise)} bytes of noise behind {behind}"
