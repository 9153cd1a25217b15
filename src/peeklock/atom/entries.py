"""ATOM entries and feeds: the documents around descriptions."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from peeklock.atom.markup import ATOM, INSTANCE, SERVICE_BUS, MarkupError, branch


def description(name: str) -> Element:
    """Create the root of a description. Names in it have no prefix; `i:` is the prefix of the attribute `type`."""
    return Element(name, {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE})


def document(name: str) -> Element:
    """Create the root of an ATOM document, `entry` or `feed`."""
    return Element(name, {"xmlns": ATOM})


def add_content(entry: Element, description: Element) -> None:
    """Add a description to an entry."""
    branch(entry, "content", type="application/xml").append(description)


def entries_of(root: Element) -> list[Element]:
    """Return the entries of a feed, or the root if it is an entry."""
    return [root] if root.tag == f"{{{ATOM}}}entry" else root.findall(f"{{{ATOM}}}entry")


def title_of(entry: Element) -> str:
    return entry.findtext(f"{{{ATOM}}}title") or ""


def description_of(entry: Element) -> Element:
    """Return the description in an entry. Raise MarkupError."""
    if entry.tag != f"{{{ATOM}}}entry":
        raise MarkupError(f"The document is not an ATOM entry: its root is '{entry.tag[:100]}'.")
    content = entry.find(f"{{{ATOM}}}content")
    if content is None or len(content) != 1:
        raise MarkupError("The entry must have one content element with one description.")
    return content[0]
