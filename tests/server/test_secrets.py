"""Files with keys: a warning when other users can read them, and none otherwise."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from peeklock.entities.authorization import DEFAULT_KEY, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.secrets import has_keys, warn_of_readers


@pytest.mark.parametrize(
    ("mode", "warned"), [(0o600, False), (0o400, False), (0o700, False), (0o640, True), (0o604, True), (0o644, True)]
)
def test_a_file_that_other_users_can_read_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warned: bool
) -> None:
    path = tmp_path / "key.pem"
    path.touch()
    path.chmod(mode)
    with caplog.at_level(logging.WARNING):
        warn_of_readers(path, "a private key")
    fields = [record.__dict__["fields"] for record in caplog.records]
    assert fields == ([{"file": path, "mode": f"{mode:04o}"}] if warned else [])
    assert all("a file with a private key can be read by other users" in record.message for record in caplog.records)


def test_a_missing_file_causes_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_readers(tmp_path / "missing", "keys")
    assert not caplog.records


def test_the_well_known_key_is_no_secret_and_any_other_is_one() -> None:
    def rule(key: str, second: str | None = None) -> tuple[AuthorizationRule, ...]:
        return (AuthorizationRule(name="a", primary_key=key, secondary_key=second, rights=frozenset({Right.SEND})),)

    assert not has_keys(NamespaceDefinition())
    assert has_keys(NamespaceDefinition(authorization_rules=rule("own")))
    assert has_keys(NamespaceDefinition(authorization_rules=rule(DEFAULT_KEY, "own")))
    assert has_keys(NamespaceDefinition(queues=(QueueDefinition(name="q", authorization_rules=rule("own")),)))
