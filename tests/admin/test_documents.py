"""Entries, feeds and errors, to the letter."""

from __future__ import annotations

import re
from xml.etree.ElementTree import fromstring

from peeklock.admin.documents import Entry, Page, UrlBuilder, write_entry, write_feed
from peeklock.atom.entries import description
from peeklock.atom.markup import leaf
from peeklock.server.refusals import write_error

URLS = UrlBuilder("https://host:5300", "2021-05", "sbemulatorns")
NOW = 1_767_225_600_000
DESCRIPTION = description("RuleDescription")
leaf(DESCRIPTION, "Name", "$Default")
RULE = Entry("a/b/Subscriptions/s/Rules/$Default", "$Default", DESCRIPTION, '"1"', NOW, NOW)


def page(count: int, *, skip: int = 0, top: int = 2, is_last: bool) -> Page:
    return Page("$Resources/Queues", "Queues", [RULE] * count, skip, top, is_last)


def test_an_entry_has_the_shape_that_clients_take_names_from() -> None:
    url = "https://host:5300/a/b/Subscriptions/s/Rules/$Default?api-version=2021-05"
    assert write_entry(RULE, URLS) == (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><id>{url}</id><title type="text">$Default</title>'
        "<published>2026-01-01T00:00:00Z</published><updated>2026-01-01T00:00:00Z</updated>"
        f'<author><name>sbemulatorns</name></author><link rel="self" href="{url}" />'
        '<content type="application/xml"><RuleDescription'
        ' xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"'
        ' xmlns:i="http://www.w3.org/2001/XMLSchema-instance"><Name>$Default</Name></RuleDescription></content></entry>'
    )


def test_a_feed_with_more_to_come_has_exactly_two_links_and_the_second_leads_there() -> None:
    text = write_feed(page(2, skip=4, is_last=False), URLS, NOW)
    links = re.findall(r"<link [^>]*>", text.split("<entry>")[0])
    assert links == [
        '<link rel="self" href="https://host:5300/$Resources/Queues?api-version=2021-05&amp;$skip=4&amp;$top=2" />',
        '<link rel="next" href="https://host:5300/$Resources/Queues?api-version=2021-05&amp;$skip=6&amp;$top=2" />',
    ]
    assert text.count("<entry>") == 2


def test_the_last_page_of_a_feed_has_one_link() -> None:
    text = write_feed(page(0, is_last=True), URLS, NOW)
    assert text == (
        '<feed xmlns="http://www.w3.org/2005/Atom"><title type="text">Queues</title>'
        "<id>https://host:5300/$Resources/Queues?api-version=2021-05&amp;$skip=0&amp;$top=2</id>"
        "<updated>2026-01-01T00:00:00Z</updated>"
        '<link rel="self" href="https://host:5300/$Resources/Queues?api-version=2021-05&amp;$skip=0&amp;$top=2" />'
        "</feed>"
    )


def test_a_name_that_no_address_can_have_is_written_as_one_that_can() -> None:
    assert URLS.url("t/Subscriptions/s/Rules/50% off & more") == (
        "https://host:5300/t/Subscriptions/s/Rules/50%25%20off%20&%20more?api-version=2021-05"
    )


def test_a_client_that_names_no_version_gets_addresses_that_end_in_the_name() -> None:
    old = UrlBuilder("https://host", "2024-05", "sbemulatorns", names_version=False)
    assert old.url("a/Rules") == "https://host/a/Rules"
    assert (
        old.url("t/Subscriptions/Subscriptions/Rules/Rules") == "https://host/t/subscriptions/Subscriptions/rules/Rules"
    )
    assert old.url("t/Subscriptions/Rules") == "https://host/t/subscriptions/Rules"
    assert old.url("t/Subscriptions") == "https://host/t/subscriptions"


def test_pages_of_a_client_that_names_no_version_have_their_place_in_the_list() -> None:
    old = UrlBuilder("https://host", "2024-05", "sbemulatorns", names_version=False)
    assert old.url("$Resources/Queues", skip=2, top=2) == "https://host/$Resources/Queues?$skip=2&$top=2"


def test_an_error_has_its_code_and_the_tracking_id() -> None:
    error = fromstring(write_error(409, 40900, "Conflict. It <exists>.", "/q"))
    assert error.findtext("Code") == "409"
    assert re.fullmatch(
        r"SubCode=40900\. Conflict\. It <exists>\. TrackingId:[0-9a-f-]{36}, SystemTracker:/q, Timestamp:20\S+",
        error.findtext("Detail") or "",
    )
