"""XML: malicious descriptions of entities."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from peeklock.atom.markup import ATOM, SERVICE_BUS
from tools.hostile.attack import attack, require
from tools.hostile.attacks.requests import queue_entry
from tools.hostile.victim import Victim

PATH: Final = "/bomb?api-version=2021-05"


def _are_refused(victim: Victim, documents: Iterable[bytes], *, statuses: tuple[int, ...] = (400,)) -> None:
    for document in documents:
        status, body = victim.ask(victim.request("PUT", PATH, document, Connection="close"))
        require(status in statuses, f"the document {document[:60]!r} was answered with {status}")
        require(b"root:" not in body, "the answer shows a file")
    require(victim.ask(victim.request("GET", PATH))[0] == 404, "a queue was made of such a document")


@attack(answer="refuses document types, and so all entities, with 400", log="request refused.*document type")
def entity_bombs(victim: Victim) -> None:
    """Billion laughs, quadratic blow-up, parameter entities, and entities that refer to each other."""
    laughs = "".join(f'<!ENTITY l{each} "{f"&l{each - 1};" * 10}">' for each in range(1, 12))
    entry = queue_entry("<LockDuration>&l11;</LockDuration>").decode()
    _are_refused(
        victim,
        [
            f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY l0 "ha">{laughs}]>{entry}'.encode(),
            f'<!DOCTYPE x [<!ENTITY l11 "{"a" * 50_000}">]>{entry.replace("&l11;", "&l11;" * 10_000)}'.encode(),
            f"<!DOCTYPE x [<!ENTITY % p \"<!ENTITY l11 'x'>\"> %p;]>{entry}".encode(),
            f'<!DOCTYPE x [<!ENTITY l11 "&l12;"><!ENTITY l12 "&l11;">]>{entry}'.encode(),
            f"<!DOCTYPE x>{queue_entry().decode()}".encode(),
        ],
    )


@attack(answer="refuses document types; nothing is read or fetched", log="request refused.*document type")
def external_entities(victim: Victim) -> None:
    """Entities and document types that refer to local files and to addresses in the broker's network."""
    entry = queue_entry("<UserMetadata>&x;</UserMetadata>").decode()
    _are_refused(
        victim,
        [
            f'<!DOCTYPE x [<!ENTITY x SYSTEM "file:///etc/passwd">]>{entry}'.encode(),
            f'<!DOCTYPE x [<!ENTITY x SYSTEM "http://127.0.0.1:{victim.port}/metrics">]>{entry}'.encode(),
            f'<!DOCTYPE x SYSTEM "http://127.0.0.1:{victim.port}/x.dtd">{queue_entry().decode()}'.encode(),
            f'<!DOCTYPE x [<!ENTITY % x SYSTEM "file:///etc/passwd"> %x;]>{entry}'.encode(),
        ],
    )


@attack(
    answer="accepts 32 levels, 20,000 elements and 1 MiB, and answers 400 or 413 to more",
    log="request refused.*(deeper|more)",
)
def deep_and_wide_documents(victim: Victim) -> None:
    """100,000 levels, 150,000 elements, 50,000 attributes, names and texts of a megabyte."""
    attributes = " ".join(f'a{each}="x"' for each in range(50_000))
    declarations = " ".join(f'xmlns:n{each}="u{each}"' for each in range(30_000))
    _are_refused(
        victim,
        [
            b"<a>" * 100_000,
            b"<a>" * 100_000 + b"</a>" * 100_000,
            queue_entry("<a/>" * 150_000),
            queue_entry(f"<a {attributes}/>" + "<b" * 3),
            b"<" + b"a" * 1_000_000 + b"/>",
            b"<a>" + b"x" * 1_000_000,
            b"<!--" + b"-" * 1_000_000,
            b"<![CDATA[" * 100_000,
            f'<entry xmlns="{ATOM}" {declarations}/>'.encode(),
        ],
        statuses=(400, 413),
    )


@attack(answer="answers 400", log="request refused.*400")
def documents_in_strange_encodings(victim: Victim) -> None:
    """Unknown and wrong encodings, UTF-7, UTF-16 without a byte order mark, nulls, and binary data."""
    entry = queue_entry().decode()
    _are_refused(
        victim,
        [
            f'<?xml version="1.0" encoding="nonsense"?>{entry}'.encode(),
            f'<?xml version="1.0" encoding="utf-7"?>{entry}'.encode(),
            f'<?xml version="1.0" encoding="utf-16"?>{entry}'.encode(),
            f'<?xml version="1.0" encoding="idna"?>{entry}'.encode(),
            f'<?xml version="1.0" encoding="rot13"?>{entry}'.encode(),
            f'<?xml version="1.0" encoding="zlib"?>{entry}'.encode(),
            entry.encode("utf-32"),
            entry.encode() + b"\x00",
            b"\x00" * 1000,
            b"\xff" * 1000,
            b"{}",
            b"   ",
        ],
    )


@attack(answer="answers 400 with the reason", log="request refused.*400")
def descriptions_that_make_no_sense(victim: Victim) -> None:
    """Descriptions with settings of wrong types, out of range, of other entities, and two descriptions at once."""
    _are_refused(
        victim,
        [
            queue_entry("<LockDuration>P999999999999D</LockDuration>"),
            queue_entry("<LockDuration>soon</LockDuration>"),
            queue_entry("<MaxDeliveryCount>-1</MaxDeliveryCount>"),
            queue_entry(f"<MaxDeliveryCount>{'9' * 5000}</MaxDeliveryCount>"),
            queue_entry("<RequiresSession>perhaps</RequiresSession>"),
            queue_entry("<ForwardTo>not-there</ForwardTo>"),
            queue_entry(f"<ForwardTo>{'a' * 10_000}</ForwardTo>"),
            queue_entry(f"<UserMetadata>{'a' * 100_000}</UserMetadata>"),
            queue_entry("<AuthorizationRules><AuthorizationRule/></AuthorizationRules>"),
            queue_entry().replace(b"QueueDescription", b"RuleDescription"),
            f'<entry xmlns="{ATOM}"><content xmlns="{SERVICE_BUS}"><a/><b/></content></entry>'.encode(),
            f'<feed xmlns="{ATOM}"/>'.encode(),
        ],
    )
