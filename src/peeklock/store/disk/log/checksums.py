"""CRC-32 as zlib computes it, by the fastest installed library: it is computed twice for every byte of every message.

For 1 KiB, zlib-ng takes 0.1 µs and the standard library 0.8 µs (docs/dependencies.md). Both give the same results, so a
store that was written with one can be read with the other.
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32 as crc32
except ImportError:  # no wheel for this platform
    from zlib import crc32 as crc32
