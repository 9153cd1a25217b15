"""XML of the administration API: parsed safely, searched by namespace and name, written through ElementTree.

Elements are never found by prefix or position, because every SDK has its own habits. Some clients depend on the
prefixes that the service writes, though: writers give elements their prefixed names and the `xmlns` attributes that
belong to them, and ElementTree writes both unchanged.
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
    """The document cannot be used; `str()` is one sentence that says why."""


# --- reading ---


def parse(data: bytes, max_elements: int = MAX_XML_ELEMENTS) -> Element:
    """Return the root element. MarkupError if it is no XML, has a document type, or is too deep or too large."""
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
    """Stops before a document grows beyond what any client sends."""

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
    """Return the first such child; None also if it is marked as nil."""
    found = parent.find(f"{{{SERVICE_BUS}}}{name}")
    if found is not None and found.get(f"{{{INSTANCE}}}nil") in ("true", "1"):
        return None
    return found


def children(parent: Element, name: str) -> list[Element]:
    return parent.findall(f"{{{SERVICE_BUS}}}{name}")


def text_of(parent: Element, name: str) -> str | None:
    """Return the text of a child: "" for an empty one, None if there is no such child."""
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
    """Add an element for other elements. `i_type` is the attribute `i:type`, the prefix is that of `description`."""
    return SubElement(parent, name, {key.replace("_", ":"): _clean(value) for key, value in attributes.items()})


def leaf(parent: Element, name: str, text: str, **attributes: str) -> Element:
    """Add an element with text."""
    element = branch(parent, name, **attributes)
    element.text = _clean(text)
    return element


def to_text(root: Element) -> str:
    # ElementTree leaves carriage returns of texts as they are, which a reader would take for line feeds. In attributes
    # it writes a reference itself, so all that are left belong to texts.
    return ElementTree.tostring(root, encoding="unicode").replace("\r", "&#13;")


def _clean(text: str) -> str:
    """Replace the characters that XML cannot carry, so that the rest arrives."""
    return _NOT_IN_XML.sub("\ufffd", text)
