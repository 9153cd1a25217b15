"""What messages of a run hold: all of it follows from their ids, so that whoever receives one sees what was changed.

Most are short; some are long enough that the copies of a topic share their bodies.
"""

from __future__ import annotations

from random import Random
from typing import Final

from peeklock.client import Message, Properties

_LENGTHS: Final = (0, 0, 0, 0, 100, 300, 1500, 5000)
_ID: Final = "id"


def message(id: str, session: str | None = None, key: str | None = None) -> Message:
    """The message with this id; with a key, that is what duplicates are detected by."""
    heading = f"{id} {key or id} {session or ''}\n".encode()
    properties = Properties(message_id=key or id, group_id=session)
    return Message(properties=properties, application_properties={_ID: id}, data=[heading + _filling(id)])


def id_of(received: Message) -> str:
    return _heading(received)[0]


def changes(received: Message) -> str:
    """What of a message is not as it was sent; empty when all is."""
    id, key, session = _heading(received)
    sent = message(id, session, key)
    properties = received.properties or Properties()
    found = []
    if b"".join(received.data) != b"".join(sent.data):
        found.append("its body")
    if (received.application_properties or {}).get(_ID) != id:  # a dead letter has more
        found.append("its application properties")
    if properties.message_id != key or properties.group_id != session:
        found.append("its properties")
    return " and ".join(found)


def _heading(received: Message) -> tuple[str, str, str | None]:
    line = b"".join(received.data).split(b"\n", 1)[0].decode(errors="backslashreplace")
    id, key, session = (*line.split(" "), "", "")[:3]
    return id, key, session or None


def _filling(id: str) -> bytes:
    chance = Random(id)
    return chance.randbytes(chance.choice(_LENGTHS))
