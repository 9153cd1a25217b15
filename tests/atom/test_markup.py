"""Reading XML safely, whatever is sent, and writing it so that it arrives."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring

import pytest

from peeklock.atom.entries import description_of
from peeklock.atom.markup import (
    ATOM,
    COUNTS,
    SERVICE_BUS,
    MarkupError,
    branch,
    child,
    leaf,
    parse,
    text_of,
    to_text,
    type_of,
)
from peeklock.limits.http import MAX_XML_DEPTH, MAX_XML_ELEMENTS

BOMB = b"""<?xml version="1.0"?>
<!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;&lol;">]>
<entry xmlns="http://www.w3.org/2005/Atom">&lol2;</entry>"""
EXTERNAL = b"""<!DOCTYPE entry [<!ENTITY file SYSTEM "file:///etc/passwd">]><entry>&file;</entry>"""
DOCTYPE = b"""<!DOCTYPE entry><entry/>"""


@pytest.mark.parametrize("data", [BOMB, EXTERNAL, DOCTYPE])
def test_a_document_type_with_its_entities_is_refused(data: bytes) -> None:
    with pytest.raises(MarkupError, match="document type or entities"):
        parse(data)


def test_an_undeclared_entity_is_refused() -> None:
    with pytest.raises(MarkupError, match="not well-formed"):
        parse(b"<entry>&file;</entry>")


def test_a_document_at_the_depth_limit_is_read_and_a_deeper_one_refused() -> None:
    assert parse(b"<a>" * MAX_XML_DEPTH + b"</a>" * MAX_XML_DEPTH).tag == "a"
    with pytest.raises(MarkupError, match=f"deeper than {MAX_XML_DEPTH}"):
        parse(b"<a>" * (MAX_XML_DEPTH + 1) + b"</a>" * (MAX_XML_DEPTH + 1))


def test_a_document_that_is_never_closed_is_given_up_early() -> None:
    with pytest.raises(MarkupError, match="deeper"):
        parse(b"<a>" * 300_000)


def test_a_document_of_too_many_elements_is_refused() -> None:
    assert len(parse(b"<a>" + b"<b/>" * (MAX_XML_ELEMENTS - 1) + b"</a>")) == MAX_XML_ELEMENTS - 1
    with pytest.raises(MarkupError, match=f"more than {MAX_XML_ELEMENTS}"):
        parse(b"<a>" + b"<b/>" * MAX_XML_ELEMENTS + b"</a>")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b" \n ", "is empty"),
        (b"<entry>", "not well-formed"),
        (b"<entry></entri>", "not well-formed"),
        (b"{}", "not well-formed"),
        (b"<a/><b/>", "not well-formed"),
        (b"\xff\xfe\x00", "not well-formed"),
        (b"<a>\x00</a>", "not well-formed"),
        (b"<x:a/>", "not well-formed"),
        (b"<?xml version='1.0' encoding='klingon'?><a/>", "encoding"),
        (b"<?xml version='1.0' encoding='utf-7'?><a/>", "encoding"),
    ],
)
def test_invalid_xml_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(MarkupError, match=why):
        parse(data)


def test_other_encodings_are_read() -> None:
    assert parse("<a>grüße</a>".encode("utf-16")).text == "grüße"
    assert parse("<?xml version='1.0' encoding='iso-8859-1'?><a>grüße</a>".encode("latin-1")).text == "grüße"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("<entry/>", "not an ATOM entry"),
        ("<entry xmlns='http://www.w3.org/2006/Atom'/>", "not an ATOM entry"),
        (f"<feed xmlns='{ATOM}'/>", "not an ATOM entry"),
        (f"<entry xmlns='{ATOM}'/>", "one content"),
        (f"<entry xmlns='{ATOM}'><content/></entry>", "one content"),
        (f"<entry xmlns='{ATOM}'><content><a/><b/></content></entry>", "one content"),
        (f"<entry xmlns='{ATOM}'><content xmlns=''><a/></content></entry>", "one content"),
    ],
)
def test_an_entry_without_a_description_is_refused(data: str, why: str) -> None:
    with pytest.raises(MarkupError, match=why):
        description_of(parse(data.encode()))


def test_children_are_found_by_namespace_and_name_with_any_prefix_and_order() -> None:
    parent = parse(
        f"<x:a xmlns:x='{SERVICE_BUS}' xmlns:i='http://www.w3.org/2001/XMLSchema-instance'>"
        "<x:Other/><Name>not in the namespace</Name><x:Name i:type='y:long'>right</x:Name>"
        "<x:Gone i:nil='true'/></x:a>".encode()
    )
    assert text_of(parent, "Name") == "right"
    assert text_of(parent, "Other") == ""
    assert text_of(parent, "Gone") is None
    assert text_of(parent, "Missing") is None
    found = child(parent, "Name")
    assert found is not None
    assert type_of(found) == "long"


def element(text: str, **attributes: str) -> Element:
    return leaf(Element("parent"), "a", text, **attributes)


@pytest.mark.parametrize("text", ["a < b & c > d", 'say "it"', "line\r\nend\ttab", "emoji \U0001f600", "]]>"])
def test_a_written_text_is_read_unchanged(text: str) -> None:
    read = fromstring(to_text(element(text, b=text)))
    assert (read.text, read.get("b")) == (text, text)


def test_characters_that_xml_cannot_carry_are_replaced_so_that_the_rest_arrives() -> None:
    text = "a\x00b\x1fc\ud800d\uffffe"
    read = fromstring(to_text(element(text, b=text)))
    assert (read.text, read.get("b")) == ("a\ufffdb\ufffdc\ufffdd\ufffde",) * 2


def test_prefixes_are_written_as_they_are_given() -> None:
    written = branch(Element("parent"), "d2p1:Count", xmlns_d2p1=COUNTS, i_type="x")
    assert to_text(written) == f'<d2p1:Count xmlns:d2p1="{COUNTS}" i:type="x" />'
