"""Requests to `$management` from a plain AMQP client, and checks of the types in the answers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from peeklock.amqp.message import Message, Properties
from peeklock.amqp.types import Array, Described, Int, Symbol, Timestamp, UInt
from peeklock.client import Connection, ReceivedMessage, ReceiveMode, Receiver, Requester

SESSION_FILTER = "com.microsoft:session-filter"
STATUS_KEYS = {"statusCode", "statusDescription", "status-code", "status-description"}
ERROR_KEYS = {"errorCondition", "error-condition"}
SUBSCRIPTION = "topic/Subscriptions/sub"
FOREVER = 253_402_300_800_000
"""The year 10000, which SDKs send as last-updated-time to list all sessions."""


class Management:
    """A client of the management node of one entity."""

    def __init__(self, connection: Connection, entity: str = "queue") -> None:
        self.requester: Requester = connection.requester(f"{entity}/$management")

    def ask(self, operation: str, body: Any, properties: dict[str, Any] | None = None) -> Message:
        """Send one request and return its response. The operation is given without its prefix."""
        return self.requester.request(request(operation, body, properties))

    def ok(self, operation: str, body: Any, properties: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request that must succeed, and return the map of the response."""
        return body_of(self.ask(operation, body, properties), 200)

    def refusal(self, operation: str, body: Any, properties: dict[str, Any] | None = None) -> tuple[int, str, str]:
        """Send a request that must fail, and return status, condition and description."""
        return refusal_of(self.ask(operation, body, properties))

    def peek(self, first: int = 1, count: int = 100, **more: Any) -> list[Message]:
        """Return all messages from a number on; an empty list if the answer is 204."""
        body = {"from-sequence-number": first, "message-count": Int(count), **more}
        response = self.ask("peek-message", body)
        return messages_in(body_of(response, 200)) if status_of(response) == 200 else []

    def rules(self, top: int = 100, skip: int = 0) -> list[Described]:
        """Return the listed rules of a subscription; an empty list if the answer is 204."""
        response = self.ask("enumerate-rules", {"top": Int(top), "skip": Int(skip)})
        return rules_in(body_of(response, 200)) if status_of(response) == 200 else []


class RequestLinks:
    """A request link and a response link. The caller gives all properties of a request."""

    def __init__(
        self, connection: Connection, entity: str = "queue", address: str = "my replies", credit: int = 100
    ) -> None:
        node = f"{entity}/$management"
        connection.authenticate(entity)
        self.responses = Receiver(
            connection, node, credit=credit, mode=ReceiveMode.SETTLE_FIRST, target=address, timeout=connection.timeout
        )
        self.requests = connection.sender(node)

    def ask(self, message: Message | bytes, state: Any = None) -> Message:
        """Send one request with exactly these properties, and return its response."""
        self.requests.send(message, state=state)
        return self.response()

    def response(self) -> Message:
        return receive(self.responses, 1)[0].message


def full_name(operation: str) -> str:
    """Return the name of an operation with the prefix of the service."""
    return operation if operation.startswith("peeklock:") else f"com.microsoft:{operation}"


def request(
    operation: str,
    body: Any,
    properties: dict[str, Any] | None = None,
    *,
    id: Any = None,
    reply_to: str | None = None,
) -> Message:
    named = {"operation": full_name(operation), **(properties or {})}
    return Message(properties=Properties(message_id=id, reply_to=reply_to), application_properties=named, value=body)


def status_of(response: Message) -> int:
    assert response.application_properties is not None
    status: int = response.application_properties["statusCode"]
    return status


def body_of(response: Message, status: int) -> dict[str, Any]:
    """Return the map of a successful answer, and check its envelope, which all SDKs must be able to read."""
    properties = response.application_properties
    assert properties is not None
    assert properties["statusCode"] == status, properties
    assert set(properties) == STATUS_KEYS
    for key in ("statusCode", "status-code"):
        assert (type(properties[key]), properties[key]) == (Int, status)
    description = "OK" if status == 200 else "No Content"
    assert properties["statusDescription"] == properties["status-description"] == description
    assert type(response.value) is dict
    assert all(type(key) is str for key in response.value)
    body: dict[str, Any] = response.value
    return body


def refusal_of(response: Message) -> tuple[int, str, str]:
    """Return status, condition and description of a failure, and check its envelope, which all SDKs must read."""
    properties = response.application_properties
    assert properties is not None
    assert set(properties) == STATUS_KEYS | ERROR_KEYS, properties
    status, condition = properties["statusCode"], properties["errorCondition"]
    assert type(status) is type(properties["status-code"]) is Int
    assert type(condition) is type(properties["error-condition"]) is Symbol
    assert type(properties["statusDescription"]) is str
    assert (status, condition, properties["statusDescription"]) == (
        properties["status-code"],
        properties["error-condition"],
        properties["status-description"],
    )
    assert response.value == {}
    return int(status), str(condition), properties["statusDescription"]


