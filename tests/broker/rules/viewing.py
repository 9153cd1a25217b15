"""Messages for rules: encoded as a client encodes them, and read as the broker reads them."""

from __future__ import annotations

from typing import Any

from peeklock.amqp.message import Header, Message, Properties
from peeklock.amqp.types import Symbol
from peeklock.broker.heads import (
    head,
)
from peeklock.broker.incoming import read_incoming
from peeklock.broker.rules.view import View
from peeklock.store.base import StoredMessage

NOW = 1_800_000_000_000


def view(
    user: dict[Any, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    ttl_ms: int | None = None,
    scheduled_at: int | None = None,
    **properties: Any,
) -> View:
    """Return the view of a message with these application properties, annotations and standard properties."""
    message = Message(
        header=None if ttl_ms is None else Header(ttl=ttl_ms),
        message_annotations={Symbol(key): value for key, value in annotations.items()} if annotations else None,
        properties=Properties(**{"message_id": "id-1", **properties}),
        application_properties=user,
        data=[b"the body"],
    )
    read = read_incoming(message.encode(), False)
    return View(
        read.bare,
        read.annex,
        ttl_ms=read.ttl_ms,
        enqueued_at=NOW,
        sequence_number=7,
        scheduled_at=read.scheduled_at if scheduled_at is None else scheduled_at,
    )


def after(changed: View) -> Message:
    """Return the message after an action."""
    return Message.decode(changed.result().payload)


def annotations_of(changed: View) -> dict[Any, Any]:
    """Return the annotations that a receiver would get in addition to the broker's own."""
    result = changed.result()
    message = StoredMessage(7, result.payload, NOW, annex=result.annex)
    return Message.decode(head(message, None) + result.payload).message_annotations or {}
