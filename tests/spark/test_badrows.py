"""Rows that cannot be written: fail, drop, or keep."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from peeklock.spark.badrows import BadRow, BadRows


def kept(folder: Path) -> list[list[dict[str, object]]]:
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(folder.iterdir())]


def test_a_bad_row_fails_and_is_named() -> None:
    with (
        BadRows("fail", "write/3", 3) as bad,
        pytest.raises(BadRow, match="row 7 of partition 3 cannot be written: why"),
    ):
        bad.add(7, "why", {})


def test_a_row_that_is_dropped_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), BadRows("drop", "write/3", 3) as bad:
        bad.add(7, "why", {})
        bad.add(8, "why not", {})
    assert bad.count == 2
    assert caplog.messages == ["row 7 of partition 3 is dropped: why", "row 8 of partition 3 is dropped: why not"]


def test_a_row_that_is_kept_has_its_values_and_the_reason(tmp_path: Path) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    with BadRows(f"path:{tmp_path}", "query/5/3", 3) as bad:
        bad.add(7, "why", {"body": b"\xff", "subject": "ü", "at": moment, "application_properties": {"a": None}})
        bad.add(9, "why not", {"body": None})
    assert bad.count == 2
    first = {
        "reason": "why",
        "partition": 3,
        "row": 7,
        "body": "/w==",
        "subject": "ü",
        "at": "2030-01-01T00:00:00+00:00",
    }
    assert kept(tmp_path) == [
        [
            {**first, "application_properties": {"a": None}},
            {"reason": "why not", "partition": 3, "row": 9, "body": None},
        ]
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["query-5-3.jsonl"]


def test_a_task_without_bad_rows_leaves_no_file(tmp_path: Path) -> None:
    with BadRows(f"path:{tmp_path / 'new'}", "write/3", 3):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_attempt_that_fails_leaves_nothing_and_the_next_one_all(tmp_path: Path) -> None:
    def attempt() -> None:
        with BadRows(f"path:{tmp_path}", "write/3", 3) as bad:
            bad.add(7, "why", {})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        attempt()
    assert list(tmp_path.iterdir()) == []
    for _ in range(2):
        with BadRows(f"path:{tmp_path}", "write/3", 3) as bad:
            bad.add(7, "why", {})
    assert kept(tmp_path) == [[{"reason": "why", "partition": 3, "row": 7}]]


def test_tasks_keep_their_rows_beside_each_other(tmp_path: Path) -> None:
    with BadRows(f"path:{tmp_path}", "write/1", 1) as one, BadRows(f"path:{tmp_path}", "write/2", 2) as two:
        one.add(1, "why", {})
        two.add(1, "why", {})
    assert [rows[0]["partition"] for rows in kept(tmp_path)] == [1, 2]
