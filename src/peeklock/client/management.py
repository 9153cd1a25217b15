"""What an entity's `$management` node does for a client: looking at messages, scheduling, deleting many.

Knows operations that the hosted service documents, as calls with Python values. Receiving and the usual settling are
the receiver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from peeklock.amqp.errors import Condition
from peeklock.amqp.message import NO_VALUE, Message, Properties
from peeklock.amqp.types import Array, Int, Symbol, Timestamp
from peeklock.client.errors import RequestRefused

if TYPE_CHECKING:
    from peeklock.client.connection import Connection

SCHEDULED_TIME = Symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY = Symbol("x-opt-partition-key")


class Management:
    """The node of one entity, made by `Connection.management`. A context manager."""

    def __init__(self, connection: Connection, entity: str, timeout: float | None = None) -> None:
        self._requester = connection.requester(f"{entity}/$management", timeout=timeout)

    def __enter__(self) -> Management:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._requester.close()

    def request(self, operation: str, body: dict[Any, Any], timeout: float | None = None) -> dict[Any, Any]:
        """Any operation; the map it answers with, empty when it has nothing to give.

        The service's operations are named without `com.microsoft:`, others whole, such as `peeklock:list-claims`.
        """
        return self.answer(self.submit(operation, body, timeout), timeout)

    def submit(self, operation: str, body: dict[Any, Any], timeout: float | None = None) -> Any:
        """Ask as `request` does, and go on; `answer` waits for what is returned here."""
        name = operation if ":" in operation else f"com.microsoft:{operation}"
        return self._requester.submit(Message(application_properties={"operation": name}, value=body), timeout)

    def is_answered(self, submitted: Any) -> bool:
        """Whether `answer` would return at once; what has come is taken in by whatever waits on the connection."""
        return self._requester.is_over(submitted)

    def answer(self, submitted: Any, timeout: float | None = None) -> dict[Any, Any]:
        answer = self._requester.response(submitted, timeout)
        properties = answer.application_properties or {}
        status = properties.get("statusCode", properties.get("status-code"))
        if status not in (200, 202, 204):
            raise RequestRefused(
                status if isinstance(status, int) else 500,
                str(properties.get("errorCondition") or properties.get("error-condition") or Condition.INTERNAL_ERROR),
                str(properties.get("statusDescription") or properties.get("status-description") or ""),
            )
        return {} if answer.value is NO_VALUE or answer.value is None else answer.value

    def peek(self, from_sequence_number: int = 1, count: int = 100, session_id: str | None = None) -> list[Message]:
        """Messages in any state, in the order of their numbers; fewer than asked for does not mean that was all."""
        body: dict[str, Any] = {"from-sequence-number": from_sequence_number, "message-count": Int(count)}
        if session_id is not None:
            body["session-id"] = session_id
        return [Message.decode(each["message"]) for each in self.request("peek-message", body).get("messages", ())]

    def schedule(self, messages: Sequence[Message], at_ms: int) -> list[int]:
        """Have messages enqueued at a moment (Unix milliseconds), all or none; returns their sequence numbers."""
        found = self.request("schedule-message", {"messages": [_scheduled(message, at_ms) for message in messages]})
        return [int(number) for number in found.get("sequence-numbers", ())]

    def cancel_scheduled(self, sequence_numbers: Sequence[int]) -> None:
        """Take scheduled messages back: all of them, or none when one is not there."""
        self.request("cancel-scheduled-message", {"sequence-numbers": Array(sequence_numbers, int)})

    def delete_messages(self, before_ms: int, count: int = 500, session_id: str | None = None) -> int:
        """Delete up to `count` active messages that nobody holds and that came before a moment; returns how many."""
        body: dict[str, Any] = {"message-count": Int(count), "enqueued-time-utc": Timestamp(before_ms)}
        if session_id is not None:
            body["session-id"] = session_id
        return int(self.request("batch-delete-messages", body).get("message-count", 0))

    def update_disposition(self, lock_tokens: Sequence[UUID], status: str) -> None:
        """Settle messages by their tokens, when their link cannot: completed, abandoned, suspended or defered."""
        self.request("update-disposition", {"disposition-status": status, "lock-tokens": Array(lock_tokens, UUID)})


def _scheduled(message: Message, at_ms: int) -> dict[str, Any]:
    properties = message.properties or Properties()
    if properties.message_id is None:
        properties = replace(properties, message_id=str(uuid4()))
    annotations = {**(message.message_annotations or {}), SCHEDULED_TIME: Timestamp(at_ms)}
    message = replace(message, properties=properties, message_annotations=annotations)
    entry = {
        "message": message.encode(),
        "message-id": str(properties.message_id),
        "session-id": properties.group_id,
        "partition-key": annotations.get(PARTITION_KEY),
    }
    return {key: value for key, value in entry.items() if value is not None}
