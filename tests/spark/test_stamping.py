"""Ids for rows that have none: the same at every attempt, never the same for two rows."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field

from peeklock.spark.stamping import BATCH, QUERY, Stamps, Write


@dataclass
class SparkTask:
    """What a task of Spark says of itself."""

    partition: int = 0
    properties: dict[str, str] = field(default_factory=dict)

    def partitionId(self) -> int:
        return self.partition

    def getLocalProperty(self, key: str) -> str | None:
        return self.properties.get(key)


QUERY_ID = "8ffca38f-d798-4f73-83db-97fd9446423c"


def in_batch(number: int, partition: int = 0) -> SparkTask:
    return SparkTask(partition, {QUERY: QUERY_ID, BATCH: str(number)})


def ids(stamps: Stamps, *rows: bytes) -> list[str]:
    return [stamps.stamp(row) for row in rows]


def test_rows_that_come_in_another_order_keep_their_ids() -> None:
    first = dict(zip((b"a", b"b", b"c"), ids(Stamps("w"), b"a", b"b", b"c"), strict=True))
    again = dict(zip((b"c", b"a", b"b"), ids(Stamps("w"), b"c", b"a", b"b"), strict=True))
    assert first == again
    assert len(set(first.values())) == 3


def test_rows_that_say_the_same_have_an_id_each() -> None:
    assert len(set(ids(Stamps("w"), b"a", b"a", b"a"))) == 3
    assert sorted(ids(Stamps("w"), b"a", b"b", b"a")) == sorted(ids(Stamps("w"), b"b", b"a", b"a"))


def test_where_one_part_of_a_row_ends_makes_a_difference() -> None:
    assert Stamps("w").stamp(b"ab", b"c") != Stamps("w").stamp(b"a", b"bc")


def test_rows_beyond_what_is_remembered_have_an_id_each_and_keep_it_in_the_same_order() -> None:
    rows = [b"a", b"b", b"c", b"c", b"a", b"d"]
    first = ids(Stamps("w", max_remembered=2), *rows)
    assert len(set(first)) == len(rows)
    assert ids(Stamps("w", max_remembered=2), *rows) == first


def test_a_replayed_batch_of_a_stream_has_the_same_ids_in_any_task() -> None:
    first = Write.begin().stamps(in_batch(7), streaming=True).stamp(b"row")
    assert Write.begin().stamps(in_batch(7), streaming=True).stamp(b"row") == first
    assert first.startswith(f"{QUERY_ID}/7/0/")


def test_batches_partitions_and_queries_do_not_share_ids() -> None:
    write = Write.begin()
    tasks = [
        in_batch(1),
        in_batch(2),
        in_batch(1, partition=1),
        SparkTask(0, {QUERY: QUERY_ID.replace("8", "9"), BATCH: "1"}),
    ]
    assert len({write.stamps(task, streaming=True).stamp(b"row") for task in tasks}) == len(tasks)


def test_all_attempts_of_one_batch_write_share_ids_and_another_write_does_not() -> None:
    write = Write.begin()
    carried: Write = pickle.loads(pickle.dumps(write))
    first = write.stamps(SparkTask(), streaming=False).stamp(b"row")
    assert carried.stamps(SparkTask(), streaming=False).stamp(b"row") == first
    assert Write.begin().stamps(SparkTask(), streaming=False).stamp(b"row") != first


def test_a_write_under_the_same_name_has_the_same_ids() -> None:
    first = Write.begin("nightly").stamps(SparkTask(), streaming=False).stamp(b"row")
    assert Write.begin("nightly").stamps(SparkTask(), streaming=False).stamp(b"row") == first
    assert Write.begin("daily").stamps(SparkTask(), streaming=False).stamp(b"row") != first


def test_a_named_write_in_a_foreach_batch_has_ids_of_its_batch() -> None:
    first = Write.begin("copy").stamps(in_batch(1), streaming=False).stamp(b"row")
    assert Write.begin("copy").stamps(in_batch(1), streaming=False).stamp(b"row") == first
    assert Write.begin("copy").stamps(in_batch(2), streaming=False).stamp(b"row") != first


def test_two_writes_without_a_name_in_one_foreach_batch_do_not_swallow_each_other() -> None:
    first = Write.begin().stamps(in_batch(1), streaming=False).stamp(b"row")
    assert Write.begin().stamps(in_batch(1), streaming=False).stamp(b"row") != first


def test_an_id_is_never_longer_than_the_service_accepts() -> None:
    task = SparkTask(2**31 - 1, {QUERY: QUERY_ID, BATCH: str(2**63 - 1)})
    stamps = Write.begin().stamps(task, streaming=True)
    stamps._max_remembered = 0
    stamps._count = 10**15
    assert len(stamps.stamp(b"row")) <= 128
