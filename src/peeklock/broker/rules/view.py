"""Gives filters and actions access to the properties of an encoded message, and encodes the changed message.

System properties come from the properties section, the annotations and the broker; user properties are the application
properties. A section is decoded when a rule first needs it. Changed parts are encoded again; all other bytes stay as
they were sent, and the body is not read. `conversion` has the types.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from peeklock.amqp.codec import decode_value, encode_value
from peeklock.amqp.errors import DecodeError, EncodeError
from peeklock.amqp.sections import (
    APPLICATION_PROPERTIES,
    NULL,
    PROPERTIES,
    Scanned,
    list_section,
    map_section,
    raw_entries,
    raw_fields,
    replace_section,
    scan,
    value_end,
)
from peeklock.amqp.service_bus import PARTITION_KEY, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY
from peeklock.amqp.types import Symbol, Timestamp
from peeklock.broker.annex import Annex
from peeklock.broker.rules.conversion import (
    FOREVER,
    MILLISECOND,
    identifier,
    kind_of,
    milliseconds_of,
    moment,
    plain,
    span,
    typed,
)
from peeklock.broker.rules.errors import EvaluationError
from peeklock.broker.rules.jms import JMS_PROPERTIES
from peeklock.broker.rules.values import MISSING, Missing, Value
from peeklock.entities.names import fold
from peeklock.limits.broker import MAX_ID_LENGTH
from peeklock.store.base import ACTIVE


class Changed(NamedTuple):
    """A message after an action."""

    payload: bytes
    annex: bytes | None
    session_id: str | None
    ttl_ms: int | None


class View:
    """One message for the rules of a topic. Changes stay in the view; the original bytes do not change."""

    __slots__ = (
        "_annex",
        "_annotations",
        "_annotations_changed",
        "_enqueued_at",
        "_fields",
        "_fields_changed",
        "_folded",
        "_found",
        "_payload",
        "_scheduled_at",
        "_sequence_number",
        "_size",
        "_system",
        "_ttl_ms",
        "_user",
        "_user_changed",
        "_values",
        "_written",
        "delivery_count",
    )

    def __init__(
        self,
        payload: bytes,
        annex: bytes | None,
        *,
        ttl_ms: int | None,
        enqueued_at: int,
        sequence_number: int,
        scheduled_at: int | None = None,
        size: int | None = None,
        delivery_count: int = 0,
    ) -> None:
        """`payload` is the bare message, and may lack its body. Times are Unix milliseconds."""
        self._payload = payload
        self._annex = annex
        self._ttl_ms = ttl_ms
        self._enqueued_at = enqueued_at
        self._sequence_number = sequence_number
        self._scheduled_at = scheduled_at
        self._size = len(payload) if size is None else size
        self.delivery_count = delivery_count
        # The sections are None until they are needed. They are never changed in place, because copies share them.
        self._found: Scanned | None = None
        self._fields: list[bytes] | None = None
        """The encoded fields of the properties."""
        self._values: dict[str, Any] | None = None
        """The application properties. They are decoded together, which is faster than finding the end of each."""
        self._written: dict[str, bytes] = {}
        """The application properties that were set, encoded."""
        self._annotations: dict[Any, tuple[bytes, bytes]] | None = None
        """The message annotations: encoded keys and values."""
        self._fields_changed = self._user_changed = self._annotations_changed = False
        self._folded: dict[str, str] | None = None
        """The names of application properties as spelt in the message, by folded name."""
        # Caches of values that were read, by the requested name.
        self._system: dict[str, Value] = {}
        self._user: dict[str, Value | Missing] = {}

    # --- reading ---

    def system(self, name: str) -> Value:
        """Return a system property, whose name is spelt as in `SYSTEM_PROPERTIES`; None if the message lacks it."""
        try:
            return self._system[name]
        except KeyError:
            value = self._system[name] = self._read_system(name)
            return value

    def user(self, name: str) -> Value | Missing:
        """Return the application property with this name or, if there is none, the first that differs only in case."""
        try:
            return self._user[name]
        except KeyError:
            value = self._user[name] = self._read_user(name)
            return value

    def _read_system(self, name: str) -> Value:
        index = _FIELDS.get(name)
        if index is not None:
            value = self.field(index)
            return None if value is None else identifier(value)
        if name in _ANNOTATED:
            value = self._annotation(_ANNOTATED[name])
            return None if value is None else identifier(value)
        return _KNOWN[name](self)

    def field(self, index: int) -> Any:
        """Return a decoded field of the properties section; None if the message does not have it."""
        fields = self._all_fields()
        return _decoded(fields[index], _NAMES.get(index, "properties")) if index < len(fields) else None

    @property
    def priority(self) -> int | None:
        return Annex.decode(self._annex).priority

    @property
    def durable(self) -> bool:
        return Annex.decode(self._annex).durable

    def _read_user(self, name: str) -> Value | Missing:
        spelling = self._spelling(name)
        if spelling is None:
            return MISSING
        return plain(self._all_values()[spelling])

    def _scheduled(self) -> Value:
        value = self._annotation(SCHEDULED_ENQUEUE_TIME)
        at = int(value) if isinstance(value, int) else self._scheduled_at
        return None if at is None else moment(at)

    def _first_number(self) -> Value:
        first = Annex.decode(self._annex).enqueued_number
        return self._sequence_number if first is None else first

    def _annotation(self, name: str) -> Any:
        entry = self._all_annotations().get(name)
        return None if entry is None else _decoded(entry[1], name)

    # --- changing ---

    def copy(self) -> View:
        """Return a copy of the view. Changes of the copy do not affect this view."""
        twin = View.__new__(View)
        for name in View.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._system, twin._user = self._system.copy(), self._user.copy()
        return twin

    def set_system(self, name: str, value: Value) -> None:
        """Set a system property; None removes it. If the message id is removed, a new id is generated."""
        if name in _FIELDS:
            self._set_field(name, _text(name, value))
        elif name in _ANNOTATED:
            self._annotate(_ANNOTATED[name], _text(name, value))
        elif name == "ScheduledEnqueueTimeUtc":
            if value is not None and not isinstance(value, datetime):
                raise _misfit(name, "a time", value)
            self._scheduled_at = None
            self._annotate(SCHEDULED_ENQUEUE_TIME, None if value is None else Timestamp(milliseconds_of(value)))
        elif name == "TimeToLive":
            if value is not None and not isinstance(value, timedelta):
                raise _misfit(name, "a duration", value)
            if value is not None and value < MILLISECOND:
                raise EvaluationError(f"The system property {name} must be at least a millisecond.")
            self._ttl_ms = None if value is None or value >= FOREVER else value // MILLISECOND
        else:
            raise EvaluationError(f"The system property {name} cannot be changed.")
        self._system.clear()

    def remove_system(self, name: str) -> None:
        self.set_system(name, None)

    def set_user(self, name: str, value: Value) -> None:
        """Set a user property. An existing property keeps its spelling and, if the value can be converted, its type."""
        spelling = self._spelling(name) or name
        values = self._all_values()
        wire = typed(value, values.get(spelling))
        self._written = {**self._written, spelling: _encoded(wire, name)}
        self._change_values({**values, spelling: wire})

    def remove_user(self, name: str) -> None:
        """Remove a user property, and all properties whose names differ only in case."""
        folded = fold(name)
        if self._spelling(name) is not None:
            self._change_values({key: each for key, each in self._all_values().items() if fold(key) != folded})

    def result(self) -> Changed:
        """Return the changed message, without a body if `payload` has none. Raise EvaluationError if encoding fails."""
        payload, annex = self._payload, self._annex
        if self._fields_changed:
            properties = list_section(PROPERTIES, self._all_fields())
            payload = replace_section(payload, _scanned(payload).properties, properties)
        if self._user_changed:
            try:
                payload = self._with_values(payload)
            except DecodeError as error:  # some malformed properties can be decoded together, but not one by one
                raise _unreadable("application properties", error) from error
        if self._annotations_changed:
            parts = list(chain.from_iterable(self._all_annotations().values()))
            changed = Annex.decode(annex)._replace(annotations=b"".join(parts), annotation_fields=len(parts))
            annex = changed.encode_if_any()
        session_id = None
        with suppress(EvaluationError):  # the properties cannot be decoded, and no rule needed them
            session_id = self.system("SessionId")
        return Changed(payload, annex, None if session_id is None else str(session_id), self._ttl_ms)

    def _set_field(self, name: str, value: str | None) -> None:
        if value is None and name == "MessageId":
            value = uuid4().hex
        if value is not None and name == "ContentType" and value.isascii():
            value = Symbol(value)
        index = _FIELDS[name]
        fields = self._all_fields()
        fields = fields + [NULL] * (index + 1 - len(fields))
        fields[index] = _encoded(value, name)
        self._fields, self._fields_changed = fields, True

    def _annotate(self, name: str, value: Any) -> None:
        annotations = self._all_annotations().copy()
        annotations.pop(name, None)
        if value is not None:
            annotations[name] = encode_value(Symbol(name)), _encoded(value, name)
        self._annotations, self._annotations_changed = annotations, True

    def _change_values(self, values: dict[str, Any]) -> None:
        self._values, self._user_changed = values, True
        self._folded = None
        self._user.clear()

    def _with_values(self, payload: bytes) -> bytes:
        found = _scanned(payload)
        part = found.application_properties
        values, written = self._all_values(), self._written
        fields: list[bytes] = []
        added = {name: written[name] for name in values if name in written}
        for key, value in () if part is None else raw_entries(payload, part):
            name = str(decode_value(key)[0])
            if name in values:
                fields += (key, added.pop(name, value))
        for name, value in added.items():
            fields += (encode_value(name), value)
        section = map_section(APPLICATION_PROPERTIES, fields) if fields else b""
        if part is not None:
            return replace_section(payload, part, section)
        behind = 0 if found.properties is None else found.properties.stop
        return b"".join((payload[:behind], section, payload[behind:]))

    # --- decoding ---

    def _spelling(self, name: str) -> str | None:
        values = self._all_values()
        if name in values:
            return name
        if self._folded is None:
            self._folded = {fold(each): each for each in reversed(values)}
        return self._folded.get(fold(name))

    def _all_fields(self) -> list[bytes]:
        if self._fields is None:
            try:
                part = self._sections().properties
                self._fields = [] if part is None else raw_fields(self._payload, part)
            except DecodeError as error:
                raise _unreadable("properties", error) from error
        return self._fields

    def _all_values(self) -> dict[str, Any]:
        if self._values is None:
            try:
                part = self._sections().application_properties
                decoded = {} if part is None else decode_value(self._payload, part.start)[0]
            except DecodeError as error:
                raise _unreadable("application properties", error) from error
            self._values = {str(key): value for key, value in decoded.items()}
        return self._values

    def _all_annotations(self) -> dict[Any, tuple[bytes, bytes]]:
        if self._annotations is None:
            encoded = Annex.decode(self._annex).annotations
            annotations = {}
            at = 0
            while at < len(encoded):
                name, behind_key = decode_value(encoded, at)
                end = value_end(encoded, behind_key)
                annotations[name] = encoded[at:behind_key], encoded[behind_key:end]
                at = end
            self._annotations = annotations
        return self._annotations

    def _sections(self) -> Scanned:
        if self._found is None:
            self._found = _scanned(self._payload)
            self._payload = self._found.bare
        return self._found


_FIELDS: Final = {
    "MessageId": 0,
    "To": 2,
    "Label": 3,
    "ReplyTo": 4,
    "CorrelationId": 5,
    "ContentType": 6,
    "SessionId": 10,
    "ReplyToSessionId": 12,
}
"""The indexes of system properties in the properties section (3.2.4)."""
_NAMES: Final = {index: name for name, index in _FIELDS.items()}
_ANNOTATED: Final = {"PartitionKey": PARTITION_KEY, "ViaPartitionKey": VIA_PARTITION_KEY}
_SHORT: Final = {"MessageId", "SessionId", "ReplyToSessionId", "PartitionKey", "ViaPartitionKey"}
"""System properties whose length is limited."""
_KNOWN: Final[dict[str, Callable[[View], Value]]] = {
    "TimeToLive": lambda view: None if view._ttl_ms is None else span(view._ttl_ms),
    "ScheduledEnqueueTimeUtc": View._scheduled,
    "EnqueuedTimeUtc": lambda view: moment(view._enqueued_at),
    "ExpiresAtUtc": lambda view: None if view._ttl_ms is None else moment(view._enqueued_at + view._ttl_ms),
    "LockedUntilUtc": lambda view: None,
    "SequenceNumber": lambda view: view._sequence_number,
    "EnqueuedSequenceNumber": View._first_number,
    "DeliveryCount": lambda view: view.delivery_count,
    "Size": lambda view: view._size,
    "DeadLetterSource": lambda view: Annex.decode(view._annex).dead_letter_source,
    "ForcePersistence": lambda view: False,
    "State": lambda view: ACTIVE,
    **JMS_PROPERTIES,
}
"""System properties that the broker computes. The message is in a topic and was never delivered, or is in a queue."""


def _scanned(payload: bytes) -> Scanned:
    return scan(payload) if payload else Scanned(payload)


def _decoded(encoded: bytes, name: str) -> Any:
    try:
        return decode_value(encoded)[0]
    except DecodeError as error:
        raise _unreadable(f"property '{name}'", error) from error


def _encoded(value: Any, name: str) -> bytes:
    try:
        return encode_value(value)
    except EncodeError as error:
        raise EvaluationError(f"The property '{name}' cannot be encoded: {error.description}.") from error


def _text(name: str, value: Value) -> str | None:
    if value is None:
        return None
    if isinstance(value, UUID):
        value = str(value)
    if not isinstance(value, str):
        raise _misfit(name, "text", value)
    if name in _SHORT and len(value) > MAX_ID_LENGTH:
        raise EvaluationError(f"The system property {name} has at most {MAX_ID_LENGTH} characters, not {len(value)}.")
    return value


def _misfit(name: str, wanted: str, value: Value) -> EvaluationError:
    return EvaluationError(f"The system property {name} requires {wanted}, not {kind_of(value)}.")


def _unreadable(what: str, error: DecodeError) -> EvaluationError:
    return EvaluationError(f"The {what} of the message could not be decoded: {error.description}.")
