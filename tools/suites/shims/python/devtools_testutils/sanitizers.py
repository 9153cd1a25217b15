"""Functions that remove secrets from recordings; they do nothing, because nothing is recorded."""

from __future__ import annotations

from typing import Any


def add_remove_header_sanitizer(**_: Any) -> None:
    pass


def add_general_regex_sanitizer(**_: Any) -> None:
    pass


def add_oauth_response_sanitizer(**_: Any) -> None:
    pass


def set_custom_default_matcher(**_: Any) -> None:
    pass
