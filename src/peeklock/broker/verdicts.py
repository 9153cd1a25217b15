"""The settlements that a receiver can ask for, with their arguments."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from peeklock.amqp.service_bus import DEAD_LETTER_DESCRIPTION, DEAD_LETTER_REASON
from peeklock.broker.errors import InvalidProperty
from peeklock.limits.amqp import MAX_REASON_LENGTH


class Verdict(Enum):
    """The kinds of settlement."""

    COMPLETE = "complete"
    ABANDON = "abandon"
    DEFER = "defer"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class Settlement:
    """A settlement that a receiver asks for: its kind and its arguments."""

    verdict: Verdict
    properties: dict[Any, Any] | None = None
    """Application properties to add to the message."""
    reason: str | None = None
    """The dead-letter reason."""
    description: str | None = None
    """The dead-letter description."""

    def check(self) -> None:
        """Raise InvalidProperty if the reason or the description is too long."""
        for name, text in (("reason", self.reason), ("description", self.description)):
            if text is not None and len(text) > MAX_REASON_LENGTH:
                raise InvalidProperty(
                    f"The dead-letter {name} has {len(text)} characters; at most {MAX_REASON_LENGTH} are allowed."
                )

    @property
    def added(self) -> dict[Any, Any]:
        """All properties that it adds to the message, including the reason and the description."""
        added = dict(self.properties or {})
        if self.reason is not None:
            added[DEAD_LETTER_REASON] = self.reason
        if self.description is not None:
            added[DEAD_LETTER_DESCRIPTION] = self.description
        return added
