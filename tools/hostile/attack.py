"""The definition of an attack, and the table of all attacks.

An attack is a function with the broker under attack as its argument. The name is the function's, the description is the
first paragraph of its docstring, and the group is that of its module. The decorator declares the broker's answer and
the expected log line. `run` makes the checks that follow every attack.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tools.hostile.victim import Victim

Act = Callable[["Victim"], None]
MIB: Final = 1024 * 1024
MAX_PEAK: Final = 768 * MIB
"""The most memory that the broker may use at any time above its level before the first attack."""
USUAL: Final = "usual"
ATTACKS: Final[dict[str, Attack]] = {}
"""Attacks by name, in the order of their definition."""


class AttackFailed(Exception):
    """The broker did not behave as required; `str()` is one sentence with what it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    group: str
    description: str
    """One sentence: what the attacker does."""
    answer: str
    """What the broker does, in a few words."""
    log: str
    """A regular expression that must match a log line with the attacker's address."""
    act: Act
    max_peak: int = MAX_PEAK
    """The most bytes of memory that the broker may use during the attack."""
    is_slow: bool = False
    """The attack waits for time-outs of the broker, so it runs beside other attacks."""
    broker: str = USUAL
    """The broker that is attacked: a key of `BROKERS`."""


def attack(
    *, answer: str, log: str, max_peak: int = MAX_PEAK, is_slow: bool = False, broker: str = USUAL
) -> Callable[[Act], Act]:
    """Return a decorator that adds a function to the table of attacks."""

    def enter(act: Act) -> Act:
        module = sys.modules[act.__module__]
        name = act.__name__.replace("_", "-")
        assert act.__doc__ is not None
        assert name not in ATTACKS
        ATTACKS[name] = Attack(
            name=name,
            group=(module.__doc__ or "").partition(":")[0],
            description=" ".join(act.__doc__.partition("\n\n")[0].split()),
            answer=answer,
            log=log,
            act=act,
            max_peak=max_peak,
            is_slow=is_slow,
            broker=broker,
        )
        return act

    return enter


def require(holds: object, otherwise: str) -> None:
    """Raise AttackFailed with the sentence unless the condition holds."""
    if not holds:
        raise AttackFailed(otherwise)
