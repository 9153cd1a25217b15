"""The exit codes and last lines of `python -m tools.chaos`, tested with runs that are replaced by fixed results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stories import Story

from tools.chaos import __main__ as command_line
from tools.chaos.broker import StartFailed
from tools.chaos.history import dump
from tools.chaos.history_index import Violation
from tools.chaos.run import Result, RunFailed


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Result | BaseException]:
    """The results or exceptions of the next runs, in order."""
    ends: list[Result | BaseException] = []

    class FixedRun:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def go(self) -> Result:
            end = ends.pop(0)
            if isinstance(end, BaseException):
                raise end
            return end

    monkeypatch.setattr(command_line, "Run", FixedRun)
    return ends


def test_a_run_without_violations_deletes_its_folder(
    runs: list[Result | BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.append(Result([], []))
    assert command_line.main(["--folder", str(tmp_path)]) == 0
    assert "no violation" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_kept_on_request(runs: list[Result | BaseException], tmp_path: Path) -> None:
    runs.append(Result([], []))
    assert command_line.main(["--folder", str(tmp_path), "--keep"]) == 0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_violation_is_printed_with_the_command_that_repeats_the_run(
    runs: list[Result | BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.append(Result([], [Violation("lost", "a is gone")] * 11))
    arguments = ["--seed", "5", "--faults", "3", "--broken", "acknowledge-early"]
    assert command_line.main(["--folder", str(tmp_path), *arguments]) == 1
    output = capsys.readouterr().out
    assert "  lost: 11\n    a is gone\n" in output
    assert "    … and 1 more\n" in output
    assert f"to run it again: python -m tools.chaos {' '.join(arguments)}\n" in output
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("failure", [RunFailed("no"), StartFailed("no"), OSError("no"), AssertionError("no")])
def test_a_run_that_fails_has_an_exit_code_of_its_own(
    runs: list[Result | BaseException], tmp_path: Path, capsys: pytest.CaptureFixture[str], failure: Exception
) -> None:
    runs.append(failure)
    assert command_line.main(["--folder", str(tmp_path)]) == 2
    assert "chaos: no\n" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupted_run_exits_with_130(runs: list[Result | BaseException], tmp_path: Path) -> None:
    runs.append(KeyboardInterrupt())
    assert command_line.main(["--folder", str(tmp_path)]) == 130


def test_a_history_that_was_kept_is_checked(tmp_path: Path) -> None:
    story = Story()
    file = tmp_path / "history.jsonl"
    assert command_line.main(["--check", str(file)]) == 2, "there is none"
    story.send("a")
    file.write_text("\n".join(map(dump, story.records)))
    assert command_line.main(["--check", str(file)]) == 1
    story.finish("a")
    file.write_text("\n".join(map(dump, story.records)))
    assert command_line.main(["--check", str(file)]) == 0
