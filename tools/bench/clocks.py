"""Clocks around the steps of the pipeline, in every process that runs one: the times are lines of one file.

Spark's own figures tell how long it waited for the source or the sink, not what those did meanwhile. Clocks are put
around public methods; nothing else of the pipeline is changed.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from peeklock.spark.source import ServiceBusDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

_FILE: Final = "PEEKLOCK_BENCH_CLOCKS"


class ClockedSource(ServiceBusDataSource):
    """The data source with clocks in the process that claims and settles for a stream."""

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        _clock_claims()
        return super().streamReader(schema)


class Clocks:
    """The measured times. Create it before Spark starts: Spark's processes inherit the path of the file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clocks"
        self._file.touch()
        os.environ[_FILE] = str(self._file)
        self.path = folder / "found"
        """The first folder on the module path of Spark's workers: it has the data source with clocks."""
        self.path.mkdir()
        source = "from tools.bench.clocks import ClockedSource as DefaultSource\n"
        (self.path / "pyspark_servicebus.py").write_text(source)

    def start(self) -> None:
        """Add clocks in this process: to the sink, and to the settling after the end."""
        from peeklock.spark.pipelines.files import LocalFiles
        from peeklock.spark.pipelines.lake import Lake

        _clock_claims()
        _clock(Lake, "add_batch")
        _clock(Lake, "write")
        _clock(LocalFiles, "move")

    def seconds(self) -> dict[str, float]:
        """Return the total seconds of each step so far."""
        sums: dict[str, float] = defaultdict(float)
        for line in self._file.read_text().splitlines():
            step, took = json.loads(line)
            sums[step] += took
        return dict(sums)


def _clock_claims() -> None:
    from peeklock.spark.broker_claims import BrokerClaims

    _clock(BrokerClaims, "next")
    _clock(BrokerClaims, "settle")


def _clock(owner: type, method: str) -> None:
    """Add clocks to this process. Called once."""
    work = getattr(owner, method)
    if hasattr(work, "__wrapped__"):
        return

    @functools.wraps(work)
    def clocked(*arguments: Any, **named: Any) -> Any:
        began = time.monotonic()
        try:
            return work(*arguments, **named)
        finally:
            line = json.dumps([f"{owner.__name__}.{method}", time.monotonic() - began])
            with Path(os.environ[_FILE]).open("a") as file:
                file.write(f"{line}\n")

    setattr(owner, method, clocked)
