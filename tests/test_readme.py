"""The README and the documentation tell the truth: programs run, links lead somewhere, named tests exist."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from peeklock.server.broker import Broker, Options
from serving import ServedBroker

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "fuzz").glob("*.md")])
README = ROOT / "README.md"
COMPATIBILITY = DOCS / "compatibility.md"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


# --- the README's program ---


def test_the_programs_connection_string_is_the_one_the_broker_prints() -> None:
    (program,) = blocks(README, "python")
    (console, *_) = blocks(README, "console")
    (printed,) = re.findall(r"^Endpoint=\S+$", console, re.MULTILINE)
    assert f'"{printed}"' in program

    class Started(Broker):
        port = Options().port

    assert Started(Options()).connection_string == printed


def test_the_programs_ten_lines_work_as_they_stand(served: ServedBroker) -> None:
    (program,) = blocks(README, "python")
    address = f"127.0.0.1:{Options().port}"
    assert program.count(address) == 1
    assert len([line for line in program.splitlines() if line]) <= 10
    # Only the port is another one, so that tests can run side by side.
    program = program.replace(address, f"127.0.0.1:{served.port}")
    outcome = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={key: value for key, value in os.environ.items() if key != "SERVICEBUS_CONNECTION_STRING"},
    )
    assert (outcome.returncode, outcome.stdout) == (0, "Hello\n"), outcome.stderr


# --- links and names ---


def relative_links(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z][a-z0-9+.-]*:", link):
            yield link


def anchors(page: Path) -> set[str]:
    """What can stand behind the # of a link to that page: its headings, as they are turned into ids."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    found = []
    for link in relative_links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A Heading, of `sorts`\n[a](page.md#a-heading-of-sorts) [b](page.md#nowhere) [c](gone.md)")
    assert dead_links(page) == ["page.md#nowhere", "gone.md"]


def test_every_page_of_the_documentation_is_in_its_index() -> None:
    index = DOCS / "index.md"
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in relative_links(index)}
    assert [name_of(page) for page in DOCS.rglob("*.md") if page not in listed and page != index] == []


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^\$ |`)(?:[A-Z]+=\S+ )?make ([a-z]+)", page.read_text(), re.MULTILINE)
        assert set(named) <= targets, name_of(page)


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(name for extra in project["project"]["optional-dependencies"].values() for name in extra),
    ]
    text = (DOCS / "dependencies.md").read_text()
    names = [re.split(r"[<>=!~\[; ]", requirement)[0] for requirement in wanted]
    assert [name for name in names if f"`{name}`" not in text] == []


# --- the tests that docs/compatibility.md names ---


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file, as they are named after `::`."""
    if path.suffix == ".mjs":
        return frozenset(re.findall(r'^  async "(.+)"\(', path.read_text(), re.MULTILINE))
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
            found |= {f"{node.name}::{method.name}" for method in methods}
    return frozenset(found)


def named_tests() -> list[str]:
    return re.findall(r"`(tests/[^`]+::[^`]+)`", COMPATIBILITY.read_text())


def rows(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each row of each table, with the heading it stands under."""
    heading = ""
    for line in page.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not re.match(r"\|[\s|:-]+\|$", line):
            yield heading, [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.parametrize("test", sorted(set(named_tests())))
def test_a_test_that_proves_a_behaviour_exists(test: str) -> None:
    file, _, name = test.partition("::")
    assert (ROOT / file).is_file(), "there is no such file"
    assert name in names_in(ROOT / file)


def test_every_behaviour_has_a_test() -> None:
    behaviours = [(heading, cells) for heading, cells in rows(COMPATIBILITY) if cells[-1] != "Proved by"]
    without = [
        (heading, cells[0])
        for heading, cells in behaviours
        if not heading.startswith("Differences") and not re.search(r"`tests/.+::.+`", cells[-1])
    ]
    assert behaviours
    assert without == []
