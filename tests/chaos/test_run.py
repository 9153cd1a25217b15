"""What a run concludes while it is under way."""

from __future__ import annotations

import pytest

from tools.chaos.history import Gesture, Outcome, Settlement
from tools.chaos.run import refused_completion

NO_ROOM = "amqp:resource-limit-exceeded: The broker has no room left to store messages."
LOCK_LOST = "com.microsoft:message-lock-lost: The lock of the message was lost."


def settlement(
    gesture: Gesture = Gesture.COMPLETE,
    outcome: Outcome = Outcome.NO,
    error: str = NO_ROOM,
    transaction: str | None = None,
) -> Settlement:
    return Settlement(
        delivery="a", gesture=gesture, outcome=outcome, error=error, transaction=transaction, start=1, end=2
    )


def test_a_completion_that_a_full_disk_refuses_is_noticed() -> None:
    refused = settlement()
    assert refused_completion([settlement(Gesture.DEAD_LETTER), refused]) is refused


@pytest.mark.parametrize(
    "other",
    [
        settlement(Gesture.DEAD_LETTER),
        settlement(Gesture.ABANDON),
        settlement(error="amqp:not-allowed: The transaction belongs to 'invoices'.", transaction="t"),
        settlement(error=LOCK_LOST),
        settlement(outcome=Outcome.UNKNOWN, error="the peer closed the socket"),
    ],
)
def test_what_a_full_disk_may_refuse_is_no_violation(other: Settlement) -> None:
    assert refused_completion([other]) is None


def test_one_settlement_that_works_is_enough() -> None:
    assert refused_completion([settlement(), settlement(Gesture.ABANDON, Outcome.OK, "")]) is None
