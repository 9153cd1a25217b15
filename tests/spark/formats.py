"""The table format that tests capture into: `PEEKLOCK_TABLE_FORMAT`, if it has a build for this Spark."""

from __future__ import annotations

import os
from typing import Final

from peeklock.spark.pipelines.table_formats import FORMATS, Format

_NAME: Final = os.environ.get("PEEKLOCK_TABLE_FORMAT", "parquet")
FORMAT: Final[Format] = next(each for each in FORMATS if each == _NAME)
