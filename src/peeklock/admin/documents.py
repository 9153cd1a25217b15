"""Whole ATOM documents: the entry of one resource, and the feed of several."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from peeklock.admin.markup import ATOM, INSTANCE, SERVICE_BUS, branch, leaf
from peeklock.admin.moments import format_moment
from peeklock.server.refusals import written

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"

_IN_PATHS: Final = "/$!'()*,;:@&=+~"
_CONTENT: Final = f' xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"'


@dataclass(frozen=True, slots=True)
class Entry:
    """One resource: where it is, what it is called, and its description."""

    path: str
    """Clients take names out of it, so `Subscriptions` and `Rules` are spelt so."""
    title: str
    description: str
    """The name of the element."""
    parts: list[str]
    etag: str
    published: int | None = None
    updated: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the client found us, as links to other resources begin and end."""

    origin: str
    api_version: str
    namespace: str
    names_version: bool = True
    """Whether the request names a version of the interface. Clients that do not are old: they take all that follows the
    host, `/subscriptions` or `/rules` in an address as the name of the entity."""

    def url(self, path: str, **query: int) -> str:
        parts = [f"api-version={quote(self.api_version)}"] if self.names_version else []
        parts += (f"${name}={value}" for name, value in query.items())
        spelt = path if self.names_version else _as_old_clients_spell(path)
        address = f"{self.origin}/{quote(spelt, safe=_IN_PATHS)}"
        return f"{address}?{'&'.join(parts)}" if parts else address


def _as_old_clients_spell(path: str) -> str:
    """With `subscriptions` and `rules` in lower case; no name of a topic has a segment `Subscriptions`."""
    segments = path.split("/")
    if "Subscriptions" in segments:
        at = segments.index("Subscriptions")
        segments[at : at + 3 : 2] = [word.lower() for word in segments[at : at + 3 : 2]]
    return "/".join(segments)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list."""

    path: str
    title: str
    entries: list[Entry]
    skip: int
    top: int
    is_last: bool


def write_entry(entry: Entry, place: Place) -> str:
    return _entry(entry, place, f' xmlns="{ATOM}"')


def write_feed(page: Page, place: Place, now: int) -> str:
    """When more follows there are exactly two links, the second one to the next page: clients count them."""
    here = place.url(page.path, skip=page.skip, top=page.top)
    parts = [
        leaf("title", page.title, ' type="text"'),
        leaf("id", here),
        leaf("updated", format_moment(now)),
        _link("self", here),
    ]
    if not page.is_last:
        parts.append(_link("next", place.url(page.path, skip=page.skip + page.top, top=page.top)))
    parts += [_entry(entry, place) for entry in page.entries]
    return branch("feed", parts, f' xmlns="{ATOM}"')


def _entry(entry: Entry, place: Place, attributes: str = "") -> str:
    here = place.url(entry.path)
    parts: Iterable[str] = (
        leaf("id", here),
        leaf("title", entry.title, ' type="text"'),
        leaf("published", format_moment(entry.published)),
        leaf("updated", format_moment(entry.updated)),
        branch("author", (leaf("name", place.namespace),)),
        _link("self", here),
        branch("content", (branch(entry.description, entry.parts, _CONTENT),), ' type="application/xml"'),
    )
    return branch("entry", parts, attributes)


def _link(relation: str, url: str) -> str:
    return f'<link rel="{relation}" href="{written(url)}"/>'
