"""The filters of a source (3.5.8): the filters that a client asks for, and those that the broker applies.

The answer to the attach omits an unknown filter, which tells the client that the filter has no effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from peeklock.amqp.termini import Source
from peeklock.amqp.types import Described
from peeklock.broker.errors import InvalidField, InvalidProperty
from peeklock.broker.rules.errors import SqlError
from peeklock.broker.rules.selectors import Selector
from peeklock.broker.rules.values import MAX_INTEGER
from peeklock.limits.broker import MAX_ID_LENGTH

SESSION_FILTER: Final = "com.microsoft:session-filter"
FIRST_NUMBER_FILTER: Final = "peeklock:from-sequence-number"
"""The sequence number at which a browser begins. Only Peeklock has this filter."""
SELECTOR_FILTER: Final = ("apache.org:selector-filter:string", 0x0000_468C_0000_0004)
"""The descriptors of a message selector. Clients differ in its key in the filter set."""
MOVE: Final = "move"
COPY: Final = "copy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """The filters that a client asks for."""

    selector: Selector | None
    selector_key: Any
    """The key of the selector in the filter set."""
    asks_session: bool
    session_id: Any
    """The unchecked value of the session filter, without its descriptor; None: the next free session."""
    first_number: Any
    """The unchecked value of the sequence number filter, without its descriptor; None: the head of the queue."""


def read_filters(source: Source) -> Filters:
    """Read the filters of a source. Raise InvalidField if a selector is invalid."""
    asked = source.filter or {}
    found: list[tuple[Any, Selector]] = []
    for key, value in asked.items():
        if isinstance(value, Described) and value.descriptor in SELECTOR_FILTER:
            if not isinstance(value.value, str):
                raise InvalidField(f"The value of the filter '{key}' must be a string: a message selector.")
            if value.value.strip():  # in JMS an empty selector matches all messages
                found.append((key, _selector(value.value)))
    if len(found) > 1:
        raise InvalidField("The filter set of the source has more than one message selector.")
    key, selector = found[0] if found else (None, None)
    session_id, first_number = map(asked.get, (SESSION_FILTER, FIRST_NUMBER_FILTER))
    if isinstance(session_id, Described):
        session_id = session_id.value
    if isinstance(first_number, Described):
        first_number = first_number.value
    return Filters(
        selector=selector,
        selector_key=key,
        asks_session=SESSION_FILTER in asked,
        session_id=session_id,
        first_number=first_number,
    )


def session_id_of(filters: Filters) -> str | None:
    """Return the id of the session that the client asks for; None for any session."""
    id = filters.session_id
    if id is None:
        return None
    if not isinstance(id, str):
        raise InvalidProperty(f"The value of {SESSION_FILTER} must be a string or null.")
    if len(id) > MAX_ID_LENGTH:
        raise InvalidProperty(f"The session id has {len(id)} characters; at most {MAX_ID_LENGTH} are allowed.")
    return str(id)


def first_number_of(filters: Filters) -> int:
    """Return the sequence number at which a browser begins; 1 for the head."""
    number = filters.first_number
    if number is None:
        return 1
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_INTEGER:
        raise InvalidField(f"The value of {FIRST_NUMBER_FILTER} must be an integer from 0 to {MAX_INTEGER}.")
    return max(1, number)


def in_force(source: Source, *keys: Any, mode: str | None = MOVE) -> Source:
    """Return the source to echo in our attach: only the filters in `keys`, and `mode` if the client set a
    distribution mode."""
    asked = source.filter
    kept = None if asked is None else {key: value for key, value in asked.items() if key in keys}
    mode = None if source.distribution_mode is None else mode
    if kept == asked and mode == source.distribution_mode:
        return source
    return replace(source, filter=kept, distribution_mode=mode)


def _selector(text: str) -> Selector:
    try:
        return Selector(text)
    except SqlError as error:
        raise InvalidField(f"The message selector is invalid: {error}") from error
