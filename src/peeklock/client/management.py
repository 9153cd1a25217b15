"""The `$management` node of an entity: peeking, scheduling, deleting many messages.

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
    """A client of the node, made by `Connection.management`. It is a context manager."""

    def __init__(self, connection: Connection, entity: str, timeout: float | None = None) -> None:
        self._requester = connection.requester(f"{entity}/$management", timeout=timeout)

    def __enter__(self) -> Management:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._requester.close()

    def request(self, operation: str, body: dict[Any, Any], timeout: float | None = None) -> dict[Any, Any]:
        """Run any operation and return the map of its answer, which may be empty.

        The service's operations are named without `com.microsoft:`, others whole, such as `peeklock:list-claims`.
        """
        return self.answer(self.submit(operation, body, timeout), timeout)

    def submit(self, operation: str, body: dict[Any, Any], timeout: float | None = None) -> Any:
        """Send a request without waiting; pass the returned value to `answer`."""
        name = operation if ":" in operation else f"com.microsoft:{operation}"
        return self._requester.submit(Message(application_properties={"operation": name}, value=body), timeout)

    def is_answered(self, submitted: Any) -> bool:
        """Whether `answer` would return at once. Any call that waits on the connection receives the answer."""
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
        """Return messages in any state, by sequence number. Fewer than `count` does not mean that there are no more."""
        body: dict[str, Any] = {"from-sequence-number": from_sequence_number, "message-count": Int(count)}
        if session_id is not None:
            body["session-id"] = session_id
        return [Message.decode(each["message"]) for each in self.request("peek-message", body).get("messages", ())]

    def schedule(self, messages: Sequence[Message], at_ms: int) -> list[int]:
        """Schedule messages for a time (Unix milliseconds), all or none, and return their sequence numbers."""
        found = self.request("schedule-message", {"messages": [_scheduled(message, at_ms) for message in messages]})
        return [int(number) for number in found.get("sequence-numbers", ())]

    def cancel_scheduled(self, sequence_numbers: Sequence[int]) -> None:
        """Cancel scheduled messages, all or none: none if one of them does not exist."""
        self.request("cancel-scheduled-message", {"sequence-numbers": Array(sequence_numbers, int)})

    def delete_messages(self, before_ms: int, count: int = 500, session_id: str | None = None) -> int:
        """Delete up to `count` unlocked active messages that were enqueued before a time, and return their number."""
        body: dict[str, Any] = {"message-count": Int(count), "enqueued-time-utc": Timestamp(before_ms)}
        if session_id is not None:
            body["session-id"] = session_id
        return int(self.request("batch-delete-messages", body).get("message-count", 0))

    def update_disposition(self, lock_tokens: Sequence[UUID], status: str) -> None:
        """Settle messages by lock token, without their link: completed, abandoned, suspended or defered."""
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
