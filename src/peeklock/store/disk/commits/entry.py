"""Entries for the index: batches whose payloads have places in the log, and several batches joined into one.

An entry is converted to the parameters of one SQLite statement.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...base import Counters
from ..keys import LENGTH_BITS, NUMBER_BITS
from ..log.records import PAYLOAD_HEAD, payload_head, payload_seed
from ..turns import yield_between
from .batch import Batch, Changed, Columns, counter_row

SECTIONS: Final = (
    "bytes",
    "entities",
    "appends",
    "bodies",
    "copies",
    "updates",
    "rewrites",
    "moves",
    "body_moves",
    "first_key",
    "last_key",
    "runs",
    "freed",
    "run_updates",
    "run_removals",
    "damaged",
    "claims",
    "session_states",
    "seen",
    "forgotten",
    "deltas",
    "dropped",
    "extents",
)

_RUNS_PER_STEP: Final = 256
_ENTRY_RUNS: Final = 8
"""How long entries are joined before the GIL is released, some tenths of a millisecond: in runs; each entry counts as
`_ENTRY_RUNS` besides its own runs."""

_SHORT_RUN: Final = 8
"""Runs with fewer messages than this are joined with the run before them, if possible."""

AppendRun = tuple[int, Columns, int, list[Any]]
"""Appended messages with consecutive keys and equal columns: first key, columns, segment, places of the payloads.

