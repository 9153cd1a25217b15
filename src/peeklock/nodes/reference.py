"""Generates the reference page of `$management` from the table of operations.

`python -m peeklock.nodes.reference > docs/management-operations.md` writes the page. A test checks that it is current.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from peeklock.broker.errors import (
    BrokerError,
    EntityDisabled,
    EntityExists,
    EntityNotFound,
    InvalidProperty,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    NotSupported,
    OperationNotAllowed,
    OperationTimedOut,
    QuotaExceeded,
    ServerBusy,
    SessionLockLost,
    StorageFailed,
    Unauthorized,
)
from peeklock.nodes.fields import Field
from peeklock.nodes.operation import Operation
from peeklock.nodes.operation_table import OPERATIONS
from peeklock.nodes.rule_descriptions import FORMS

_FAILURES: tuple[tuple[type[BrokerError], str], ...] = (
    (
        InvalidProperty,
        "a key is missing, empty, of the wrong type or out of range, and the description names it; "
        "or the SQL of a rule is wrong, and the description shows where",
    ),
    (
        OperationNotAllowed,
        "the entity does not have it: no sessions, no rules, or, for a topic, no messages to receive; "
        "or the operation cannot be part of a transaction",
    ),
    (EntityDisabled, "the entity's status does not allow it"),
    (Unauthorized, "the connection lacks the right for the operation; the links stay"),
    (MessageSizeExceeded, "a message or a session state is larger than the entity allows"),
    (QuotaExceeded, "the entity is full, a transaction has too many messages, or a topic too many filters"),
    (EntityNotFound, "the rule does not exist"),
    (EntityExists, "a rule of that name exists"),
    (MessageNotFound, "no message in the required state has one of the sequence numbers; nothing was changed"),
    (OperationTimedOut, "it took longer than the client's server-timeout; it may still complete later"),
    (MessageLockLost, "one of the lock tokens is unknown or expired; nothing was changed"),
    (SessionLockLost, "the session is not locked, or another receiver than the one of the request holds it"),
    (StorageFailed, "the store failed; nothing was changed"),
    (NotSupported, "the operation is not known"),
    (ServerBusy, "the broker is waiting for its store; try again"),
)

_OPENING = """\
# Management operations

<!-- Made from the table of operations: python -m peeklock.nodes.reference > docs/management-operations.md -->

This page is for authors of AMQP clients. Each queue, topic, subscription and dead-letter queue has a management node,
`<entity>/$management`, for requests about messages, locks, sessions and rules. The SDKs use it for peek, renew,
schedule, deferral, session state and rules; any AMQP 1.0 client can. Queues and topics schedule and cancel messages;
the other operations are for queues, subscriptions and dead-letter queues, and those on rules for subscriptions.

## Requests

Attach two links to `<entity>/$management`: one to send requests, one to receive responses. Attaching requires Send or
Listen on the entity; each operation then requires its own right.

| Part of a request | Type | |
|---|---|---|
| properties `message-id` | string, ulong, uuid or binary | returned unchanged as the `correlation-id` of the response |
| properties `reply-to` | string | target address or name of the response link; by default any of this node |
| application property `operation` | string | one of the names below |
| application property `com.microsoft:server-timeout` or `server-timeout` | uint, ulong or long | milliseconds after \
which the response is 408 |
| application property `associated-link-name` | string | the link that holds the session; by default any link \
of the connection. Requests to peek or to receive deferred messages may name this instead of `session-id` |
| application property `com.microsoft:tracking-id` | string | repeated in the description of a failure |
| body | amqp-value: map | string keys; null counts as absent; integers of any width; lists and arrays are equivalent |
| state of the transfer | transactional-state | makes a transactional operation part of that transaction |

Many requests may be under way at the same time. Responses are sent in the order in which they are ready.

## Responses

| Part of a response | Type | |
|---|---|---|
| application properties `statusCode`, `status-code` | int | 200, 204 when there is nothing to return, or a failure |
| application properties `statusDescription`, `status-description` | string | for people |
| application properties `errorCondition`, `error-condition` | symbol | failures only |
| body | amqp-value: map | empty when there is nothing to return |

A request that cannot be decoded, is larger than 16 MB or has no response link is rejected on its own link. All other
requests are accepted, also those that fail; the disposition is sent before the response.
"""

_DESCRIBED_LISTS = """\
## Described lists

Responses have rules as described lists, whose descriptors are the codes (ulong). Requests may have such a list in place
of the map. Its descriptor is the code, with eleven hexadecimal digits or ten, or the name (symbol).
"""


def page() -> str:
    """Return the whole page."""
    parts = [_OPENING, _failures(), "## Operations\n", _overview(OPERATIONS.values())]
    parts += [_section(operation) for operation in OPERATIONS.values()]
    parts += [_DESCRIBED_LISTS, _forms()]
    return "\n".join(parts)


def _forms() -> str:
    rows = [f"| `{form.symbol}` | `0x{form.code:016X}` | {form.items} |" for form in FORMS]
    return "\n".join(("| Descriptor | Code | List of |", "|---|---|---|", *rows, ""))


def _failures() -> str:
    rows = [
        f"| {failure.status.value} | `{failure.condition}` | {meaning} |"
        for failure, meaning in sorted(_FAILURES, key=lambda each: each[0].status)
    ]
    return "\n".join(("| Failure | Condition | |", "|---|---|---|", *rows, ""))


def _overview(operations: Iterable[Operation]) -> str:
    rows = [
        f"| [{operation.name}](#{_anchor(operation)}) | {operation.right} | {operation.summary} |"
        for operation in operations
    ]
    return "\n".join(("| Operation | Right | |", "|---|---|---|", *rows, ""))


def _anchor(operation: Operation) -> str:
    return operation.name.replace(":", "").replace(".", "")


def _section(operation: Operation) -> str:
    transaction = " Can be part of a transaction." if operation.transactional else ""
    lines = [
        f"### {operation.name}",
        "",
        f"{operation.summary} Requires the right {operation.right}.{transaction}",
        "",
        *_table("Request", operation.request),
        "",
        *(_table("Response", operation.response) if operation.response else ["The response is an empty map."]),
        "",
    ]
    return "\n".join(lines)


def _table(title: str, fields: tuple[Field, ...]) -> Iterator[str]:
    yield f"| {title} | Type | Required | |"
    yield "|---|---|---|---|"
    for path, field in walk(fields):
        yield f"| `{path}` | {field.types} | {'yes' if field.required else 'no'} | {field.note} |"


def walk(fields: tuple[Field, ...], above: str = "") -> Iterator[tuple[str, Field]]:
    """Return all keys with their paths. The keys of a map, or of the maps in a list, follow the key of the map."""
    for field in fields:
        path = f"{above}{field.name}"
        yield path, field
        yield from walk(field.keys, f"{path}.")


if __name__ == "__main__":
    print(page(), end="")
