"""Entries have the same effect on the index alone, joined with others, and decoded from the log."""

from __future__ import annotations

import json
import random
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from store_harness import body, entity, message
from store_workload import Workload

from peeklock.store.base import ACTIVE, CLAIMED, DEFERRED, Changes, Counters, Run, StoreError
from peeklock.store.disk.commits.batch import Batch
from peeklock.store.disk.commits.entry import SECTIONS, Entry, runs_of
from peeklock.store.disk.commits.record import parameters_of, to_bytes
from peeklock.store.disk.index.connections import connect_writer
from peeklock.store.disk.index.schema import create
from peeklock.store.disk.index.writer import Writer
from peeklock.store.disk.keys import LENGTH_BITS, LENGTH_MASK, NUMBER_BITS
from peeklock.store.disk.log.records import PAYLOAD_HEAD
from peeklock.store.disk.log.segments import LogPosition


def made(changes: Changes, segment: int = 1, offset: int = 100) -> Entry:
    entry, _ = Entry.of(Batch(changes), segment, offset)
    return entry


def key(id: int, number: int) -> int:
    return id << NUMBER_BITS | number


class Index:
    """A real one, without a log."""

    def __init__(self, file: Path) -> None:
        self._file = file
        connection = connect_writer(file)
        create(connection)
        self._writer = Writer(connection, file)
        self._commit = 0

    def apply(self, *entries: Entry | dict[str, Any]) -> None:
        self._commit += 1
        parameters = [each.parameters() if isinstance(each, Entry) else each for each in entries]
        self._writer.apply(parameters, LogPosition(1, 1, self._commit), [])

    def rows(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self._file)) as connection:
            return connection.execute(statement).fetchall()

    def close(self) -> None:
        self._writer.close()


@contextmanager
def indexes(folder: Path, *names: str) -> Iterator[list[Index]]:
    opened = [Index(folder / name) for name in names]
    yield opened
    for each in opened:
        each.close()


def test_payloads_and_bodies_have_places_one_after_the_other() -> None:
    changes = Changes(
        appends=[(1, message(1, b"one")), (1, message(2, b"")), (1, message(3, b"three", body=body(7, b"seven")))],
        rewrites=[(1, message(9, b"nine"), 0, 5)],
    )
    entry, payloads = Entry.of(Batch(changes), 4, 100)
    whole = bytes(100) + b"".join(payloads)

    def content(segment: int, place: int) -> bytes:
        assert segment == 4
        return whole[place >> LENGTH_BITS :][: place & LENGTH_MASK]

    ((first, _, segment, places),) = entry.appends
    assert first == key(1, 1)
    assert [content(segment, place) for place in places] == [b"one", b""]
    ((copied, segment, place, _, copied_body),) = entry.copies
    assert (copied, copied_body, content(segment, place)) == (key(1, 3), 7, b"three")
    assert content(*entry.bodies[7]) == b"seven"
    assert content(*entry.rewrites[key(1, 9)][2:]) == b"nine"


def test_equal_neighbours_are_one_run_in_any_order_of_arrival() -> None:
    appends = [(id, message(number)) for number in range(1, 5) for id in (2, 1)]
    appends.append((1, message(5, annex=b"unlike the others")))
    entry = made(Changes(appends=appends))
    assert [(first, len(places)) for first, _, _, places in entry.appends] == [
        (key(1, 1), 4),
        (key(1, 5), 1),
        (key(2, 1), 4),
    ]


@pytest.mark.parametrize(
    ("keys", "runs"),
    [
        ([], []),
        ([5], [(5, 5)]),
        ([3, 1, 2], [(1, 3)]),
        ([9, 1, 4, 2, 8, 2], [(1, 2), (4, 4), (8, 9)]),
    ],
)
def test_keys_are_returned_as_runs(keys: list[int], runs: list[tuple[int, int]]) -> None:
    assert list(runs_of(keys)) == runs


@pytest.mark.parametrize("seed", range(3))
def test_an_encoded_entry_is_decoded_unchanged(seed: int) -> None:
    workload = Workload(seed)
    for _ in range(100):
        entry = made(workload.next()[0])
        assert parameters_of(to_bytes(entry)) == entry.parameters()


def test_an_empty_entry_is_decoded_as_an_empty_entry() -> None:
    entry = made(Changes())
    assert parameters_of(to_bytes(entry)) == entry.parameters()
    assert {section for section, value in entry.parameters().items() if value is not None} == {"bytes"}


