"""The base class of entity definitions: a name, and settings that are checked on construction.

There are two checks. The construction checks the ranges of the `unlimited` profile, so that a definition that was
stored under one profile loads under every other profile. `check(profile)` checks the ranges of that profile; callers
use it when they create an entity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar, Self

from peeklock.entities.authorization import AuthorizationRule
from peeklock.entities.names import DefinitionError, check_entity_name, duplicate
from peeklock.entities.settings import LAXEST, PROFILES, Form, Profile, Status, known_fields, settings_of
from peeklock.limits.broker import MAX_AUTHORIZATION_RULES


class EntityKind(StrEnum):
    """The kinds of entities, by their names in the store, in metrics and in log lines."""

    QUEUE = "queue"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityDefinition:
    """The definition of a queue, topic or subscription. Fields that are annotated with a `Setting` are its settings."""

    parts: ClassVar[Mapping[str, tuple[type[Any], str]]] = {}
    """The fields that are lists, each with the type of its elements and its key in the configuration file."""

    name: str

    def __post_init__(self) -> None:
        self._check_name()
        self.check(PROFILES[LAXEST])
        self._check_together()
        for name, setting in settings_of(type(self)).items():
            if setting.form is Form.STATUS:
                object.__setattr__(self, name, Status(getattr(self, name)))
        for name, (part, key) in self.parts.items():
            check_parts(key, getattr(self, name), part)

    def check(self, profile: Profile) -> None:
        """Raise DefinitionError unless the profile allows every setting."""
        for name, setting in settings_of(type(self)).items():
            setting.check(getattr(self, name), profile)

    def _check_name(self) -> None:
        check_entity_name(self.name)

    def _check_together(self) -> None:
        """Raise DefinitionError for settings that exclude each other."""

    def to_json(self) -> dict[str, Any]:
        """Return every setting, for the store: a later default then changes no existing entity."""
        data: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name in _MARKS and value == f.default:
                continue
            if f.name in self.parts:
                value = [part.to_json() for part in value]
            data[f.name] = value.value if isinstance(value, Status) else value
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Create a definition from the result of `to_json`. Keys that only a later version knows are ignored."""
        known = known_fields(cls, data)
        for name, (part, _) in cls.parts.items():
            if name in known:
                known[name] = tuple(part.from_json(each) for each in known[name])
        return cls(**known)


_MARKS = ("temporary", "shared")
"""Fields that cannot be set by administration. They are stored only if they differ from the default."""


def check_parts(setting: str, parts: tuple[Any, ...], kind: type[Any]) -> None:
    """Raise DefinitionError unless all parts have this type and different names, and there are not too many."""
    for part in parts:
        if not isinstance(part, kind):
            raise DefinitionError(setting, part, f"must be of the kind {kind.__name__}")
    if kind is AuthorizationRule and len(parts) > MAX_AUTHORIZATION_RULES:
        raise DefinitionError(setting, f"({len(parts)})", f"must be at most {MAX_AUTHORIZATION_RULES}")
    repeated = duplicate(part.name for part in parts)
    if repeated is not None:
        raise DefinitionError(setting, parts[repeated].name, "must not occur twice; names are case-insensitive")
