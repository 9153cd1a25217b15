"""Parses addresses of links, such as `q`, `amqps://host:5671/q`, `Q/$DeadLetterQueue`, `t/Subscriptions/s/$management`.

Names of entities may contain slashes, so known suffixes are removed from the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from peeklock.entities.names import TRANSFER_DEAD_LETTER_SUFFIX, fold, split_subscription, without_origin

CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"

_SUB_QUEUE_SEGMENTS: Final = frozenset(fold(TRANSFER_DEAD_LETTER_SUFFIX).split("/"))


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
    while "/" in owner and fold(owner.rpartition("/")[2]) in _SUB_QUEUE_SEGMENTS:
        owner = owner.rpartition("/")[0]
    parts = split_subscription(owner)
    if parts is not None and "/" not in parts[1]:
        owner = parts[0]
    return Address(path=path, entity=entity, owner=owner, is_management=is_management)
