"""`make demo`: the shop, and the whole run as a user starts it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from commands import environment
from serving import SOURCE

ROOT = SOURCE.parent
SECONDS = 600

sys.path.append(str(ROOT))
from examples.demo.orders import BAD_RELEASE, make_orders  # noqa: E402


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        cwd=ROOT,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_orders_are_the_same_each_time_and_some_are_sent_twice() -> None:
    first, again = list(make_orders(500)), list(make_orders(500))
    assert first == again
    ids = Counter(order.properties.message_id for order in first if order.properties is not None)
    assert len(ids) == 500
    assert 1 <= sum(times == 2 for times in ids.values()) <= 20


def test_only_one_release_forgets_the_currency() -> None:
    without = [order for order in make_orders(500) if "currency" not in json.loads(order.data[0])]
    assert without
    assert {(order.application_properties or {})["release"] for order in without} == {BAD_RELEASE}


def test_the_demonstration_ends_by_naming_the_files_that_it_made(tmp_path: Path) -> None:
    ended = run("--folder", str(tmp_path), "--orders", "300", "--seconds", "1")
    assert ended.returncode == 0, ended.stderr
    made = re.findall(rf"^  ({re.escape(str(tmp_path))}\S+)", ended.stdout.partition("Files:")[2], re.MULTILINE)
    assert len(made) == 5
    assert all(Path(each).exists() for each in made)
    (page,) = [each for each in made if each.endswith("report.html")]
    assert "Flow report" in Path(page).read_text()
    for shown in ("warehouse = Porto", "release = 4.2.0", "NoAmount"):
        assert shown in ended.stdout
    assert "SharedAccessKey" not in ended.stdout + ended.stderr


def test_without_java_the_demonstration_names_what_to_install(tmp_path: Path) -> None:
    ended = run("--folder", str(tmp_path / "made"), JAVA_HOME=str(tmp_path))
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("demo: pipelines require Java 17 or newer")
    assert not (tmp_path / "made").exists()
