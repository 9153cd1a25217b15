"""Units of sizes."""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
