"""What a run concludes while it is under way."""

from __future__ import annotations

import pytest

from tools.chaos.history import Disposition, Outcome, Settlement
from tools.chaos.run import refused_completion

NO_ROOM = "amqp:resource-limit-exceeded: The broker has no room left to store messages."
LOCK_LOST = "com.microsoft:message-lock-lost: The lock of the message was lost."


def settlement(
    disposition: Disposition = Disposition.COMPLETE,
    outcome: Outcome = Outcome.NO,
    error: str = NO_ROOM,
    transaction: str | None = None,
) -> Settlement:
    return Settlement(
        delivery="a", disposition=disposition, outcome=outcome, error=error, transaction=transaction, start=1, end=2
    )


def test_a_completion_that_a_full_disk_refuses_is_noticed() -> None:
    refused = settlement()
    assert refused_completion([settlement(Disposition.DEAD_LETTER), refused]) is refused


@pytest.mark.parametrize(
    "other",
    [
        settlement(Disposition.DEAD_LETTER),
        settlement(Disposition.ABANDON),
        settlement(error="amqp:not-allowed: The transaction belongs to 'invoices'.", transaction="t"),
        settlement(error=LOCK_LOST),
        settlement(outcome=Outcome.UNKNOWN, error="the peer closed the socket"),
    ],
)
def test_refusals_of_a_full_disk_are_no_violation(other: Settlement) -> None:
    assert refused_completion([other]) is None


def test_one_settlement_that_works_is_enough() -> None:
    assert refused_completion([settlement(), settlement(Disposition.ABANDON, Outcome.OK, "")]) is None
