"""The plan of a run: its faults, all determined by the seed before the run begins."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from tools.chaos import damage
from tools.chaos.disk import Mode
from tools.chaos.proxy import Cut


class Kind(StrEnum):
    KILL = "kill"
    TEAR = "torn write"
    """A kill, followed by damage to unsynced bytes."""
    SUSPEND = "stop and continue"
    FULL = "disk full"
    FULL_AT_START = "disk full at start"
    FAILING = "failing sync"
    DROPPING = "page-dropping sync"
    SLOW = "slow sync"
    FLIP_TAIL = "bit flip, log tail"
    FLIP_LOG = "bit flip, log middle"
    FLIP_INDEX = "bit flip, index"
    FLIP_WAL = "bit flip, WAL"
    FLIP_CHECKS = "bit flip, checks"
    MISSING = "missing segment"
    SHORT = "short segment"
    CLOCK = "clock jump"
    CUT = "connection cut"


WEIGHTS: Final = {
    Kind.KILL: 18,
    Kind.TEAR: 14,
    Kind.SUSPEND: 12,
    Kind.FULL: 8,
    Kind.FULL_AT_START: 5,
    Kind.FAILING: 8,
    Kind.DROPPING: 12,
    Kind.SLOW: 6,
    Kind.FLIP_TAIL: 6,
    Kind.FLIP_LOG: 8,
    Kind.FLIP_INDEX: 4,
    Kind.FLIP_WAL: 4,
    Kind.FLIP_CHECKS: 3,
    Kind.MISSING: 4,
    Kind.SHORT: 4,
    Kind.CLOCK: 10,
    Kind.CUT: 20,
}
DISKS: Final = {
    Kind.FULL: Mode.FULL,
    Kind.FAILING: Mode.FAILING,
    Kind.DROPPING: Mode.DROPPING,
    Kind.SLOW: Mode.SLOW,
}
DAMAGES: Final[dict[Kind, damage.Maker]] = {
    Kind.FLIP_TAIL: damage.flip_tail,
    Kind.FLIP_LOG: damage.flip_log,
    Kind.FLIP_INDEX: damage.flip_index,
    Kind.FLIP_WAL: damage.flip_wal,
    Kind.FLIP_CHECKS: damage.flip_checks,
    Kind.MISSING: damage.remove_segment,
    Kind.SHORT: damage.shorten_segment,
}
"""Damage that is done after a kill."""
MOST_RECORDS: Final = 150
FAR_MS: Final = 30_000
"""The usual limit of the clock's offset: longer than locks and the window for duplicates last."""
DAYS_MS: Final = 3 * 24 * 3600 * 1000
"""The largest offset of the clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A fault with its parameters, and optionally a second fault."""

    kind: Kind
    records: int
    """The number of records that the clients add before the fault."""
    seconds: float = 0.0
    """How long the fault lasts."""
    every: int = 1
    """For a disk: one of so many syncs is affected."""
    delay: float = 0.0
    """For a slow disk: seconds added to a sync."""
    offset: int = 0
    """For the clock: milliseconds by which it is then ahead."""
    cut: Cut | None = None
    seed: int = 0
    """The seed of choices made when the fault happens."""
    then: Kind | None = None
    """A second fault that happens while this one lasts: KILL or TEAR."""

    @property
    def faults(self) -> int:
        return 1 if self.then is None else 2


def steps(seed: int, faults: int, only: Collection[Kind] = ()) -> Iterator[Step]:
    """Yield the steps for so many faults. Each allowed kind occurs at least once, if there are enough faults."""
    chance = Random(f"{seed}:faults")
    weights = {kind: weight for kind, weight in WEIGHTS.items() if not only or kind in only}
    kinds = list(weights)
    chance.shuffle(kinds)
    left = faults
    while left > 0:
        kind = kinds.pop() if kinds else chance.choices(list(weights), list(weights.values()))[0]
        step = _step(kind, chance, may_go_on=left > 1)
        left -= step.faults
        yield step


def _step(kind: Kind, chance: Random, *, may_go_on: bool) -> Step:
    records = chance.randrange(MOST_RECORDS)
    seed = chance.getrandbits(32)
    match kind:
        case Kind.SUSPEND:
            return Step(kind=kind, records=records, seconds=chance.choice((0.1, 0.3, 0.6, 1.2, 2.0)))
        case Kind.FULL_AT_START:
            return Step(kind=kind, records=records, seconds=chance.uniform(0.1, 1.5), seed=seed)
        case Kind.FULL | Kind.FAILING | Kind.DROPPING | Kind.SLOW:
            ends_in = (Kind.TEAR,) if kind is Kind.DROPPING else (Kind.KILL, Kind.TEAR)
            often = 0.7 if kind is Kind.DROPPING else 0.35
            then = chance.choice(ends_in) if may_go_on and chance.random() < often else None
            return Step(
                kind=kind,
                records=records,
                seconds=chance.uniform(0.1, 1.5),
                every=chance.choice((1, 1, 2, 3)),
                delay=chance.choice((0.02, 0.1, 0.4)),
                seed=seed,
                then=then,
            )
        case Kind.CLOCK:
            # Days are rare: once the clock was so far ahead, most messages that are too early go undetected.
            far = chance.choice((1500, 6000, FAR_MS, 1500, 6000, FAR_MS, DAYS_MS))
            return Step(kind=kind, records=records, offset=chance.randint(-far, far))
        case Kind.CUT:
            cut = Cut(
                which=chance.random(),
                from_broker=chance.random() < 0.5,
                frames=chance.choice((0, 0, 1, 2, 3, 5, 8, 13)),
                into=chance.choice((0, 0, 1, 7, 8, 20)),
                reset=chance.random() < 0.5,
            )
            return Step(kind=kind, records=records // 3, cut=cut)
        case _:
            return Step(kind=kind, records=records, seed=seed)
