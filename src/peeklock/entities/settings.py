"""The type of settings, the parsing and checking of their values, and the profiles, which limit the allowed values.

`definitions` declares every setting and the entities that have it. The configuration file, ATOM documents, CLI options,
schema and documentation are derived from these declarations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, StrEnum, auto
from typing import Any, Generic, TypeVar, get_type_hints

from peeklock.entities.durations import MAX_DURATION_MS, format_duration, parse_duration
from peeklock.entities.names import DefinitionError, check_entity_name
from peeklock.limits.broker import MAX_TEXT

T = TypeVar("T")


class Form(Enum):
    """The type of a setting's value."""

    FLAG = auto()
    COUNT = auto()
    DURATION = auto()
    """ISO 8601 text in files and documents; milliseconds in definitions."""
    STATUS = auto()
    TEXT = auto()
    ENTITY = auto()
    """The name of a queue or topic; its address in ATOM documents."""


class Status(StrEnum):
    """The values of the setting Status."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


Plain = bool | int | str
"""A value in the configuration file, in ATOM documents or in CLI options."""


@dataclass(frozen=True, slots=True, eq=False)
class Setting(Generic[T]):
    """The declaration of a setting."""

    name: str
    """The name in the ATOM API and in the emulator's configuration file."""
    form: Form
    default: T
    note: str
    """A description for the help of the command line, the schema and the documentation."""
    changeable: bool = True
    """Whether the setting can be changed after the entity was created."""
    optional: bool = False
    """Whether None is allowed. It means no limit for a duration, the profile's limit for a size, and no text."""
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The smallest and the largest value by profile; durations in milliseconds."""
    profile_defaults: Mapping[str, int] = field(default_factory=dict)
    """The defaults in profiles whose default differs from `default`."""
    since: str = ""
    """The oldest version of the ATOM API that has the setting; empty: all versions."""
    own: bool = False
    """Whether only Peeklock has the setting. ATOM documents contain it only if it differs from the default."""

    def parse(self, value: object) -> object:
        """Convert the value in a file or document to the value of the field. `check` checks type and range."""
        if self.form is Form.DURATION:
            if not isinstance(value, str):
                raise DefinitionError(self.name, value, 'must be an ISO 8601 duration such as "PT1M"')
            try:
                return parse_duration(value)
            except ValueError:
                rule = "must be an ISO 8601 duration such as PT30S, PT5M or P1DT12H"
                raise DefinitionError(self.name, value, rule) from None
        # The emulator's own configuration files have "" for a destination that is not set.
        return None if self.optional and value == "" else value

    def format(self, value: Any) -> Any:
        """Convert the value of the field to the value in a file or document, the reverse of `parse`."""
        return format_duration(value) if self.form is Form.DURATION else value

    def check(self, value: object, profile: Profile) -> None:
        """Raise DefinitionError unless the profile allows the value."""
        if value is None and self.optional and self.form is not Form.DURATION:
            return
        match self.form:
            case Form.FLAG:
                if not isinstance(value, bool):
                    raise DefinitionError(self.name, repr(value), "must be true or false")
            case Form.COUNT | Form.DURATION:
                self._check_range(value, profile)
            case Form.STATUS:
                if value not in list(Status):
                    raise DefinitionError(self.name, value, f"must be one of {', '.join(Status)}")
            case Form.TEXT:
                if not isinstance(value, str) or len(value) > MAX_TEXT:
                    raise DefinitionError(self.name, value, f"must be text of at most {MAX_TEXT} characters")
            case Form.ENTITY:
                check_entity_name(value, self.name)

    def _check_range(self, value: object, profile: Profile) -> None:
        duration = self.form is Form.DURATION
        low, high = self.ranges[profile.name]
        if value is None and duration:
            value = MAX_DURATION_MS
        if not isinstance(value, int) or isinstance(value, bool):
            raise DefinitionError(self.name, repr(value), "must be a whole number")
        if not low <= value <= high:
            shown = format_duration if duration else str
            bounds = shown(low) if low == high else f"from {shown(low)} to {shown(high)}"
            where = "" if profile.name == LAXEST else f" in the {profile.name} profile"
            found = f"{value} ms" if duration and value < 0 else shown(value)
            raise DefinitionError(self.name, found, f"must be {bounds}{where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The limits of a tier of the service or of the emulator. The ranges of settings are in their declarations."""

    name: str
    max_message_bytes: int
    max_deleted_messages: int
    """The maximum number of messages that one request deletes."""
    max_entities: int
    """The maximum number of queues and topics together."""
    max_subscriptions: int
    """The maximum number of subscriptions of a topic."""
    max_sql_filters: int
    """The maximum number of SQL filters of all subscriptions of a topic together."""
    max_correlation_filters: int
    """The most correlation filters of all subscriptions of a topic together."""

    def defaults_for(self, kind: type) -> dict[str, Any]:
        """Return this profile's defaults for the fields whose default differs from that of the setting."""
        return {
            name: setting.profile_defaults[self.name]
            for name, setting in settings_of(kind).items()
            if self.name in setting.profile_defaults
        }


LAXEST = "unlimited"
PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="standard",
            max_message_bytes=256 * 1024,
            max_deleted_messages=500,
            max_entities=10_000,
            max_subscriptions=2_000,
            max_sql_filters=2_000,
            max_correlation_filters=100_000,
        ),
        Profile(
            name="premium",
            max_message_bytes=100 * 1024 * 1024,
            max_deleted_messages=4000,
            max_entities=1_000,
            max_subscriptions=2_000,
            max_sql_filters=2_000,
            max_correlation_filters=100_000,
        ),
        Profile(
            name="emulator",
            max_message_bytes=256 * 1024,
            max_deleted_messages=500,
            max_entities=50,
            max_subscriptions=50,
            max_sql_filters=20,
            max_correlation_filters=1_000,
        ),
        Profile(
            name=LAXEST,
            max_message_bytes=100 * 1024 * 1024,
            max_deleted_messages=4000,
            max_entities=2**31 - 1,
            max_subscriptions=2**31 - 1,
            max_sql_filters=2**31 - 1,
            max_correlation_filters=2**31 - 1,
        ),
    )
}
DEFAULT_PROFILE = PROFILES["standard"]


def in_profiles(
    usual: tuple[int, int],
    *,
    premium: tuple[int, int] | None = None,
    emulator: tuple[int, int] | None = None,
    unlimited: tuple[int, int] | None = None,
) -> dict[str, tuple[int, int]]:
    """Return the range of a setting by profile: `usual` for the profiles without a range of their own."""
    others = {"premium": premium, "emulator": emulator, LAXEST: unlimited}
    return {name: others.get(name) or usual for name in PROFILES}


def settings_of(kind: type) -> dict[str, Setting[Any]]:
    """Return the settings of a kind of entity by the name of the field, in the order of the ATOM API."""
    found = _SETTINGS.get(kind)
    if found is None:
        hints = get_type_hints(kind, include_extras=True)
        found = _SETTINGS[kind] = {
            f.name: note
            for f in fields(kind)
            for note in getattr(hints[f.name], "__metadata__", ())
            if isinstance(note, Setting)
        }
    return found


_SETTINGS: dict[type, dict[str, Setting[Any]]] = {}


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored data without the fields that this version does not know; a later version may have them."""
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
