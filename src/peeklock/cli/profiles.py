"""The names of the profiles, as the choices of an option."""

from __future__ import annotations

from enum import StrEnum

from peeklock.entities.settings import PROFILES

ProfileName = StrEnum("ProfileName", {name.upper(): name for name in PROFILES})  # type: ignore[misc]