def test_many_appends_are_split_and_other_changes_are_in_the_last_part() -> None:
    appends = [(id, message(number)) for id, count in ((1, 7), (2, 1), (3, 4)) for number in range(1, count + 1)]
    entry = made(Changes(appends=appends, removals=[(4, message(9))]))
    for most, sizes in ((12, [12]), (100, [12]), (4, [4, 4, 4]), (5, [5, 5, 2])):
        pieces = list(entry.pieces(most))
        runs = [json.loads(piece["appends"]) for piece in pieces]
        assert [sum(len(run[-1]) for run in of_piece) for of_piece in runs] == sizes
        found = [(run[0] + at, place) for of_piece in runs for run in of_piece for at, place in enumerate(run[-1])]
        assert found == [(first + at, place) for first, *_, places in entry.appends for at, place in enumerate(places)]
        assert [piece["first_key"] for piece in pieces] == [None] * (len(pieces) - 1) + [key(4, 9)]
    assert list(made(Changes()).pieces(10)) == [made(Changes()).parameters()]


def as_json(sections: dict[str, Any]) -> bytes:
    """As logs had them before."""
    parts = [
        b"" if sections[name] is None else sections[name] if name == "bytes" else str(sections[name]).encode()
        for name in SECTIONS
    ]
    return struct.pack(f"<{len(parts)}Q", *map(len, parts)) + b"".join(parts)


def test_numbers_of_another_form_are_refused() -> None:
    wanted = made(Changes(removals=[(1, message(1)), (1, message(5))])).parameters()
    for section, packed in (("runs", "\0" + "x" * 15), ("updates", "\0" + "x" * 16)):
        with pytest.raises(StoreError, match="format of a record"):
            parameters_of(as_json(wanted | {section: packed}))


def test_bytes_of_another_form_are_refused() -> None:
    whole = to_bytes(made(Changes(appends=[(1, message(1))])))
    for other in (whole + b"!", whole[:-1], whole[:20], b""):
        with pytest.raises(StoreError, match="format of a record"):
            parameters_of(other)


