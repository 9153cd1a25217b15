"""Parsing, searching and writing the XML of the administration API.

Elements are searched by namespace and name, never by prefix or position, because these differ between SDKs. But some
clients depend on the prefixes that the service writes: writers give elements their prefixed names and the matching
`xmlns` attributes, and ElementTree writes both unchanged.
"""

from __future__ import annotations

import re
from typing import Final
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, ParseError, SubElement, TreeBuilder

from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import DefusedXMLParser  # type: ignore[import-untyped]

from peeklock.limits.http import MAX_XML_DEPTH, MAX_XML_ELEMENTS

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"


_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class MarkupError(Exception):
    """A document is not valid. `str()` is one sentence with the reason."""


# --- reading ---


def parse(data: bytes, max_elements: int = MAX_XML_ELEMENTS) -> Element:
    """Parse a document and return its root.

    Raise MarkupError if it is not well-formed XML, has a document type, or has too many levels or elements.
    """
    if not data.strip():
        raise MarkupError("The document is empty: an ATOM entry is expected.")
    parser = DefusedXMLParser(target=_Builder(max_elements), forbid_dtd=True)
    try:
        parser.feed(data)
        root = parser.close()
    except DefusedXmlException:
        raise MarkupError("The document has a document type or entities, which are not allowed.") from None
    except ParseError as error:
        raise MarkupError(f"The document is not well-formed XML: {error}.") from None
    except (ValueError, LookupError):
        raise MarkupError("The document is in an unknown encoding.") from None
    assert isinstance(root, Element)
    return root


class _Builder(TreeBuilder):
    """Builds the tree, and raises MarkupError when it has too many levels or elements."""

    def __init__(self, max_elements: int) -> None:
        super().__init__()
        self._max_elements = max_elements
        self._depth = 0
        self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_XML_DEPTH:
            raise MarkupError(f"The document is nested deeper than {MAX_XML_DEPTH} elements.")
        if self._elements > self._max_elements:
            raise MarkupError(f"The document has more than {self._max_elements} elements.")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def child(parent: Element, name: str) -> Element | None:
    """Return the first child with this name; None if there is none or if it has the attribute `nil`."""
    found = parent.find(f"{{{SERVICE_BUS}}}{name}")
    if found is not None and found.get(f"{{{INSTANCE}}}nil") in ("true", "1"):
        return None
    return found


def children(parent: Element, name: str) -> list[Element]:
    return parent.findall(f"{{{SERVICE_BUS}}}{name}")


def text_of(parent: Element, name: str) -> str | None:
    """Return the text of the child with this name: "" if the child is empty, None if there is none."""
    found = child(parent, name)
    return None if found is None else found.text or ""


def type_of(element: Element) -> str | None:
    """Return the `type` attribute without its prefix."""
    found = element.get(f"{{{INSTANCE}}}type")
    return None if found is None else found.rpartition(":")[2]


def local_name(element: Element) -> str:
    return element.tag.rpartition("}")[2]


# --- writing ---


def branch(parent: Element, name: str, **attributes: str) -> Element:
    """Add an element that will have children. `i_type` is the attribute `i:type`; see `description` for the prefix."""
    return SubElement(parent, name, {key.replace("_", ":"): _clean(value) for key, value in attributes.items()})


def leaf(parent: Element, name: str, text: str, **attributes: str) -> Element:
    """Add an element with text."""
    element = branch(parent, name, **attributes)
    element.text = _clean(text)
    return element


def to_text(root: Element) -> str:
    """Serialize a document."""
    # ElementTree does not escape carriage returns in texts, and a parser would read them as line feeds. It does escape
    # them in attributes, so all remaining ones are in texts.
    return ElementTree.tostring(root, encoding="unicode").replace("\r", "&#13;")


def _clean(text: str) -> str:
    """Replace the characters that are not allowed in XML by U+FFFD."""
    return _NOT_IN_XML.sub("\ufffd", text)