def messages_in(body: dict[str, Any]) -> list[Message]:
    """Decode the messages in a response's list of maps."""
    assert set(body) == {"messages"}
    assert type(body["messages"]) is list
    for item in body["messages"]:
        assert type(item) is dict
        assert type(item["message"]) is bytes
    return [Message.decode(item["message"]) for item in body["messages"]]


def rules_in(body: dict[str, Any]) -> list[Described]:
    """Return the described rules in a response's list of maps."""
    assert set(body) == {"rules"}
    assert type(body["rules"]) is list
    for item in body["rules"]:
        assert type(item) is dict
        assert set(item) == {"rule-description"}
        assert type(item["rule-description"]) is Described
    return [item["rule-description"] for item in body["rules"]]


def annotation(message: Message, name: str) -> Any:
    assert message.message_annotations is not None
    return message.message_annotations.get(name)


def number_of(message: Message | ReceivedMessage) -> int:
    number = annotation(message.message if isinstance(message, ReceivedMessage) else message, "x-opt-sequence-number")
    assert type(number) is int  # long on the wire
    return number


def send(connection: Connection, *bodies: bytes, to: str = "queue", session: str | None = None) -> None:
    sender = connection.sender(to)
    for body in bodies:
        sender.send(Message(properties=Properties(group_id=session), data=[body]))
    sender.close()


def receive(receiver: Receiver, count: int) -> list[ReceivedMessage]:
    """Receive exactly that many messages."""
    found: list[ReceivedMessage] = []
    while len(found) < count:
        more = receiver.receive(count - len(found), timeout=10)
        assert more, f"{len(found)} of {count} messages came"
        found += more
    return found


def token_of(message: ReceivedMessage) -> UUID:
    assert message.lock_token is not None
    return message.lock_token


def defer(connection: Connection, *bodies: bytes, on: str = "queue") -> list[int]:
    """Send messages, defer them, and return their sequence numbers."""
    send(connection, *bodies, to=on)
    receiver = connection.receiver(on, credit=0)
    messages = receive(receiver, len(bodies))
    receiver.modify(messages, delivery_failed=False, undeliverable_here=True, wait=True)
    receiver.close()
    return [number_of(message) for message in messages]


def accept_session(connection: Connection, id: str | None, on: str = "sessions", **options: Any) -> Receiver:
    return connection.receiver(on, filter={Symbol(SESSION_FILTER): id}, **options)


def for_later(due: int, body: bytes = b"later", session: str | None = None) -> dict[str, Any]:
    """Return an item of a schedule-message request, as the SDKs send it."""
    message = Message(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due)},
        properties=Properties(message_id="m", group_id=session),
        data=[body],
    )
    item = {"message-id": "m", "message": message.encode()}
    return item if session is None else {**item, "session-id": session}


PEEK = {"from-sequence-number": 1, "message-count": Int(10)}
TOKENS = Array([UUID(int=1)], UUID)
CLAIM = {"claim-name": "mine", "claim-id": UUID(int=1)}
GOOD: dict[str, dict[str, Any]] = {
    "renew-lock": {"lock-tokens": TOKENS},
    "peek-message": PEEK,
    "receive-by-sequence-number": {"sequence-numbers": Array([1], int), "receiver-settle-mode": UInt(1)},
    "update-disposition": {"disposition-status": "completed", "lock-tokens": TOKENS},
    "schedule-message": {"messages": [for_later(FOREVER)]},
    "cancel-scheduled-message": {"sequence-numbers": Array([1], int)},
    "batch-delete-messages": {"message-count": Int(1), "enqueued-time-utc": Timestamp(FOREVER)},
    "renew-session-lock": {"session-id": "s"},
    "set-session-state": {"session-id": "s", "session-state": b"x"},
    "get-session-state": {"session-id": "s"},
    "get-message-sessions": {"last-updated-time": Timestamp(FOREVER), "skip": Int(0), "top": Int(10)},
    "add-rule": {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}},
    "remove-rule": {"rule-name": "r"},
    "enumerate-rules": {"top": Int(1), "skip": Int(0)},
    "peeklock:claim-messages": {**CLAIM, "owner": UUID(int=2), "message-count": Int(1)},
    "peeklock:read-packed": {"ranges": Array([1, 1], int)},
    "peeklock:remove-claim": CLAIM,
    "peeklock:release-claim": CLAIM,
    "peeklock:list-claims": {"skip": Int(0), "top": Int(10)},
}
"""A valid request for each operation."""
