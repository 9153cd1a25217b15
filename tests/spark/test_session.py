"""What a pipeline needs on the machine is told before anything of Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from peeklock.spark import classes, session


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
def test_a_recent_java_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert session.missing() is None


def test_under_spark_submit_java_is_its_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert session.missing() is None


# --- settings


@pytest.fixture
def no_java_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing in the environment, and an empty cache."""
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def java_options(settings: dict[str, str]) -> list[str]:
    return settings["spark.driver.extraJavaOptions"].split()


@pytest.mark.usefixtures("no_java_options")
def test_a_spark_for_little_data_has_one_task_at_a_time_and_a_java_that_starts_soon() -> None:
    large = session.session_settings("*", {})
    small = session.session_settings("*", {}, small=True)
    assert {name: small[name] for name in session.SMALL_SETTINGS} == session.SMALL_SETTINGS
    assert "spark.sql.adaptive.enabled" not in large
    assert [each for each in java_options(small) if each not in java_options(large)] == [*session.SMALL_JAVA]


@pytest.mark.usefixtures("no_java_options")
def test_settings_for_little_data_are_not_for_a_cluster_and_do_not_replace_those_of_the_user() -> None:
    cluster = {"spark.master": "spark://host:7077"}
    assert session.session_settings("*", cluster, small=True) == session.session_settings("*", cluster)
    chosen = {"spark.sql.shuffle.partitions": "7", "spark.driver.extraJavaOptions": "-Xss4m"}
    found = session.session_settings("*", chosen, small=True)
    assert {name: found[name] for name in chosen} == chosen


@pytest.mark.usefixtures("no_java_options")
def test_under_spark_submit_nothing_is_set_but_what_every_session_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert session.session_settings("*", {}, small=True) == session.SETTINGS


@pytest.mark.usefixtures("no_java_options")
def test_options_of_java_in_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:+UseZGC")
    assert session.java_options(small=True) == []


@pytest.mark.usefixtures("no_java_options")
def test_an_archive_of_classes_is_used_when_it_is_there_for_this_java(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    homes = tmp_path / "one", tmp_path / "other"
    for home in homes:
        home.mkdir()
        java(home, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(homes[0]))
    file = classes.archive()
    assert file is not None
    assert file.parent == tmp_path / "cache" / "peeklock"
    assert session.java_options() == []
    file.parent.mkdir(parents=True)
    file.touch()
    assert session.java_options()[0] == f"-XX:SharedArchiveFile={file}"
    monkeypatch.setenv("JAVA_HOME", str(homes[1]))
    assert session.java_options() == []


@pytest.mark.usefixtures("no_java_options")
def test_an_archive_that_java_does_not_write_is_an_error_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    java(tmp_path, "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(OSError, match="the archive of Spark's classes cannot be made"):
        classes.make_archive(tmp_path / "cache" / "classes.jsa")
    assert list((tmp_path / "cache").iterdir()) == []
    with pytest.raises(OSError, match="must not contain spaces"):
        classes.make_archive(tmp_path / "a cache" / "classes.jsa")
