"""Writing of complete ATOM documents: the entry of one resource, and the feed of a list of resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element

from peeklock.atom.entries import add_content, document
from peeklock.atom.markup import branch, leaf, to_text
from peeklock.atom.moments import format_moment
from peeklock.entities.names import SUBSCRIPTIONS

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"

_IN_PATHS: Final = "/$!'()*,;:@&=+~"


@dataclass(frozen=True, slots=True)
class Entry:
    """The contents of the entry of one resource."""

    path: str
    """The path of the resource. Clients extract names from it, so `Subscriptions` and `Rules` have this spelling."""
    title: str
    description: Element
    etag: str
    published: int | None = None
    updated: int | None = None


@dataclass(frozen=True, slots=True)
class UrlBuilder:
    """Builds the addresses in a response, from the address that the client used for its request."""

    origin: str
    api_version: str
    namespace: str
    names_version: bool = True
    """Whether the request has an api-version. Old clients do not send it: they extract the name of an entity as the
    text after the host, `/subscriptions` or `/rules` in an address."""

    def url(self, path: str, **query: int) -> str:
        parts = [f"api-version={quote(self.api_version)}"] if self.names_version else []
        parts += (f"${name}={value}" for name, value in query.items())
        spelt = path if self.names_version else _as_old_clients_spell(path)
        address = f"{self.origin}/{quote(spelt, safe=_IN_PATHS)}"
        return f"{address}?{'&'.join(parts)}" if parts else address


def _as_old_clients_spell(path: str) -> str:
    """Return the path with `subscriptions` and `rules` in lower case; no topic has a segment `Subscriptions`."""
    segments = path.split("/")
    if SUBSCRIPTIONS in segments:
        at = segments.index(SUBSCRIPTIONS)
        segments[at : at + 3 : 2] = [word.lower() for word in segments[at : at + 3 : 2]]
    return "/".join(segments)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    path: str
    title: str
    entries: list[Entry]
    skip: int
    top: int
    is_last: bool


def write_entry(entry: Entry, urls: UrlBuilder) -> str:
    root = document("entry")
    _fill(root, entry, urls)
    return to_text(root)


def write_feed(page: Page, urls: UrlBuilder, now: int) -> str:
    """Write a page as a feed.

    If it is not the last page, there are exactly two links, and the second one leads to the next page: clients count
    the links.
    """
    here = urls.url(page.path, skip=page.skip, top=page.top)
    feed = document("feed")
    leaf(feed, "title", page.title, type="text")
    leaf(feed, "id", here)
    leaf(feed, "updated", format_moment(now))
    branch(feed, "link", rel="self", href=here)
    if not page.is_last:
        branch(feed, "link", rel="next", href=urls.url(page.path, skip=page.skip + page.top, top=page.top))
    for entry in page.entries:
        _fill(branch(feed, "entry"), entry, urls)
    return to_text(feed)


def _fill(element: Element, entry: Entry, urls: UrlBuilder) -> None:
    here = urls.url(entry.path)
    leaf(element, "id", here)
    leaf(element, "title", entry.title, type="text")
    leaf(element, "published", format_moment(entry.published))
    leaf(element, "updated", format_moment(entry.updated))
    leaf(branch(element, "author"), "name", urls.namespace)
    branch(element, "link", rel="self", href=here)
    add_content(element, entry.description)
