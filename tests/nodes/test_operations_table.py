"""The table of operations, compared with the public documentation: all operations, and all their keys."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from peeklock.entities.authorization import Right
from peeklock.nodes.operation_table import OPERATIONS
from peeklock.nodes.reference import page, walk

ROOT = Path(__file__).parents[2]

DOCUMENTED = """
com.microsoft:renew-lock
    > lock-tokens                                            array of uuid       required
    < expirations                                            array of timestamp  required

com.microsoft:peek-message
    > from-sequence-number                                   long                required
    > message-count                                          int                 required
    > session-id                                             string              optional
    < messages                                               list of map         required
    < messages.message                                       binary              required

com.microsoft:schedule-message
    > messages                                               list of map         required
    > messages.message-id                                    string              required
    > messages.session-id                                    string              optional
    > messages.partition-key                                 string              optional
    > messages.via-partition-key                             string              optional
    > messages.message                                       binary              required
    < sequence-numbers                                       array of long       required

com.microsoft:cancel-scheduled-message
    > sequence-numbers                                       array of long       required
    < sequence-numbers                                       array of long       required

com.microsoft:renew-session-lock
    > session-id                                             string              required
    < expiration                                             timestamp           required

com.microsoft:set-session-state
    > session-id                                             string              required
    > session-state                                          binary              required

com.microsoft:get-session-state
    > session-id                                             string              required
    < session-state                                          binary              required

com.microsoft:get-message-sessions
    > last-updated-time                                      timestamp           required
    > skip                                                   int                 required
    > top                                                    int                 required
    < skip                                                   int                 required
    < sessions-ids                                           array of string     required

com.microsoft:add-rule
    > rule-name                                              string              required
    > rule-description                                       map                 required
    > rule-description.sql-filter                            map                 required
    > rule-description.sql-filter.expression                 string              required
    > rule-description.correlation-filter                    map                 required
    > rule-description.correlation-filter.correlation-id     string              optional
    > rule-description.correlation-filter.message-id         string              optional
    > rule-description.correlation-filter.to                 string              optional
    > rule-description.correlation-filter.reply-to           string              optional
    > rule-description.correlation-filter.label              string              optional
    > rule-description.correlation-filter.session-id         string              optional
    > rule-description.correlation-filter.reply-to-session-id  string            optional
    > rule-description.correlation-filter.content-type       string              optional
    > rule-description.correlation-filter.properties         map                 optional
    > rule-description.sql-rule-action                       map                 required
    > rule-description.sql-rule-action.expression            string              required

com.microsoft:remove-rule
    > rule-name                                              string              required

com.microsoft:enumerate-rules
    > top                                                    int                 required
    > skip                                                   int                 required
    < rules                                                  list of map         required
    < rules.rule-description                                 described list      required

com.microsoft:receive-by-sequence-number
    > sequence-numbers                                       array of long       required
    > receiver-settle-mode                                   ubyte               required
    < messages                                               list of map         required
    < messages.lock-token                                    uuid                required
    < messages.message                                       binary              required

com.microsoft:update-disposition
    > disposition-status                                     string              required
    > lock-tokens                                            array of uuid       required
    > deadletter-reason                                      string              optional
    > deadletter-description                                 string              optional
    > properties-to-modify                                   map                 optional
"""
"""Requests (>) and responses (<) as in the tables of the documentation. The two peeks are one operation.

