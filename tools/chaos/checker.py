"""The list of all checks, and their use on a history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tools.chaos import claim_checks, lock_checks, message_checks, promise_checks
from tools.chaos.history import Record
from tools.chaos.history_index import HistoryIndex, Violation

Check = Callable[[HistoryIndex], Iterator[Violation]]

CHECKS: Final[tuple[Check, ...]] = (
    message_checks.lost,
    message_checks.unwanted,
    message_checks.changed,
    message_checks.damaged,
    message_checks.returned,
    message_checks.numbers,
    message_checks.order,
    message_checks.session_order,
    lock_checks.message_locks,
    lock_checks.late_settlements,
    lock_checks.session_locks,
    lock_checks.counts,
    promise_checks.transactions,
    promise_checks.together,
    promise_checks.schedules,
    promise_checks.duplicates,
    promise_checks.states,
    claim_checks.claims,
    promise_checks.leftovers,
    promise_checks.broker_failures,
)


def check(records: Iterable[Record]) -> list[Violation]:
    """Return the violations in a history."""
    index = HistoryIndex(records)
    return [violation for check in CHECKS for violation in check(index)]
