"""The README and the documentation tell the truth: links lead somewhere, named tests exist.

Programs and commands are run by `test_clean_room`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from pages import DOCS, README, ROOT, blocks
from peeklock.broker.forwarding import REASONS
from peeklock.broker.rules.properties import SYSTEM_PROPERTIES
from peeklock.limits.broker import MAX_PATTERN, MAX_RULE_DEPTH, MAX_STATEMENTS, MAX_TEXT, MAX_TEXT_MADE
from peeklock.server.broker import Broker, Options

PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "tools" / "fuzz").glob("*.md")])
COMPATIBILITY = DOCS / "compatibility.md"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


# --- the README's programs ---


def test_the_programs_connection_string_is_the_one_the_broker_prints() -> None:
    (console, *_) = blocks(README, "console")
    (printed,) = re.findall(r"^Endpoint=\S+$", console, re.MULTILINE)
    programs = blocks(README, "python")
    assert len(programs) == 2
    assert all(f'"{printed}"' in program for program in programs)

    class Started(Broker):
        port = Options().port

    assert Started(Options()).connection_string == printed


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
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^\$ |`)(?:[A-Z]+=\S+ )?make ([a-z]+(?:-[a-z]+)*)", page.read_text(), re.MULTILINE)
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


SCENARIOS = {
    ".mjs": r'^  async "(.+)"\(',
    ".java": r'^        ALL\.put\("(.+)",',
    ".go": r'^\t\{"(.+)", func\(w \*world\) \{$',
}
"""How a scenario of an SDK in another language begins."""
COLUMNS = ["Behaviour", "Azure", "Official emulator", "Peeklock", "Proved by"]


@cache
def names_in(path: Path) -> frozenset[str]:
    """The tests of a file, as they are named after `::`."""
    if path.suffix in SCENARIOS:
        return frozenset(re.findall(SCENARIOS[path.suffix], path.read_text(), re.MULTILINE))
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


def behaviours() -> list[tuple[str, list[str]]]:
    """The rows with what Azure, the emulator and Peeklock do, under their headings."""
    others = ("Compatibility", "Differences")
    return [
        (heading, cells)
        for heading, cells in rows(COMPATIBILITY)
        if not heading.startswith(others) and cells != COLUMNS
    ]


def test_every_behaviour_says_what_azure_the_emulator_and_peeklock_do() -> None:
    assert behaviours()
    assert [cells for _, cells in behaviours() if len(cells) != len(COLUMNS) or not all(cells)] == []


def test_every_behaviour_has_a_test() -> None:
    assert [row for row in behaviours() if not re.search(r"`tests/.+::.+`", row[1][-1])] == []


def test_no_behaviour_is_listed_twice_under_one_heading() -> None:
    told = Counter((heading, cells[0]) for heading, cells in behaviours())
    assert [row for row, count in told.items() if count > 1] == []


# --- tables of the features that the code has too ---


def page_of(feature: str) -> str:
    return (DOCS / "features" / f"{feature}.md").read_text()


def test_every_system_property_is_on_the_page_of_rules_and_whether_it_can_be_set() -> None:
    told = {
        name: cells[-1].startswith("yes")
        for heading, cells in rows(DOCS / "features" / "rules.md")
        if heading == "System properties"
        for name in re.findall(r"(?<!or )`(\w+)`", cells[0])
    }
    assert told == SYSTEM_PROPERTIES


def test_every_limit_of_rules_is_on_their_page() -> None:
    limits = page_of("rules").partition("\n## Limits\n")[2]
    for limit in (MAX_TEXT, MAX_STATEMENTS, MAX_RULE_DEPTH, MAX_PATTERN, f"{MAX_TEXT_MADE:,}"):
        assert f" {limit} " in limits.replace("\n", " ")


def test_every_reason_why_a_message_cannot_be_forwarded_is_on_its_page() -> None:
    told = {cells[0].strip("`") for _, cells in rows(DOCS / "features" / "forwarding.md")}
    assert set(REASONS.values()) <= told
