"""Groups the encoded messages of a record batch into runs: by entity, and by session or partition key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from peeklock.spark.encoding import Encoded, view
from peeklock.spark.parcels import Run


def runs_of_batch(
    batch: pa.RecordBatch, encoded: Encoded, entity: str | None, rows_before: int, source: Any = None
) -> Iterator[Run]:
    """Yield the messages of each group in the order of their rows. `entity` is that of all; None: see its column."""
    count = batch.num_rows
    if not count:
        return
    session_ids, partition_keys = _column(batch, "session_id"), _column(batch, "partition_key")
    entities = None if entity is not None else _column(batch, "entity")
    items, ids = encoded.items, encoded.ids
    numbers: Sequence[int] = range(count)
    starts = [0]
    codes = _codes(entities, session_ids, partition_keys)
    if codes is not None:
        order = pc.sort_indices(codes)  # stable
        codes, items, ids = codes.take(order), items.take(order), ids.take(order)
        numbers = order.to_pylist()
        changes = pc.not_equal(codes.slice(1), codes.slice(0, count - 1))
        starts += pc.add(pc.indices_nonzero(changes), 1).to_pylist()
    ends, octets = view(items)
    for start, stop in zip(starts, [*starts[1:], count], strict=True):
        row = numbers[start]
        session_id = None if session_ids is None else session_ids[row].as_py()
        partition_key = None if partition_keys is None else partition_keys[row].as_py()
        yield Run(
            entities[row].as_py() if entity is None and entities is not None else str(entity),
            session_id,
            partition_key,
            octets,
            ends[start : stop + 1],
            [rows_before + number for number in numbers[start:stop]],
            _Ids(ids, start),
            source,
        )


class _Ids:
    """Looks up the id of a message of a run on demand."""

    def __init__(self, ids: pa.StringArray, start: int) -> None:
        self._ids = ids
        self._start = start

    def __call__(self, at: int) -> str:
        return str(self._ids[self._start + at].as_py())


def _column(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    if index < 0 or batch.column(index).null_count == batch.num_rows:
        return None
    return batch.column(index)


def _codes(entities: pa.Array | None, session_ids: pa.Array | None, partition_keys: pa.Array | None) -> Any:
    """Return a group number for each row; None when all rows are in one group."""
    keys = session_ids
    if partition_keys is not None:
        keys = partition_keys if keys is None else pc.coalesce(keys, partition_keys)
    codes: Any = None
    for column in (entities, keys, None if session_ids is None else session_ids.is_valid()):
        if column is None:
            continue
        found = column.dictionary_encode(null_encoding="encode")
        if len(found.dictionary) > 1:
            indices = found.indices.cast(pa.int64())
            codes = indices if codes is None else pc.add(pc.multiply(codes, len(found.dictionary)), indices)
    return codes