If versions differ, the newest decides which keys are required. Its `array of byte` is AMQP's binary.
"""

RELAXED = {
    ("com.microsoft:schedule-message", ">", "messages.message-id"): "SDKs send null when a message has no id",
    ("com.microsoft:set-session-state", ">", "session-state"): "null clears the state",
    ("com.microsoft:add-rule", ">", "rule-description.sql-filter"): "one of the two filters is enough",
    ("com.microsoft:add-rule", ">", "rule-description.correlation-filter"): "one of the two filters is enough",
    ("com.microsoft:add-rule", ">", "rule-description.sql-rule-action"): "SDKs leave it out when there is none",
    ("com.microsoft:receive-by-sequence-number", "<", "messages.lock-token"): "only under a lock, as it says itself",
}
"""Keys that the documentation requires and the broker does not."""
LEFT_OUT = {
    ("com.microsoft:cancel-scheduled-message", "<", "sequence-numbers"): "listed in 2017, no longer in 2021",
}
OURS = {
    f"peeklock:{name}" for name in ("claim-messages", "read-packed", "remove-claim", "release-claim", "list-claims")
}
BEYOND = {"com.microsoft:batch-delete-messages", *OURS}
"""Operations that SDKs use but the documentation lacks, and operations that only Peeklock has."""


class Key(NamedTuple):
    operation: str
    direction: str
    path: str
    kind: str
    required: bool


def documented() -> list[Key]:
    keys, operation = [], ""
    for line in filter(None, DOCUMENTED.splitlines()):
        if not line.startswith(" "):
            operation = line
            continue
        direction, path, *kind, required = line.split()
        keys.append(Key(operation, direction, path, " ".join(kind), required == "required"))
    return keys


def tabulated() -> dict[tuple[str, str, str], Key]:
    keys = [
        Key(name, direction, path, field.kind.value, field.required)
        for name, operation in OPERATIONS.items()
        for direction, fields in ((">", operation.request), ("<", operation.response))
        for path, field in walk(fields)
    ]
    return {key[:3]: key for key in keys}


def test_every_documented_operation_is_in_the_table() -> None:
    names = {key.operation for key in documented()}
    assert len(names) == 13
    assert set(OPERATIONS) == names | BEYOND
    assert all(name == operation.name for name, operation in OPERATIONS.items())


@pytest.mark.parametrize("key", documented(), ids=lambda key: f"{key.operation}{key.direction}{key.path}")
def test_every_documented_key_is_in_the_table(key: Key) -> None:
    if key[:3] in LEFT_OUT:
        assert key[:3] not in tabulated()
        return
    expected = key._replace(required=key.required and key[:3] not in RELAXED)
    assert tabulated()[key[:3]] == expected


def test_keys_beyond_the_documentation_are_optional() -> None:
    known = {key[:3] for key in documented()}
    for place, key in tabulated().items():
        if place not in known and key.operation not in BEYOND:
            assert (key.direction, key.required) == (">", False), key


def test_the_keys_of_the_exceptions_are_documented() -> None:
    assert {*RELAXED, *LEFT_OUT} <= {key[:3] for key in documented()}


def test_sending_operations_need_send_and_all_others_listen() -> None:
    sending = {name for name, operation in OPERATIONS.items() if operation.right is Right.SEND}
    assert sending == {"com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message"}
    assert {operation.right for operation in OPERATIONS.values()} == {Right.SEND, Right.LISTEN}


def test_two_operations_can_be_part_of_a_transaction() -> None:
    transactional = {name for name, operation in OPERATIONS.items() if operation.transactional}
    assert transactional == {"com.microsoft:schedule-message", "com.microsoft:update-disposition"}


def test_the_reference_page_matches_the_table() -> None:
    written = (ROOT / "docs" / "management-operations.md").read_text()
    assert written == page(), "run: python -m peeklock.nodes.reference > docs/management-operations.md"


def test_the_reference_page_has_a_section_for_each_operation_and_a_row_for_each_key() -> None:
    sections = page().split("\n### ")[1:]
    assert [section.split("\n")[0] for section in sections] == list(OPERATIONS)
    for section, operation in zip(sections, OPERATIONS.values(), strict=True):
        for path, _ in walk(operation.request + operation.response):
            assert f"| `{path}` |" in section


def test_the_generator_is_run_as_a_module() -> None:
    command = [sys.executable, "-m", "peeklock.nodes.reference"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / "src")})
    assert ran.stdout == page()
