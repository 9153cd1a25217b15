"""What the index applies: a batch whose payloads have their place in the log, alone or with those that follow it.

An entry is what a SQLite statement takes, as parameters.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ...base import Counters
from ..keys import LENGTH_BITS, NUMBER_BITS
from ..log.records import PAYLOAD_HEAD, payload_head, payload_seed
from ..turns import in_turns
from .batch import Batch, Changed, Kind, counter_row

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

_RUNS_A_TURN: Final = 256
_ENTRY_RUNS: Final = 8
"""What takes some tenths of a millisecond; an entry is worth so many runs, beside its own."""

_FEW: Final = 8
"""Messages of a run that is not worth a row of its own, if it can be put to the run before it."""

Run = tuple[int, Kind, int, list[Any]]
"""Neighbours that are alike but for their payloads: first key, columns, segment, and the place of each.

One that was enqueued at another time than the first has a text: its place, a space, how many milliseconds later.
"""

encode: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Entry:
    """Changes whose payloads are in the log. A place is an offset in the high bits, and a length in the low 32."""

    def __init__(self) -> None:
        self.entities: list[Any] = []
        self.appends: list[Run] = []
        self.copies: list[tuple[int, int, int, Kind, int]] = []
        """Key, segment, place, columns, key of the body."""
        self.bodies: dict[int, tuple[int, int]] = {}
        """By key: segment, place."""
        self.updates: dict[int, Changed] = {}
        self.rewrites: dict[int, tuple[Changed, bytes | None, int, int]] = {}
        """By key: what is changed, annex, segment, place."""
        self.moves: list[tuple[int, int, int, int]] = []
        """Key, the segment before, segment, place."""
        self.body_moves: list[tuple[int, int, int, int]] = []
        self.removals: list[int] = []
        self.freed: set[int] = set()
        self.run_updates: list[tuple[int, int, int, int]] = []
        """First key, last key, state before, state."""
        self.run_removals: list[tuple[int, int, int]] = []
        """First key, last key, state before."""
        self.damaged: list[int] = []
        self.claims: dict[tuple[int, bytes], bytes | None] = {}
        self.session_states: dict[tuple[int, bytes], tuple[bytes | None, int]] = {}
        self.seen: dict[int, list[bytes]] = {}
        self.forgotten: dict[int, int] = {}
        self.deltas: dict[int, Counters] = {}
        self.dropped: list[int] = []
        self.rows = 0
        self.payload_bytes = 0
        """In the log."""
        self.size = 0
        """Of its bytes in the log."""
        self.record_at = 0
        """Where its record begins in its segment."""
        self.stands_alone = False
        """It is not joined with others."""

    @classmethod
    def of(cls, batch: Batch, segment: int, offset: int) -> tuple[Entry, list[bytes]]:
        """The entry, and the payloads, each after its head, as they are to be in that segment from that offset on."""
        entry = cls()
        entry.entities, entry.dropped = batch.entities, batch.dropped
        entry.updates, entry.removals, entry.freed = batch.updates, batch.removals, batch.freed
        entry.run_updates, entry.run_removals, entry.claims = batch.run_updates, batch.run_removals, batch.claims
        entry.damaged = batch.damaged
        entry.session_states, entry.seen, entry.forgotten = batch.session_states, batch.seen, batch.forgotten
        entry.deltas = batch.deltas
        entry.rows, entry.stands_alone = batch.rows, batch.is_applied_alone
        payloads: list[bytes] = []
        end = entry._place_appends(batch, segment, offset, payloads)
        end = entry._place_others(batch, segment, end, payloads)
        entry.payload_bytes = end - offset
        return entry, payloads

    def _place_appends(self, batch: Batch, segment: int, offset: int, payloads: list[bytes]) -> int:
        seed = payload_seed(segment)
        for key, kind, of_run in sorted(batch.appends, key=_first_key):
            places: list[int] = []
            for payload in of_run:
                length = len(payload)
                offset += PAYLOAD_HEAD
                places.append(offset << LENGTH_BITS | length)
                payloads.append(payload_head(payload, seed, offset))
                payloads.append(payload)
                offset += length
            self.appends.append((key, kind, segment, places))
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
        for key, payload, kind, body in batch.copies:
            if payload is not last:  # copies of one message follow each other, mostly with one payload
                last, placed = payload, place(payload)
            self.copies.append((key, segment, placed, kind, body))
        for key, (changed, payload, annex) in batch.rewrites.items():
            self.rewrites[key] = (changed, annex, segment, place(payload))
        for key, payload, before in batch.moves:
            self.moves.append((key, before, segment, place(payload)))
        for key, data, before in batch.body_moves:
            self.body_moves.append((key, before, segment, place(data)))
        return offset

    @classmethod
    def join(cls, entries: Iterable[Entry]) -> Entry:
        """One that does, in one go, what these do one after the other; none of them stands alone.

        Messages that came and went meanwhile are left out.
        """
        joined = cls()
        ends: dict[int, Run] = {}
        """Short runs, by the key that would be next."""
        for entry in in_turns(entries, _RUNS_A_TURN, _runs_in):
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
            # A removed number never comes back, so nothing of a later entry is meant for it.
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
            joined.appends = list(in_turns(_without(joined.appends, list(runs_of(joined.removals))), _RUNS_A_TURN))
        if joined.removals and joined.copies:
            removed = set(joined.removals)
            joined.copies = [copy for copy in joined.copies if copy[0] not in removed]
        return joined

    def _join_run(self, run: Run, ends: dict[int, Run]) -> None:
        """When every message goes to another queue than the one before, all runs are short; their neighbours came with
        other commits, a little earlier."""
        key, kind, segment, places = run
        if len(places) >= _FEW:
            self.appends.append(run)
            return
        before = ends.pop(key, None)
        if before is None or before[2] != segment or not _differ_by_time(before[1], kind):
            before = (key, kind, segment, places[:])
            self.appends.append(before)
        else:
            later = kind[2] - before[1][2]
            before[3].extend([f"{place} {later}" for place in places] if later else places)
        ends[key + len(places)] = before

    def parameters(self) -> dict[str, Any]:
        """A row for the writer's `entry` view.

        `first_key` and `last_key` are the longest run of removals; each of the others is a JSON array, mostly of
        arrays, or None. What is bytes is told by at which byte of `bytes`, from 1, it begins, and how long it is.
        """
        return self._parameters(self.appends)

    def pieces(self, most: int) -> Iterator[dict[str, Any]]:
        """Parameters of statements that do one after the other what this does, each with so many appends at most."""
        pieces = list(_pieces(self.appends, most))
        for appends in pieces[:-1]:
            piece = Entry()
            # Entities are created before they are appended to: what a dropped one with that id left is deleted first.
            piece.entities = self.entities
            yield piece._parameters(appends)
        yield self._parameters(pieces[-1])

    def _parameters(self, appends: Iterable[Run]) -> dict[str, Any]:
        row = Row()
        self.fill(row, appends)
        row.put_numbers("extents", self.extents(appends))
        return row.parameters()

    def fill(self, row: Row, appends: Iterable[tuple[int, Kind, int, Any]]) -> None:
        """With all but extents; `appends` stands for its own."""
        row.put("entities", self.entities)
        row.put(
            "appends",
            [
                (key, *kind[:5], *row.place(kind[5]), *row.place(kind[6]), segment, places)
                for key, kind, segment, places in appends
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
            # Mostly there is one run, and SQLite deletes that straight away.
            longest = max(runs, key=lambda run: run[1] - run[0])
            runs.remove(longest)
            row.sections["first_key"], row.sections["last_key"] = longest
        row.put_numbers("runs", runs)
        row.put("freed", sorted(self.freed))
        row.put("forgotten", [(id << NUMBER_BITS, before) for id, before in self.forgotten.items()])
        row.put_numbers("deltas", [(id, *counter_row(delta)) for id, delta in self.deltas.items()])
        row.put("dropped", self.dropped)

    def _copy_runs(self, row: Row) -> Iterator[tuple[Any, ...]]:
        """Copies of one message go to many entities, so they share a run whatever their keys are."""
        kind_of_run: Kind | None = None
        segment_of_run = -1
        copies: list[tuple[int, int, int]] = []
        for key, segment, place, kind, body in self.copies:
            if kind != kind_of_run or segment != segment_of_run:
                kind_of_run, segment_of_run = kind, segment
                copies = []
                yield (*kind[:5], *row.place(kind[5]), *row.place(kind[6]), segment, copies)
            copies.append((key, place, body))

    def _rewrite_runs(self, row: Row) -> Iterator[tuple[Any, ...]]:
        """Messages are mostly deferred in order, and many at a time."""
        next_key, of_run = -1, None
        places: list[int] = []
        for key, (changed, annex, segment, place) in self.rewrites.items():
            if key != next_key or (changed, annex, segment) != of_run:
                of_run = (changed, annex, segment)
                places = []
                yield (key, *changed, *row.place(annex), segment, places)
            next_key = key + 1
            places.append(place)

    def extents(self, appends: Iterable[Run]) -> list[tuple[int, int, int, int]]:
        """Segment, entity, and the lowest and the highest key that has a place there."""
        return extents_of(
            [
                *((segment, key, key + len(places) - 1) for key, _, segment, places in appends),
                *((segment, key, key) for key, segment, *_ in self.copies),
                *((segment, key, key) for key, (_, _, segment, _) in self.rewrites.items()),
                *((segment, key, key) for key, _, segment, _ in self.moves),
            ]
        )


def extents_of(runs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Of runs of one segment and one entity each: segment, first, last."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for segment, first, last in runs:
        of = (segment, first >> NUMBER_BITS)
        known = found.get(of)
        found[of] = (first, last) if known is None else (min(known[0], first), max(known[1], last))
    return [(*of, *keys) for of, keys in found.items()]


def runs_of(keys: list[int]) -> Iterator[tuple[int, int]]:
    """First and last of each run of neighbours: messages are mostly settled in order."""
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
    """The parameters of one statement in the making."""

    def __init__(self) -> None:
        self.sections: dict[str, Any] = dict.fromkeys(SECTIONS)
        self._parts: list[bytes] = []
        self._size = 0

    def place(self, content: bytes | None) -> tuple[int | None, int | None]:
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
        """Rows of the same number of numbers."""
        self.put(section, rows)

    def parameters(self) -> dict[str, Any]:
        # SQLite's substr() gives NULL, not an empty blob, when there is nothing to take from: one byte more.
        self.sections["bytes"] = b"".join([*self._parts, b"\0"])
        return self.sections


def _runs_in(entry: Entry) -> int:
    return len(entry.appends) + _ENTRY_RUNS


def _differ_by_time(one: Kind, other: Kind) -> bool:
    """Or by nothing."""
    # One by one: this is asked for many messages.
    return (
        one[0] == other[0]
        and one[1] == other[1]
        and one[3] == other[3]
        and one[4] == other[4]
        and one[5] == other[5]
        and one[6] == other[6]
    )


def _first_key(run: tuple[int, Kind, list[bytes]]) -> int:
    return run[0]


def _without(appends: list[Run], removed: list[tuple[int, int]]) -> Iterator[Run]:
    """The runs, less what is in the removed ranges, which are in order."""
    ends = [last for _, last in removed]
    for run in appends:
        first, kind, segment, places = run
        last = first + len(places) - 1
        at = bisect_left(ends, first)
        if at == len(removed) or removed[at][0] > last:
            yield run
            continue
        begin = first
        while at < len(removed) and removed[at][0] <= last:
            if begin < removed[at][0]:
                yield begin, kind, segment, places[begin - first : removed[at][0] - first]
            begin = removed[at][1] + 1
            at += 1
        if begin <= last:
            yield begin, kind, segment, places[begin - first :]


def _pieces(appends: list[Run], most: int) -> Iterator[list[Run]]:
    """The same runs in several lists, none with more messages than so many; one at least."""
    piece: list[Run] = []
    room = most
    for first, kind, segment, places in appends:
        at = 0
        while len(places) - at > room:
            piece.append((first + at, kind, segment, places[at : at + room]))
            yield piece
            at += room
            piece, room = [], most
        piece.append((first + at, kind, segment, places[at:] if at else places))
        room -= len(places) - at
    yield piece
