"""What an attack is, and the table of all of them.

An attack is a function of the broker under attack. Its name is the function's, what it does is the first line of its
docstring, and it stands in the group of its module. Beside that it says what the broker answers, and how the log tells
of it. What must hold after every attack is not its business: `run` looks at that.
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
"""Memory above what it was before the first attack that the broker may take at any time."""
USUAL: Final = "usual"
ATTACKS: Final[dict[str, Attack]] = {}
"""By name, in the order of their definition."""


class AttackFailed(Exception):
    """The broker did not do what it should; `str()` is one sentence that says what it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    group: str
    does: str
    """One sentence."""
    answer: str
    """What the broker does, in a few words."""
    says: str
    """A regular expression: a line of the log has it, and names the attacker."""
    act: Act
    max_peak: int = MAX_PEAK
    """Bytes of memory that the broker may take meanwhile."""
    is_slow: bool = False
    """It waits for time-outs of the broker, and may do so while other attacks are made."""
    broker: str = USUAL
    """Which one it is made on."""


def attack(
    *, answer: str, says: str, max_peak: int = MAX_PEAK, is_slow: bool = False, broker: str = USUAL
) -> Callable[[Act], Act]:
    """Enters a function into the table."""

    def enter(act: Act) -> Act:
        module = sys.modules[act.__module__]
        name = act.__name__.replace("_", "-")
        assert act.__doc__ is not None
        assert name not in ATTACKS
        ATTACKS[name] = Attack(
            name=name,
            group=(module.__doc__ or "").partition(":")[0],
            does=" ".join(act.__doc__.partition("\n\n")[0].split()),
            answer=answer,
            says=says,
            act=act,
            max_peak=max_peak,
            is_slow=is_slow,
            broker=broker,
        )
        return act

    return enter


def require(holds: object, otherwise: str) -> None:
    """AttackFailed, with the sentence, unless it holds."""
    if not holds:
        raise AttackFailed(otherwise)
