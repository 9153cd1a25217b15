"""Addresses: the many spellings of an entity that clients use, and what they mean.

`q`, `/q`, `amqps://host:5671/q`, `Q/$DeadLetterQueue`, `t/Subscriptions/s/$management`: entity names may hold
slashes, so known suffixes are taken off from the right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"
DEAD_LETTERS: Final = "$deadletterqueue"
TRANSFER: Final = "$transfer"

_SCHEME_AND_AUTHORITY = re.compile(r"^[a-z][a-z0-9+.-]*://[^/]*", re.IGNORECASE)
_SUBSCRIPTION = re.compile(r"^(?P<topic>.+)/subscriptions/[^/]+$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """A parsed address."""

    path: str
    """Without scheme and host, as the client spelt it."""
    entity: str
    """The queue or topic it belongs to."""
    container: str
    """The queue, subscription or sub-queue that holds the messages."""
    is_management: bool = False

    @property
    def is_cbs(self) -> bool:
        return self.path.casefold() == CBS


def parse_address(text: str) -> Address:
    path = unquote(_SCHEME_AND_AUTHORITY.sub("", text)).strip("/")
    container = path
    is_management = False
    head, _, last = container.rpartition("/")
    if last.casefold() == MANAGEMENT and head:
        container, is_management = head, True
    owner = container
    while "/" in owner and owner.rpartition("/")[2].casefold() in (DEAD_LETTERS, TRANSFER):
        owner = owner.rpartition("/")[0]
    subscription = _SUBSCRIPTION.match(owner)
    entity = subscription["topic"] if subscription else owner
    return Address(path, entity, container, is_management)
