"""Parses addresses of links, such as `q`, `amqps://host:5671/q`, `Q/$DeadLetterQueue`, `t/Subscriptions/s/$management`.

Names of entities may contain slashes, so known suffixes are removed from the right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from peeklock.entities.names import fold, without_origin

CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"
DEAD_LETTERS: Final = "$deadletterqueue"
TRANSFER: Final = "$transfer"

_SUBSCRIPTION = re.compile(r"^(?P<topic>.+)/subscriptions/[^/]+$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A parsed address."""

    path: str = ""
    """The address without scheme and host, as the client spelt it."""
    entity: str = ""
    """The path of the queue, topic, subscription or sub-queue."""
    owner: str = ""
    """The path of the queue or topic that the entity is or belongs to. Its authorization rules apply to the entity."""
    is_management: bool = False

    @property
    def is_cbs(self) -> bool:
        return fold(self.path) == CBS


def parse_address(text: str) -> Address:
    path = unquote(without_origin(text)).strip("/")
    entity = path
    is_management = False
    head, _, last = path.rpartition("/")
    if fold(last) == MANAGEMENT and head:
        entity, is_management = head, True
    owner = entity
    while "/" in owner and fold(owner.rpartition("/")[2]) in (DEAD_LETTERS, TRANSFER):
        owner = owner.rpartition("/")[0]
    subscription = _SUBSCRIPTION.match(owner)
    if subscription is not None:
        owner = subscription["topic"]
    return Address(path=path, entity=entity, owner=owner, is_management=is_management)