The place of a message with another enqueued_at than the first message's is a text: the place, a space, and how many
milliseconds later it was enqueued.
"""

encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Entry:
    """Changes whose payloads are in the log. A place has the offset in the high bits and the length in the low 32."""

    def __init__(self) -> None:
        self.entities: list[Any] = []
        self.appends: list[AppendRun] = []
        self.copies: list[tuple[int, int, int, Columns, int]] = []
        """Key, segment, place, columns, key of the body."""
        self.bodies: dict[int, tuple[int, int]] = {}
        """By key: segment, place."""
        self.updates: dict[int, Changed] = {}
        self.rewrites: dict[int, tuple[Changed, bytes | None, int, int]] = {}
        """By key: changed columns, annex, segment, place."""
        self.moves: list[tuple[int, int, int, int]] = []
        """Key, previous segment, new segment, new place."""
        self.body_moves: list[tuple[int, int, int, int]] = []
        self.removals: list[int] = []
        self.freed: set[int] = set()
        self.run_updates: list[tuple[int, int, int, int]] = []
        """First key, last key, previous state, new state."""
        self.run_removals: list[tuple[int, int, int]] = []
        """First key, last key, previous state."""
        self.damaged: list[int] = []
        self.claims: dict[tuple[int, bytes], bytes | None] = {}
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        self.seen: dict[int, list[bytes]] = {}
        self.forgotten: dict[int, int] = {}
        self.deltas: dict[int, Counters] = {}
        self.dropped: list[int] = []
        self.rows = 0
        self.payload_bytes = 0
        """The length of the payloads in the log, with their heads."""
        self.size = 0
        """The length of the record's end in the log."""
        self.record_at = 0
        """The offset of the record in its segment."""
        self.is_applied_alone = False
        """Whether the entry must not be joined with others."""

    @classmethod
    def of(cls, batch: Batch, segment: int, offset: int) -> tuple[Entry, list[bytes]]:
        """Create the entry of a batch whose payloads will be written at this offset of this segment.

        The second result has the payloads in the order in which they must be written, each after its head.
        """
        entry = cls()
        entry.entities, entry.dropped = batch.entities, batch.dropped
        entry.updates, entry.removals, entry.freed = batch.updates, batch.removals, batch.freed
        entry.run_updates, entry.run_removals, entry.claims = batch.run_updates, batch.run_removals, batch.claims
        entry.damaged = batch.damaged
        entry.session_states, entry.seen, entry.forgotten = batch.session_states, batch.seen, batch.forgotten
        entry.deltas = batch.deltas
        entry.rows, entry.is_applied_alone = batch.rows, batch.is_applied_alone
        payloads: list[bytes] = []
        end = entry._place_appends(batch, segment, offset, payloads)
        end = entry._place_others(batch, segment, end, payloads)
        entry.payload_bytes = end - offset
        return entry, payloads

    def _place_appends(self, batch: Batch, segment: int, offset: int, payloads: list[bytes]) -> int:
        seed = payload_seed(segment)
        for key, columns, of_run in sorted(batch.appends, key=_first_key):
            places: list[int] = []
            for payload in of_run:
                length = len(payload)
                offset += PAYLOAD_HEAD
                places.append(offset << LENGTH_BITS | length)
                payloads.append(payload_head(payload, seed, offset))
                payloads.append(payload)
                offset += length
            self.appends.append((key, columns, segment, places))
        return offset

    def _place_others(self, batch: Batch, segment: int, offset: int, payloads: list[bytes]) -> int:
        seed = payload_seed(segment)

        def place(payload: bytes) -> int:
            nonlocal offset
            offset += PAYLOAD_HEAD
            placed = offset << LENGTH_BITS | len(payload)
            payloads.append(payload_head(payload, seed, offset))
            payloads.append(payload)
            offset += len(payload)
            return placed

        for body, data in batch.bodies.items():
            self.bodies[body] = (segment, place(data))
        last, placed = None, 0
        for key, payload, columns, body in batch.copies:
            if payload is not last:  # consecutive copies of one message mostly share the payload
                last, placed = payload, place(payload)
            self.copies.append((key, segment, placed, columns, body))
        for key, (changed, payload, annex) in batch.rewrites.items():
            self.rewrites[key] = (changed, annex, segment, place(payload))
        for key, payload, before in batch.moves:
            self.moves.append((key, before, segment, place(payload)))
        for key, data, before in batch.body_moves:
            self.body_moves.append((key, before, segment, place(data)))
        return offset

    @classmethod
    def join(cls, entries: Iterable[Entry]) -> Entry:
        """Join entries into one with the same effect. None of them may be `is_applied_alone`.

        Messages that one entry appends and a later one removes are left out.
        """
        joined = cls()
        ends: dict[int, AppendRun] = {}
        """Short runs, by the key after the last."""
        for entry in yield_between(entries, _RUNS_PER_STEP, _runs_in):
            for run in entry.appends:
                joined._join_run(run, ends)
            joined.copies += entry.copies
            for key, place in entry.bodies.items():
                joined.bodies.setdefault(key, place)
            for key, changed in entry.updates.items():
                if key in joined.rewrites:
                    joined.rewrites[key] = (changed, *joined.rewrites[key][1:])
                else:
                    joined.updates[key] = changed
            for key, rewrite in entry.rewrites.items():
                joined.updates.pop(key, None)
                joined.rewrites[key] = rewrite
            joined.moves += entry.moves
            joined.body_moves += entry.body_moves
            # A removed sequence number is never reused, so no later entry refers to it.
            joined.removals += entry.removals
            joined.freed |= entry.freed
            joined.claims |= entry.claims
            joined.session_states |= entry.session_states
            for at, seen in entry.seen.items():
                joined.seen[at] = joined.seen[at] + seen if at in joined.seen else seen
            for id, before in entry.forgotten.items():
                joined.forgotten[id] = max(before, joined.forgotten.get(id, 0))
            for id, delta in entry.deltas.items():
                if id not in joined.deltas:
                    joined.deltas[id] = Counters()
                joined.deltas[id].add(delta)
        if joined.removals and joined.appends:
            joined.appends = list(
                yield_between(_without(joined.appends, list(runs_of(joined.removals))), _RUNS_PER_STEP)
            )
        if joined.removals and joined.copies:
            removed = set(joined.removals)
            joined.copies = [copy for copy in joined.copies if copy[0] not in removed]
        return joined

    def _join_run(self, run: AppendRun, ends: dict[int, AppendRun]) -> None:
        """Add a run; a short one is joined with the run before it, if the columns are equal except for enqueued_at.

        If consecutive messages go to different queues, all runs are short, and the neighbours of a run are in slightly
        earlier commits.
        """
        key, columns, segment, places = run
        if len(places) >= _SHORT_RUN:
            self.appends.append(run)
            return
        before = ends.pop(key, None)
        if before is None or before[2] != segment or not _differ_by_time(before[1], columns):
            before = (key, columns, segment, places[:])
            self.appends.append(before)
        else:
            later = columns[2] - before[1][2]
            before[3].extend([f"{place} {later}" for place in places] if later else places)
        ends[key + len(places)] = before

    def parameters(self) -> dict[str, Any]:
        """Return the row to insert into the writer's `entry` view.

        `first_key` and `last_key` are the longest run of removals. Every other section is None or a JSON array, mostly
        of arrays. Byte strings are in `bytes`; the sections refer to them by position (from 1) and length.
        """
        return self._parameters(self.appends)

    def pieces(self, max_appends: int) -> Iterator[dict[str, Any]]:
        """Yield parameters of several statements that together have the effect of this entry, in this order.

        Each appends at most `max_appends` messages.
        """
        pieces = list(_pieces(self.appends, max_appends))
        for appends in pieces[:-1]:
            piece = Entry()
            # Creating an entity first deletes the rows of a dropped one with the same id, so it comes before appends.
            piece.entities = self.entities
            yield piece._parameters(appends)
        yield self._parameters(pieces[-1])

    def _parameters(self, appends: Iterable[AppendRun]) -> dict[str, Any]:
        row = Row()
        self.fill(row, appends)
        row.put_numbers("extents", self.extents(appends))
        return row.parameters()

    def fill(self, row: Row, appends: Iterable[tuple[int, Columns, int, Any]]) -> None:
        """Add all sections except extents to the row, with `appends` instead of the entry's own appends."""
        row.put("entities", self.entities)
        row.put(
            "appends",
            [
                (key, *columns[:5], *row.place(columns[5]), *row.place(columns[6]), segment, places)
                for key, columns, segment, places in appends
            ],
        )
        row.put("bodies", [(key, *place) for key, place in self.bodies.items()])
        row.put("copies", list(self._copy_runs(row)))
        row.put("updates", [(key, *changed) for key, changed in self.updates.items()])
        row.put("rewrites", list(self._rewrite_runs(row)))
        row.put("moves", self.moves)
        row.put("body_moves", self.body_moves)
        row.put_numbers("run_updates", self.run_updates)
        row.put_numbers("run_removals", self.run_removals)
        row.put("damaged", self.damaged)
        row.put(
            "claims",
            [(id, *row.place(claim), *row.place(content)) for (id, claim), content in self.claims.items()],
        )
        row.put(
            "session_states",
            [
                (id, *row.place(name), *row.place(state), updated_at)
                for (id, name), (state, updated_at) in self.session_states.items()
            ],
        )
        row.put("seen", [(key, *row.place(b"".join(seen))) for key, seen in self.seen.items()])
        runs = list(runs_of(self.removals))
        if runs:
            # Mostly there is only one run, which SQLite deletes by one range of keys.
            longest = max(runs, key=lambda run: run[1] - run[0])
            runs.remove(longest)
            row.sections["first_key"], row.sections["last_key"] = longest
        row.put_numbers("runs", runs)
        row.put("freed", sorted(self.freed))
        row.put("forgotten", [(id << NUMBER_BITS, before) for id, before in self.forgotten.items()])
        row.put_numbers("deltas", [(id, *counter_row(delta)) for id, delta in self.deltas.items()])
        row.put("dropped", self.dropped)

    def _copy_runs(self, row: Row) -> Iterator[tuple[Any, ...]]:
        """Group consecutive copies with equal columns and segment.

        The keys in a group are not consecutive, because the copies of a message go to different entities.
        """
        columns_of_run: Columns | None = None
        segment_of_run = -1
        copies: list[tuple[int, int, int]] = []
        for key, segment, place, columns, body in self.copies:
            if columns != columns_of_run or segment != segment_of_run:
                columns_of_run, segment_of_run = columns, segment
                copies = []
                yield (*columns[:5], *row.place(columns[5]), *row.place(columns[6]), segment, copies)
            copies.append((key, place, body))

    def _rewrite_runs(self, row: Row) -> Iterator[tuple[Any, ...]]:
        """Group rewrites of consecutive keys with equal columns: messages are mostly deferred in order."""
        next_key, of_run = -1, None
        places: list[int] = []
        for key, (changed, annex, segment, place) in self.rewrites.items():
            if key != next_key or (changed, annex, segment) != of_run:
                of_run = (changed, annex, segment)
                places = []
                yield (key, *changed, *row.place(annex), segment, places)
            next_key = key + 1
            places.append(place)

    def extents(self, appends: Iterable[AppendRun]) -> list[tuple[int, int, int, int]]:
        """By segment and entity: the lowest and the highest key with a payload in that segment."""
        return extents_of(
            [
                *((segment, key, key + len(places) - 1) for key, _, segment, places in appends),
                *((segment, key, key) for key, segment, *_ in self.copies),
                *((segment, key, key) for key, (_, _, segment, _) in self.rewrites.items()),
                *((segment, key, key) for key, _, segment, _ in self.moves),
            ]
        )