TOO_MUCH = {
    "a number that is removed": Changes(removals=[(1, message(2**70))]),
    "a number that is changed": Changes(updates=[(1, message(2**70), 0)]),
    "a number that is rewritten": Changes(rewrites=[(1, message(2**70), 0, 0)]),
    "an enqueued time": Changes(updates=[(1, message(1, delivery_count=2**63), 0)]),
    "an expiry": Changes(appends=[(1, message(1, expires_at=2**63))]),
    "an expiry of a copy": Changes(appends=[(1, message(1, expires_at=-(2**63) - 1, body=body(1)))]),
    "a body's key": Changes(appends=[(1, message(1, body=body(2**63)))]),
    "a state's time": Changes(session_states=[(1, "s", b"state", 2**63)]),
    "an advance": Changes(advances={1: 2**63}),
    "an entity that saw": Changes(seen=[(2**20 - 1, bytes(16), 5)]),
    "an entity's counter": Changes(entities={1: entity(1, counters=Counters(2**63))}),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_number_that_the_index_could_not_hold_never_gets_into_the_log(what: str) -> None:
    with pytest.raises(StoreError):
        to_bytes(made(TOO_MUCH[what]))


def test_messages_that_came_and_went_are_left_out() -> None:
    appends = made(Changes(appends=[(1, message(number)) for number in range(1, 11)]))
    removals = made(Changes(removals=[(1, message(number)) for number in (1, 2, 5, 9, 10)]))
    joined = Entry.join([appends, removals])
    assert [(first, len(places)) for first, _, _, places in joined.appends] == [(key(1, 3), 2), (key(1, 6), 3)]
    rest = made(Changes(removals=[(1, message(number)) for number in (3, 4, 6, 7, 8)]))
    assert Entry.join([appends, removals, rest]).appends == []


def test_messages_that_come_in_turn_to_many_entities_are_one_run_for_each(tmp_path: Path) -> None:
    """Each commit has one message for each; time goes on, and once it goes back."""
    times = (1000, 1000, 1007, 900, 2**41)
    entries = [
        made(Changes(appends=[(id, message(number, enqueued_at=at)) for id in (1, 2)]), offset=1000 * number)
        for number, at in enumerate(times, 1)
    ]
    entries.append(made(Changes(appends=[(1, message(6)), (2, message(6, expires_at=5))]), segment=2))
    removal = made(Changes(removals=[(1, message(1)), (2, message(3))]))
    joined = Entry.join(entries)
    assert [(first, len(places)) for first, _, _, places in joined.appends] == [
        (key(1, 1), 5),
        (key(2, 1), 5),
        (key(1, 6), 1),
        (key(2, 6), 1),
    ]
    assert [entry.appends[0][3] for entry in entries[:5]] == [
        [1000 * number + PAYLOAD_HEAD << LENGTH_BITS | 9] for number in range(1, 6)
    ]
    with indexes(tmp_path, "alone", "joined", "without") as (alone, at_once, without):
        for index in (alone, at_once, without):
            index.apply(made(Changes(entities={id: entity(id) for id in (1, 2)})))
        alone.apply(*entries)
        at_once.apply(joined)
        found = at_once.rows("SELECT * FROM message")
        assert found == alone.rows("SELECT * FROM message")
        assert tuple(at for (at,) in at_once.rows("SELECT enqueued_at FROM message LIMIT 5")) == times
        alone.apply(removal)
        without.apply(*Entry.join([*entries, removal]).pieces(2))
        assert without.rows("SELECT * FROM message") == alone.rows("SELECT * FROM message") != found


def test_copies_that_came_and_went_are_left_out_and_their_body_goes(tmp_path: Path) -> None:
    copies = [(id, message(1, body=body(7, b"seven"))) for id in (1, 2)]
    entries = [made(Changes(appends=copies)), made(Changes(removals=copies[:1]))]
    with indexes(tmp_path, "index") as (index,):
        index.apply(made(Changes(entities={id: entity(id) for id in (1, 2)})))
        joined = Entry.join(entries)
        assert [copied for copied, *_ in joined.copies] == [key(2, 1)]
        index.apply(joined)
        assert index.rows("SELECT key FROM body") == [(7,)]
        index.apply(made(Changes(removals=copies[1:])))
        assert index.rows("SELECT key FROM body") == []
        entries.append(made(Changes(removals=copies[1:])))
        index.apply(Entry.join(entries))
        assert index.rows("SELECT key FROM message") == index.rows("SELECT key FROM body") == []


@pytest.mark.parametrize("seed", range(4))
def test_joined_entries_have_the_same_effect_as_in_sequence(tmp_path: Path, seed: int) -> None:
    """And so do those that were bytes in between, as after a crash."""
    workload = Workload(seed)
    randomness = random.Random(seed)
    places: dict[int, set[tuple[int, int]]] = {}
    with indexes(tmp_path, "alone", "joined", "replayed") as (alone, joined, replayed):
        waiting: list[Entry] = []

        def join() -> None:
            if waiting:
                joined.apply(*Entry.join(waiting).pieces(randomness.randrange(1, 30)))
                waiting.clear()

        offset = 100
        for step in range(1, 301):
            changes, is_refused = workload.next()
            if is_refused:
                continue
            entry, payloads = Entry.of(Batch(changes), step // 20 + 1, offset)
            offset += sum(map(len, payloads)) + 1000
            for body_key, place in entry.bodies.items():
                places.setdefault(body_key, set()).add(place)
            alone.apply(entry)
            replayed.apply(parameters_of(to_bytes(entry)))
            if entry.is_applied_alone:
                join()
                joined.apply(entry)
            else:
                waiting.append(entry)
            if randomness.random() < 0.1:
                join()
            if step % 100 == 0:
                join()
                wanted = _tables(alone, workload)
                assert _tables(replayed, workload) == wanted
                assert _tables(joined, workload) == wanted
                for body_key, *place in joined.rows("SELECT key, segment, place FROM body"):
                    assert tuple(place) in places[body_key]
                _assert_extents_have_all(joined)
                _assert_extents_have_all(alone)


def test_a_mark_of_damage_counts_a_message_off_the_state_that_it_is_in_by_then(tmp_path: Path) -> None:
    """It was read as active; then it was claimed, deferred or removed, or another mark came first."""
    with indexes(tmp_path, "index") as (index,):
        index.apply(made(Changes(entities={1: entity(1)})))
        index.apply(made(Changes(appends=[(1, message(number, b"1")) for number in range(1, 6)])))
        index.apply(
            made(
                Changes(
                    run_updates=[(1, Run(1, 2, 2), ACTIVE, CLAIMED)],
                    updates=[(1, message(3, state=DEFERRED), ACTIVE)],
                    removals=[(1, message(4, b"1"))],
                )
            )
        )
        for numbers in ([1, 3], [1, 4, 5, 6]):
            batch = Batch(Changes())
            for number in numbers:
                batch.mark_damaged(1, number)
            entry, _ = Entry.of(batch, 1, 100)
            assert entry.is_applied_alone
            index.apply(parameters_of(to_bytes(entry)))
        assert index.rows("SELECT key, state FROM message") == [
            (key(1, n), s) for n, s in ((1, 3), (2, 4), (3, 3), (5, 3))
        ]
        counters = "active, deferred, scheduled, claimed, damaged, size_in_bytes"
        assert index.rows(f"SELECT {counters} FROM entity") == [(0, 0, 0, 1, 3, 4)]


def _tables(index: Index, workload: Workload) -> dict[str, list[Any]]:
    # Rows of dropped entities are ignored, because they are deleted later.
    history = index.rows(f"SELECT key, seen FROM history WHERE key >> {NUMBER_BITS} IN (SELECT id FROM entity)")
    sessions = "SELECT entity, session_id, updated_at, state FROM session WHERE entity IN (SELECT id FROM entity)"
    return {
        "entity": index.rows("SELECT * FROM entity"),
        "message": index.rows("SELECT * FROM message"),
        # Without places: a body that was deleted and stored again may have either place.
        "body": index.rows("SELECT key FROM body"),
        "session": sorted(index.rows(sessions)),
        "claim": sorted(index.rows("SELECT * FROM claim WHERE entity IN (SELECT id FROM entity)")),
        "dropped": index.rows("SELECT * FROM dropped_entity"),
        "history": [
            row
            for row in history
            if row[0] & (1 << NUMBER_BITS) - 1 >= workload.forgotten.get(row[0] >> NUMBER_BITS, 0)
        ],
    }


def _assert_extents_have_all(index: Index) -> None:
    outside = """
        SELECT message.key FROM message WHERE segment IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM extent WHERE extent.segment = message.segment AND message.key BETWEEN first_key AND last_key
        )
    """
    assert index.rows(outside) == []


def test_the_last_of_two_changes_is_effective(tmp_path: Path) -> None:
    entries = [
        made(Changes(appends=[(1, message(number, session_id="s")) for number in range(1, 5)])),
        made(Changes(updates=[(1, message(1, delivery_count=1), 0), (1, message(2, delivery_count=1), 0)])),
        made(Changes(rewrites=[(1, message(2, b"new", state=1), 0, 9), (1, message(3, b"new", state=1), 0, 9)]), 2),
        made(Changes(updates=[(1, message(3, delivery_count=5), 1)])),
        made(Changes(rewrites=[(1, message(2, b"newer", state=2, annex=b"a"), 1, 3)]), 3),
        made(Changes(removals=[(1, message(4))])),
    ]
    with indexes(tmp_path, "joined") as (index,):
        index.apply(made(Changes(entities={1: entity(1)})))
        index.apply(Entry.join(entries))
        found = index.rows(
            "SELECT key & 15, state, delivery_count, annex, segment, place & 255, session_id FROM message"
        )
        assert found == [
            (1, 0, 1, None, 1, 9, "s"),
            (2, 2, 0, b"a", 3, 5, "s"),
            (3, 0, 5, None, 2, 3, "s"),
        ]


def test_a_message_that_was_rewritten_meanwhile_is_not_moved(tmp_path: Path) -> None:
    moves = Batch(Changes())
    moves.move(key(1, 1), b"moved", 1)
    moves.move(key(1, 2), b"moved", 1)
    moves.move(key(1, 3), b"moved", 1)
    moves.move_body(7, b"moved", 1)
    moved, _ = Entry.of(moves, 3, 500)
    appends = [(1, message(1)), (1, message(2)), (1, message(3)), (1, message(4, body=body(7, b"seven")))]
    rewritten = made(Changes(rewrites=[(1, message(2, b"rewritten"), 0, 9)], removals=[(1, message(3))]), 2)
    for order in ([rewritten, moved], [moved, rewritten]):
        for name, entries in (("alone", order), ("joined", [Entry.join(order)])):
            with indexes(tmp_path, f"{name}-{order.index(moved)}") as (index,):
                index.apply(made(Changes(entities={1: entity(1)}, appends=appends)))
                index.apply(*entries)
                assert index.rows("SELECT key & 15, segment FROM message") == [(1, 3), (2, 2), (4, 1)]
                assert index.rows("SELECT segment, place & 255 FROM body") == [(3, 5)]
                _assert_extents_have_all(index)
