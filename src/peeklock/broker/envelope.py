"""Changes stored messages: the expiry, the session id, application properties, dead letters.

The bare message (from its properties on) is stored as it was sent. The broker encodes a section again only for a
missing message id (`incoming`), for the absolute expiry, and for changed application properties.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import AmqpError, DecodeError, EncodeError
from peeklock.amqp.sections import (
    APPLICATION_PROPERTIES,
    NULL,
    PROPERTIES,
    list_section,
    map_section,
    raw_entries,
    raw_fields,
    replace_section,
    scan,
)
from peeklock.amqp.types import Timestamp
from peeklock.broker.annex import Annex
from peeklock.broker.bare_message import ABSOLUTE_EXPIRY, CREATION_TIME, GROUP_ID, PROPERTIES_START, data_end
from peeklock.broker.errors import InvalidProperty

log = logging.getLogger(__name__)


def stamp_expiry(bare: bytes, enqueued_at: int, expires_at: int) -> bytes:
    """Write the absolute expiry into the properties, so that all clients compute the same time to live.

    Some clients compute it from the creation time, so a creation time is replaced by the enqueued time.
    """
    found = scan(bare)
    try:
        fields = [] if found.properties is None else raw_fields(bare, found.properties)
    except DecodeError:
        return bare  # properties are not checked when a message is sent; the message expires nevertheless
    fields += [NULL] * (ABSOLUTE_EXPIRY + 1 - len(fields))
    fields[ABSOLUTE_EXPIRY] = encode_value(Timestamp(expires_at))
    if len(fields) > CREATION_TIME and fields[CREATION_TIME] != NULL:
        fields[CREATION_TIME] = encode_value(Timestamp(enqueued_at))
    return replace_section(bare, found.properties, list_section(PROPERTIES, fields))


def with_session_id(bare: bytes, session_id: str) -> bytes:
    """Return the message with this session id."""
    found = scan(bare)
    fields = [] if found.properties is None else raw_fields(bare, found.properties)
    fields += [NULL] * (GROUP_ID + 1 - len(fields))
    fields[GROUP_ID] = encode_value(session_id)
    return replace_section(bare, found.properties, list_section(PROPERTIES, fields))


class AddedProperties:
    """Application properties to add to messages or to replace in them. They are encoded once for all messages."""

    def __init__(self, properties: dict[Any, Any]) -> None:
        named = {str(key): value for key, value in properties.items()}
        self._names = named.keys()
        self._fields: list[bytes] = []
        for name, value in named.items():
            try:
                self._fields += (encode_value(name), encode_value(value))
            except EncodeError as error:
                raise InvalidProperty(f"A property to add cannot be encoded: {error.description}.") from error
        self._section = map_section(APPLICATION_PROPERTIES, self._fields)

    @property
    def size(self) -> int:
        """The most bytes that the properties add to a message."""
        return len(self._section)

    def to(self, bare: bytes) -> bytes:
        """Return the message with these properties; its other application properties keep their bytes."""
        if bare[:4] == PROPERTIES_START:  # most messages have one data section after their properties, or a shared body
            behind = 5 + bare[4]
            if behind == len(bare) or data_end(bare, behind) == len(bare):
                return b"".join((bare[:behind], self._section, bare[behind:]))
        found = scan(bare)
        part = found.application_properties
        if part is not None:
            return replace_section(bare, part, map_section(APPLICATION_PROPERTIES, self._others(bare, part)))
        if found.properties is not None:
            behind = found.properties.stop
            return b"".join((bare[:behind], self._section, bare[behind:]))
        return replace_section(bare, None, self._section)

    def _others(self, bare: bytes, part: slice) -> list[bytes]:
        fields: list[bytes] = []
        # The properties were not checked when the message was sent. If they cannot be decoded, they are dropped.
        with suppress(DecodeError):
            for key, value in raw_entries(bare, part):
                if str(decode_value(key)[0]) not in self._names:
                    fields += (key, value)
        return fields + self._fields


def with_application_properties(bare: bytes, changes: dict[Any, Any]) -> bytes:
    """Return the message with these application properties added or replaced; the others keep their bytes."""
    return AddedProperties(changes).to(bare) if changes else bare


def dead_letter(bare: bytes, annex: bytes | None, properties: dict[Any, Any], source: str) -> tuple[bytes, bytes]:
    """Return the message and its annex as a dead letter from the entity `source`, with these application properties.

    A message that cannot be decoded is dead-lettered unchanged.
    """
    added = AddedProperties(properties) if properties else None
    letter, known = bare, Annex()
    try:
        letter = bare if added is None else added.to(bare)
        known = Annex.decode(annex)
    except (AmqpError, TypeError) as error:
        log.error("a message of '%s' cannot be decoded; it is dead-lettered unchanged: %s", source, error)
    return letter, known._replace(dead_letter_source=source).encode()
