"""The content of the messages of a run. It follows from the message's id, so receivers can detect every change.

Most bodies are short; some are so long that the copies of a message in several subscriptions share one body.
"""

from __future__ import annotations

from random import Random
from typing import Final

from peeklock.client import Message, Properties

_LENGTHS: Final = (0, 0, 0, 0, 100, 300, 1500, 5000)
_ID: Final = "id"


def message(id: str, session: str | None = None, key: str | None = None) -> Message:
    """Return the message with this id. A key becomes its message id, for duplicate detection."""
    heading = f"{id} {key or id} {session or ''}\n".encode()
    properties = Properties(message_id=key or id, group_id=session)
    return Message(properties=properties, application_properties={_ID: id}, data=[heading + _filling(id)])


def id_of(received: Message) -> str:
    return _heading(received)[0]


def changes(received: Message) -> str:
    """Return which parts of a message are not as they were sent; empty if none."""
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
