"""In which words receivers settle messages: outcomes of AMQP on a link, statuses in a request to `$management`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Accepted, Modified, Rejected, Released
from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.broker.errors import InvalidProperty, NotSupported
from peeklock.broker.settlements import Settlement, Verdict

ACCEPTED: Final = Accepted().encode()
RELEASED: Final = Released().encode()


class Words(NamedTuple):
    """How a verdict is said, and answered."""

    verdict: Verdict
    statuses: tuple[str, ...]
    """Of `update-disposition`; the first spelling of a deferral is the service's."""
    outcome: type[Accepted] | type[Modified] | type[Rejected]
    """On a link. Deferring is told from abandoning by undeliverable-here alone; what else is set differs by SDK."""

    @property
    def answer(self) -> bytes:
        """Without what came along: clients take the error of a dead-lettering for a failure."""
        return self.outcome().encode()


WORDS: Final = (
    Words(Verdict.COMPLETE, ("completed",), Accepted),
    Words(Verdict.ABANDON, ("abandoned",), Modified),
    Words(Verdict.DEFER, ("defered", "deferred"), Modified),
    Words(Verdict.DEAD_LETTER, ("suspended",), Rejected),
)
_BY_STATUS: Final = {status: words.verdict for words in WORDS for status in words.statuses}
OUTCOMES: Final = {words.verdict: words.outcome for words in WORDS}
ANSWERS: Final = {words.verdict: words.answer for words in WORDS}
"""What a client is told when it is done."""


def said_by_status(
    status: str, properties: dict[Any, Any] | None, reason: str | None, description: str | None
) -> Settlement:
    verdict = _BY_STATUS.get(status)
    if verdict is None:
        raise InvalidProperty(f"'disposition-status' must be one of {', '.join(_BY_STATUS)}, not '{status}'.")
    settlement = Settlement(verdict, properties, reason, description)
    settlement.check()
    return settlement


def said_by_outcome(state: Any) -> Settlement:
    """Not checked yet."""
    if isinstance(state, Accepted):
        return Settlement(Verdict.COMPLETE)
    if isinstance(state, Modified):
        verdict = Verdict.DEFER if state.undeliverable_here else Verdict.ABANDON
        return Settlement(verdict, state.message_annotations)
    if isinstance(state, Rejected):
        reason, description, others = _dead_letter_reason(state)
        return Settlement(Verdict.DEAD_LETTER, others, reason, description)
    raise NotSupported(f"The delivery state {type(state).__name__} is not supported.")


def _dead_letter_reason(state: Rejected) -> tuple[str | None, str | None, dict[Any, Any]]:
    """Reason, description and properties out of a rejected outcome; clients that know no Service Bus give an error."""
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
