"""The site of the documentation: links to the repository, the checks of the built site, and the navigation."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pages import DOCS, ROOT
from tools.site.check import problems
from tools.site.diagrams import with_pictures
from tools.site.repository import repository_url, with_repository_links

URL = "https://example.org/peeklock"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "features").mkdir(parents=True)
    (tmp_path / "docs" / "other.md").touch()
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "batch.py").touch()
    (tmp_path / "README.md").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("page", "link", "address"),
    [
        ("index.md", "../README.md", f"{URL}/blob/main/README.md"),
        ("index.md", "../README.md#start", f"{URL}/blob/main/README.md#start"),
        ("index.md", "../examples", f"{URL}/tree/main/examples"),
        ("features/queues.md", "../../examples/batch.py", f"{URL}/blob/main/examples/batch.py"),
        ("features/queues.md", "../other.md", "../other.md"),
        ("index.md", "other.md", "other.md"),
        ("index.md", "https://example.com/a", "https://example.com/a"),
        ("index.md", "../gone.md", "../gone.md"),
        ("index.md", "../../README.md", "../../README.md"),
    ],
)
def test_a_link_to_a_file_outside_docs_leads_to_the_repository(root: Path, page: str, link: str, address: str) -> None:
    assert with_repository_links(f"a [link]({link}).", page, URL, root) == f"a [link]({address})."


def test_links_in_code_stay_as_they_are(root: Path) -> None:
    text = "`[a](../README.md)`\n\n```\n[a](../README.md)\n```\n"
    assert with_repository_links(text, "index.md", URL, root) == text


def test_a_diagram_becomes_a_picture_beside_the_pages(root: Path) -> None:
    text = "Before\n\n```mermaid\nflowchart LR\n  accTitle: One after the other\n  first --> second\n```\n\nAfter\n"
    page = root / "docs" / "features" / "queues.md"
    (picture,) = re.findall(
        r"^!\[One after the other\]\((.+)\)$", with_pictures(text, page, root / "docs/d"), re.MULTILINE
    )
    svg = ElementTree.parse(page.parent / picture).getroot()
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"first", "second"} <= {text.strip() for text in svg.itertext()}


@pytest.mark.parametrize("diagram", ["flowchart LR\n  a --> b\n", "no diagram\n  accTitle: A\n"])
def test_a_diagram_without_a_title_or_with_a_mistake_is_refused(root: Path, diagram: str) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        with_pictures(f"```mermaid\n{diagram}```\n", root / "docs" / "index.md", root / "docs" / "diagrams")


def test_the_repository_has_an_address() -> None:
    assert repository_url().startswith("https://")


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="other.html">', []),
        ('<a href="other.html#here">', []),
        ('<a href="#there">', ["page.html links to #there, which does not exist"]),
        ('<a href="gone.html">', ["page.html links to gone.html, which does not exist"]),
        ('<a href="other.html#gone">', ["page.html links to other.html#gone, which does not exist"]),
        ('<img src="gone.svg">', ["page.html links to gone.svg, which does not exist"]),
        ('<a href="https://example.com/">', []),
        ('<link rel="canonical" href="https://example.com/">', []),
        ('<script src="https://example.com/a"></script>', ["page.html loads https://example.com/a from another host"]),
        ('<link rel="stylesheet" href="//example.com/a">', ["page.html loads //example.com/a from another host"]),
    ],
)
def test_a_broken_link_and_a_load_from_another_host_are_found(tmp_path: Path, html: str, found: list[str]) -> None:
    (tmp_path / "page.html").write_text(html)
    (tmp_path / "other.html").write_text('<h2 id="here">')
    assert list(problems(tmp_path)) == found


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from _pages(value)


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(_pages(navigation)) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
