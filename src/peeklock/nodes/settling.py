"""The table of settlements: verdicts, outcomes on a link, and statuses in `update-disposition`.

Links, transactions and `update-disposition` all use it; `broker.settlements` has the effect of each verdict. A released
delivery is not a settlement: its message is active again without a change in the store.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Accepted, Modified, Rejected, Released
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.broker.errors import InvalidProperty, NotSupported
from peeklock.broker.verdicts import Settlement, Verdict

ACCEPTED: Final = Accepted().encode()
RELEASED: Final = Released().encode()


class Row(NamedTuple):
    """One kind of settlement, with the forms in which clients request it."""

    verdict: Verdict
    statuses: tuple[str, ...]
    """The statuses in `update-disposition`. The hosted service spells a deferral `defered`."""
    outcome: type[Accepted] | type[Modified] | type[Rejected]
    """The outcome on a link."""
    undeliverable_here: bool = False
    """The field of the outcome that distinguishes deferring from abandoning; SDKs differ in the other fields."""

    @property
    def answer(self) -> bytes:
        """The outcome that confirms the settlement, encoded.

        It has none of the client's fields: clients treat the error of a dead-lettering as a failure.
        """
        return self.outcome().encode()


TABLE: Final = (
    Row(Verdict.COMPLETE, ("completed",), Accepted),
    Row(Verdict.ABANDON, ("abandoned",), Modified),
    Row(Verdict.DEFER, ("defered", "deferred"), Modified, undeliverable_here=True),
    Row(Verdict.DEAD_LETTER, ("suspended",), Rejected),
)
_BY_OUTCOME: Final = {(row.outcome, row.undeliverable_here): row.verdict for row in TABLE}
_BY_STATUS: Final = {status: row.verdict for row in TABLE for status in row.statuses}
STATUSES: Final = tuple(_BY_STATUS)
OUTCOMES: Final = {row.verdict: row.outcome for row in TABLE}
ANSWERS: Final = {row.verdict: row.answer for row in TABLE}
"""The encoded outcomes that confirm a settlement."""
ECHOES: Final[dict[type, bytes]] = {Released: RELEASED, **{row.outcome: row.answer for row in TABLE}}
"""The encoded answers to outcomes on links where outcomes have no effect."""


def settlement_of_status(
    status: str, properties: dict[Any, Any] | None, reason: str | None, description: str | None
) -> Settlement:
    """Convert a request of `update-disposition` to a settlement. Raise InvalidProperty if it is invalid."""
    verdict = _BY_STATUS.get(status)
    if verdict is None:
        raise InvalidProperty(f"'disposition-status' must be one of {', '.join(STATUSES)}, not '{status}'.")
    settlement = Settlement(verdict, properties=properties, reason=reason, description=description)
    settlement.check()
    return settlement


def settlement_of_outcome(state: Any) -> Settlement:
    """Convert an outcome on a link to a settlement, which is not checked."""
    verdict = _BY_OUTCOME.get((type(state), isinstance(state, Modified) and bool(state.undeliverable_here)))
    if verdict is None:
        raise NotSupported(f"The delivery state {type(state).__name__} is not supported.")
    if isinstance(state, Modified):
        return Settlement(verdict, properties=state.message_annotations)
    if isinstance(state, Rejected):
        reason, description, others = _dead_letter_reason(state)
        return Settlement(verdict, properties=others, reason=reason, description=description)
    return Settlement(verdict)


def _dead_letter_reason(state: Rejected) -> tuple[str | None, str | None, dict[Any, Any]]:
    """Return the reason, description and other properties of a rejected outcome.

    Generic AMQP clients send only an error. Its condition is then the reason.
    """
    error = state.error
    if error is None:
        return None, None, {}
    properties = {str(key): value for key, value in (error.info or {}).items()}
    reason = properties.pop(DEAD_LETTER_REASON, None)
    description = properties.pop(DEAD_LETTER_DESCRIPTION, None)
    if reason is None and error.condition != Condition.DEAD_LETTER:
        reason = str(error.condition)
    for name, value in ((DEAD_LETTER_REASON, reason), (DEAD_LETTER_DESCRIPTION, description)):
        if value is not None and not isinstance(value, str):
            raise InvalidProperty(f"{name} must be a string.")
    return reason, description or error.description or None, properties