def extents_of(runs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Compute extents from runs (segment, first key, last key), each of which has keys of one entity."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for segment, first, last in runs:
        of = (segment, first >> NUMBER_BITS)
        known = found.get(of)
        found[of] = (first, last) if known is None else (min(known[0], first), max(known[1], last))
    return [(*of, *keys) for of, keys in found.items()]


def runs_of(keys: list[int]) -> Iterator[tuple[int, int]]:
    """Yield first and last key of each run of consecutive keys; sorts the keys."""
    if not keys:
        return
    keys.sort()
    first = last = keys[0]
    for key in keys:
        if key > last + 1:
            yield first, last
            first = key
        last = key
    yield first, last


class Row:
    """Builds the parameters of one statement."""

    def __init__(self) -> None:
        self.sections: dict[str, Any] = dict.fromkeys(SECTIONS)
        self._parts: list[bytes] = []
        self._size = 0

    def place(self, content: bytes | None) -> tuple[int | None, int | None]:
        """Add a byte string to `bytes`; return its position (from 1) and length, or None for None."""
        if content is None:
            return None, None
        begin = self._size + 1
        self._parts.append(content)
        self._size += len(content)
        return begin, len(content)

    def put(self, section: str, rows: list[Any]) -> None:
        if rows:
            self.sections[section] = encode(rows)

    def put_numbers(self, section: str, rows: list[Any]) -> None:
        """Set a section whose rows have the same number of integers each."""
        self.put(section, rows)

    def parameters(self) -> dict[str, Any]:
        # SQLite's substr() of an empty blob is NULL, not an empty blob: so `bytes` is never empty.
        self.sections["bytes"] = b"".join([*self._parts, b"\0"])
        return self.sections


def _runs_in(entry: Entry) -> int:
    return len(entry.appends) + _ENTRY_RUNS


def _differ_by_time(one: Columns, other: Columns) -> bool:
    """Return whether the columns are equal except for enqueued_at."""
    # Compared one by one because it is faster; this runs for many messages.
    return (
        one[0] == other[0]
        and one[1] == other[1]
        and one[3] == other[3]
        and one[4] == other[4]
        and one[5] == other[5]
        and one[6] == other[6]
    )


def _first_key(run: tuple[int, Columns, list[bytes]]) -> int:
    return run[0]


def _without(appends: list[AppendRun], removed: list[tuple[int, int]]) -> Iterator[AppendRun]:
    """Yield the runs without the keys in the removed ranges, which are in order."""
    ends = [last for _, last in removed]
    for run in appends:
        first, columns, segment, places = run
        last = first + len(places) - 1
        at = bisect_left(ends, first)
        if at == len(removed) or removed[at][0] > last:
            yield run
            continue
        begin = first
        while at < len(removed) and removed[at][0] <= last:
            if begin < removed[at][0]:
                yield begin, columns, segment, places[begin - first : removed[at][0] - first]
            begin = removed[at][1] + 1
            at += 1
        if begin <= last:
            yield begin, columns, segment, places[begin - first :]


def _pieces(appends: list[AppendRun], max_messages: int) -> Iterator[list[AppendRun]]:
    """Divide the runs into lists of at most `max_messages` messages each; yield at least one list."""
    piece: list[AppendRun] = []
    room = max_messages
    for first, columns, segment, places in appends:
        at = 0
        while len(places) - at > room:
            piece.append((first + at, columns, segment, places[at : at + room]))
            yield piece
            at += room
            piece, room = [], max_messages
        piece.append((first + at, columns, segment, places[at:] if at else places))
        room -= len(places) - at
    yield piece
