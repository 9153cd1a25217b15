"""How much there is to do, as far as it can be known before a Spark is started.

A pipeline over a few thousand messages spends its time on what Spark does for any number of them: tasks, Python
programs, compiled code. What is small is done with one task each and, where that is possible, by the driver itself; all
else is left as it is, also when the amount is not known.
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
"""That are looked into; more are a sign that much was captured."""


def is_small(messages: int, octets: int) -> bool:
    return messages <= SMALL_MESSAGES and octets <= SMALL_BYTES


def hold_little(administration: AdministrationClient, entities: Iterable[str]) -> bool:
    """Whether the counters of the entities say that they have few messages; ClientError when they cannot be read."""
    messages = octets = 0
    for address in entities:
        options = entity_options(address)
        if "queue" in options:
            entity = administration.get(Kind.QUEUE, options["queue"])
        else:
            entity = administration.get(Kind.SUBSCRIPTION, options["subscription"], topic=options["topic"])
        messages += int(entity.runtime.get("MessageCount", 0))  # with those of its sub-queues
        octets += int(entity.runtime.get("SizeInBytes", 0))  # a subscription has none
    return is_small(messages, octets)


def is_small_folder(folder: str) -> bool:
    """Whether the Parquet files below a folder of this machine have few messages; False for a folder elsewhere."""
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
    """Those of partitions, also files that were replaced; not what a capture keeps beside them."""
    return (file for file in path.rglob("*.parquet") if not file.relative_to(path).parts[0].startswith("_"))
