"""What a pipeline needs on the machine is told before anything of Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from peeklock.spark import session


@pytest.fixture
def no_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of other tests in this process leaves its mark in the environment."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("JAVA_HOME", raising=False)


def java(folder: Path, version: str) -> Path:
    """A Java that says it is of this version."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2030-01-01' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.usefixtures("no_spark_submit")
@pytest.mark.parametrize("absent", ["pyspark", "pyarrow"])
def test_without_pyspark_or_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == absent else object())
    said = session.missing()
    assert said is not None
    assert "pip install 'peeklock[spark]'" in said


@pytest.mark.usefixtures("no_spark_submit")
def test_a_java_that_is_too_old_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = java(tmp_path, "11.0.2")
    monkeypatch.setenv("PATH", str(program.parent))
    said = session.missing()
    assert said is not None
    assert f"{program} is version 11" in said


@pytest.mark.usefixtures("no_spark_submit")
def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    said = session.missing()
    assert said is not None
    assert f"JAVA_HOME ({tmp_path / 'nothing'}) has none" in said


@pytest.mark.usefixtures("no_spark_submit")
def test_a_java_that_is_new_enough_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert session.missing() is None


def test_under_spark_submit_java_is_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert session.missing() is None
