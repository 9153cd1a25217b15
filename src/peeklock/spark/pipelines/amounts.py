"""Estimate the amount of work before a Spark session is started.

A pipeline over a few thousand messages spends most of its time on Spark's fixed costs: starting tasks and Python
processes, compiling code. For small amounts a pipeline uses one task and, where possible, only the driver. For large
and unknown amounts it uses Spark's defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.pipelines.entities import entity_options

SMALL_MESSAGES: Final = 10_000
SMALL_BYTES: Final = 64 << 20
MOST_FILES: Final = 200
"""A folder with more files is not small; their metadata is not read."""


def is_small(messages: int, octets: int) -> bool:
    """Whether an amount is small enough for one task."""
    return messages <= SMALL_MESSAGES and octets <= SMALL_BYTES


def hold_few_messages(administration: AdministrationClient, entities: Iterable[str]) -> bool:
    """Whether entities hold few messages, by their counts. Raises ClientError if the counts cannot be read."""
    messages = octets = 0
    for address in entities:
        options = entity_options(address)
        if "queue" in options:
            entity = administration.get(Kind.QUEUE, options["queue"])
        else:
            entity = administration.get(Kind.SUBSCRIPTION, options["subscription"], topic=options["topic"])
        messages += int(entity.runtime.get("MessageCount", 0))  # including the messages of its sub-queues
        octets += int(entity.runtime.get("SizeInBytes", 0))  # a subscription has none
    return is_small(messages, octets)


def is_small_folder(folder: str) -> bool:
    """Whether the Parquet files below a local folder have few messages; False for a folder on other storage."""
    address = urlsplit(folder)
    if address.scheme not in ("", "file"):
        return False
    path = Path(unquote(address.path) if address.scheme else folder)
    if not path.is_dir():  # the name of a table, for example
        return False
    messages = octets = 0
    with suppress(OSError, pa.ArrowInvalid):
        for number, file in enumerate(_data_files(path)):
            octets += file.stat().st_size
            messages += pq.read_metadata(file).num_rows
            if number >= MOST_FILES or not is_small(messages, octets):
                return False
        return True
    return False


def _data_files(path: Path) -> Iterable[Path]:
    """The files of the partitions, including replaced files, without a capture's own folders."""
    return (file for file in path.rglob("*.parquet") if not file.relative_to(path).parts[0].startswith("_"))
