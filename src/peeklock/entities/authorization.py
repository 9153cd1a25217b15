"""Authorization rules: named pairs of keys, and the rights that they grant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from peeklock.entities.names import DefinitionError, check_subscription_name
from peeklock.entities.settings import known_fields

DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
DEFAULT_KEY = "SAS_KEY_VALUE"
"""The emulator's key, which is public: the server accepts it only on loopback addresses."""


class Right(StrEnum):
    """The rights of an authorization rule."""

    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


ALL_RIGHTS = frozenset(Right)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A named pair of keys and the rights that they grant. Manage includes the other rights, as at the service."""

    name: str
    primary_key: str = field(repr=False)
    secondary_key: str | None = field(default=None, repr=False)
    rights: frozenset[Right]

    def __post_init__(self) -> None:
        check_subscription_name(self.name)
        _check_key("PrimaryKey", self.primary_key)
        if self.secondary_key is not None:
            _check_key("SecondaryKey", self.secondary_key)
        unknown = sorted(str(right) for right in self.rights if right not in ALL_RIGHTS)
        if unknown or not self.rights:
            raise DefinitionError("Rights", unknown, f"must be one or more of {', '.join(Right)}")
        rights = frozenset(map(Right, self.rights))
        object.__setattr__(self, "rights", ALL_RIGHTS if Right.MANAGE in rights else rights)

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.primary_key,) if self.secondary_key is None else (self.primary_key, self.secondary_key)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "primary_key": self.primary_key,
            "secondary_key": self.secondary_key,
            "rights": sorted(self.rights),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = known_fields(cls, data)
        return cls(**known | {"rights": frozenset(known.get("rights", ()))})


def _check_key(setting: str, key: object) -> None:
    # Other characters cannot be in a connection string. The error must not contain the key.
    if not isinstance(key, str) or not re.fullmatch(r"[!-:<-~]{1,256}", key):
        rule = "must be 1 to 256 printable ASCII characters without blanks and semicolons"
        raise DefinitionError(setting, "(not shown)", rule)


def default_authorization_rule() -> AuthorizationRule:
    return AuthorizationRule(name=DEFAULT_KEY_NAME, primary_key=DEFAULT_KEY, rights=ALL_RIGHTS)
