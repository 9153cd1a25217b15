"""Checks of a built site: broken links, and resources that a page loads from other hosts.

The site must work without a network, so pages must not load resources from other hosts. Links to them are allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote

_LOADED: Final = {
    "audio": ("src",),
    "embed": ("src",),
    "iframe": ("src",),
    "img": ("src",),
    "input": ("src",),
    "link": ("href",),
    "object": ("data",),
    "script": ("src",),
    "source": ("src",),
    "track": ("src",),
    "video": ("src", "poster"),
}
"""The attributes whose address a browser fetches without a click."""
_NOT_FETCHED: Final = {"canonical", "next", "prev"}
"""Relations of `link` elements that load nothing."""
_OUTSIDE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


class _Page(HTMLParser):
    """The ids, resources and link targets of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag != "link" or given.get("rel") not in _NOT_FETCHED:
            self.loads += [given[name] for name in _LOADED.get(tag, ()) if given.get(name)]


def problems(site: Path) -> Iterator[str]:
    """Yield each problem as a sentence with the name of the page."""
    pages = {path.resolve(): _Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if name.name == "404.html":  # served for any address, so its links are absolute
            continue
        for address in page.loads:
            if _OUTSIDE.match(address) and not address.startswith("data:"):
                yield f"{name} loads {address} from another host"
        for address in page.links + page.loads:
            if not _OUTSIDE.match(address) and not _leads_somewhere(address, path, pages):
                yield f"{name} links to {address}, which does not exist"


def _leads_somewhere(address: str, page: Path, pages: dict[Path, _Page]) -> bool:
    path, _, anchor = address.partition("#")
    target = (page.parent / unquote(path.partition("?")[0])).resolve() if path else page
    if target.is_dir():
        target /= "index.html"
    if target in pages:
        return not anchor or anchor == "__top" or unquote(anchor) in pages[target].ids
    return target.exists()
