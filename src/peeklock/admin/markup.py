"""XML as the administration clients send it and expect it: read safely, written with the prefixes they look for.

Elements are found by namespace and local name, never by prefix or position: every SDK has habits of its own. What
the elements mean is for `descriptions` and `rule_descriptions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import DefusedXMLParser  # type: ignore[import-untyped]

from peeklock.server.refusals import written

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE: Final = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"

MAX_DEPTH: Final = 32
MAX_ELEMENTS: Final = 20_000


class MarkupError(Exception):
    """The document is not one that we read; `str()` is one sentence that says why."""


def parse(data: bytes) -> Element:
    """The root element. MarkupError when the text is no XML, has a document type, or is too deep or too much."""
    if not data.strip():
        raise MarkupError("The body of the request is empty: an ATOM entry is expected.")
    parser = DefusedXMLParser(target=_Builder(), forbid_dtd=True)
    try:
        parser.feed(data)
        root = parser.close()
    except DefusedXmlException:
        raise MarkupError("The body of the request has a document type or entities of its own.") from None
    except ParseError as error:
        raise MarkupError(f"The body of the request is not well-formed XML: {error}.") from None
    except (ValueError, LookupError):
        raise MarkupError("The body of the request is in an encoding that is not known.") from None
    assert isinstance(root, Element)
    return root


class _Builder(TreeBuilder):
    """Stops before a document grows beyond what any client sends."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = 0
        self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH:
            raise MarkupError(f"The body of the request is nested deeper than {MAX_DEPTH} elements.")
        if self._elements > MAX_ELEMENTS:
            raise MarkupError(f"The body of the request has more than {MAX_ELEMENTS} elements.")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def description_of(entry: Element) -> Element:
    """What an ATOM entry has in its content."""
    if entry.tag != f"{{{ATOM}}}entry":
        raise MarkupError(f"The body of the request is no ATOM entry: its root is '{entry.tag[:100]}'.")
    content = entry.find(f"{{{ATOM}}}content")
    if content is None or len(content) != 1:
        raise MarkupError("The ATOM entry must have one content with one description in it.")
    return content[0]


def child(parent: Element, name: str) -> Element | None:
    """The first such child; None also where it is said to be nil."""
    found = parent.find(f"{{{SERVICE_BUS}}}{name}")
    if found is not None and found.get(f"{{{INSTANCE}}}nil") in ("true", "1"):
        return None
    return found


def children(parent: Element, name: str) -> list[Element]:
    return parent.findall(f"{{{SERVICE_BUS}}}{name}")


def text_of(parent: Element, name: str) -> str | None:
    """The text of a child; empty is a text, None when there is no such child."""
    found = child(parent, name)
    return None if found is None else found.text or ""


def type_of(element: Element) -> str | None:
    """What its `type` attribute says, without the prefix."""
    said = element.get(f"{{{INSTANCE}}}type")
    return None if said is None else said.rpartition(":")[2]


# --- writing ---


def leaf(name: str, text: str, attributes: str = "") -> str:
    return f"<{name}{attributes}>{written(text)}</{name}>"


def branch(name: str, parts: Iterable[str], attributes: str = "") -> str:
    inner = "".join(parts)
    return f"<{name}{attributes}>{inner}</{name}>" if inner else f"<{name}{attributes}/>"
