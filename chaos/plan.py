"""The faults of a run, all chosen by its seed before it begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from chaos.disk import Mode
from chaos.proxy import Cut


class Kind(StrEnum):
    KILL = "kill"
    TEAR = "torn write"
    """A kill, and the end of the log is torn."""
    SUSPEND = "stop and continue"
    FULL = "disk full"
    FAILING = "failing sync"
    SLOW = "slow sync"
    CLOCK = "clock jump"
    CUT = "connection cut"


WEIGHTS: Final = {
    Kind.KILL: 18,
    Kind.TEAR: 14,
    Kind.SUSPEND: 12,
    Kind.FULL: 8,
    Kind.FAILING: 10,
    Kind.SLOW: 8,
    Kind.CLOCK: 10,
    Kind.CUT: 20,
}
DISKS: Final = {Kind.FULL: Mode.FULL, Kind.FAILING: Mode.FAILING, Kind.SLOW: Mode.SLOW}
MOST_RECORDS: Final = 150
FAR_MS: Final = 30_000
"""How far the clock may be away, mostly: further than locks and the memory for duplicates last."""
DAYS_MS: Final = 3 * 24 * 3600 * 1000
"""How far at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A fault, and how it goes on."""

    kind: Kind
    records: int
    """How much is to happen before it: what the clients do and are told."""
    seconds: float = 0.0
    """How long it lasts, if it does."""
    every: int = 1
    """For a disk: how many of the commits."""
    delay: float = 0.0
    """For a slow one: by how much."""
    offset: int = 0
    """For the clock: how far ahead it then is, in milliseconds."""
    cut: Cut | None = None
    seed: int = 0
    """For what is chosen when it happens."""
    then: Kind | None = None
    """A second fault, that happens while this one lasts: KILL or TEAR."""

    @property
    def faults(self) -> int:
        return 1 if self.then is None else 2


def steps(seed: int, faults: int) -> Iterator[Step]:
    """So many faults, some of them together; each kind at least once if there are enough."""
    chance = Random(f"{seed}:faults")
    kinds = list(WEIGHTS)
    chance.shuffle(kinds)
    left = faults
    while left > 0:
        kind = kinds.pop() if kinds else chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        step = _step(kind, chance, may_go_on=left > 1)
        left -= step.faults
        yield step


def _step(kind: Kind, chance: Random, *, may_go_on: bool) -> Step:
    records = chance.randrange(MOST_RECORDS)
    seed = chance.getrandbits(32)
    match kind:
        case Kind.SUSPEND:
            return Step(kind=kind, records=records, seconds=chance.choice((0.1, 0.3, 0.6, 1.2, 2.0)))
        case Kind.FULL | Kind.FAILING | Kind.SLOW:
            then = chance.choice((Kind.KILL, Kind.TEAR)) if may_go_on and chance.random() < 0.35 else None
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
            # Days are rare: a clock that was once so far ahead says little of what was too early afterwards.
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
