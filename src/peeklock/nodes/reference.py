"""The reference page of `$management`, made from the table of operations.

`python -m peeklock.nodes.reference > docs/management-operations.md` writes it; a test compares the two.
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
        "or the SQL of a rule is wrong, and it shows where",
    ),
    (
        OperationNotAllowed,
        "the entity has no such thing: no sessions, no rules, or as a topic no messages of its own; "
        "or the operation takes no transaction",
    ),
    (EntityDisabled, "the entity's status does not allow it"),
    (Unauthorized, "the connection lacks the right for the operation; the links stay"),
    (MessageSizeExceeded, "a message or a session state is larger than the entity takes"),
    (QuotaExceeded, "the entity is full, a transaction has too many messages, or a topic too many filters"),
    (EntityNotFound, "there is no such rule"),
    (EntityExists, "there is a rule of that name"),
    (MessageNotFound, "no message in that state has one of the sequence numbers; nothing was done"),
    (OperationTimedOut, "it took longer than the client's server-timeout; it may still be done later"),
    (MessageLockLost, "one of the lock tokens is not good, or no longer; nothing was done"),
    (SessionLockLost, "the session is not held, or by another receiver than the request speaks for"),
    (StorageFailed, "the store failed; nothing was done"),
    (NotSupported, "the operation is not known"),
    (ServerBusy, "the broker waits for its store; to be tried again"),
)

_OPENING = """\
# Management operations

<!-- Made from the table of operations: python -m peeklock.nodes.reference > docs/management-operations.md -->

Each queue, topic, subscription and dead-letter queue has a management node, `<entity>/$management`: requests about
messages, locks, sessions and rules that are no transfers of messages. The SDKs use it for peek, renew, schedule,
deferral, session state and rules; any AMQP 1.0 client can. Messages are scheduled and cancelled at a queue or topic;
all else is asked of queues, subscriptions and dead-letter queues, and rules are those of subscriptions.

## Asking

Attach two links to `<entity>/$management`: one to send requests on, one to receive responses from. Who may send to or
receive from the entity may attach; each operation then asks for its own right.

| Part of a request | Type | |
|---|---|---|
| properties `message-id` | string, ulong, uuid or binary | comes back unchanged as the response's `correlation-id` |
| properties `reply-to` | string | target address or name of the response link; without it that of this node |
| application property `operation` | string | one of the names below |
| application property `com.microsoft:server-timeout` or `server-timeout` | uint, ulong or long | milliseconds after \
which the answer is 408 |
| application property `associated-link-name` | string | the link that holds the session, for operations on one; \
without it any link of the connection. Peeking and fetching deferred messages may leave `session-id` to it |
| application property `com.microsoft:tracking-id` | string | is repeated in the description of a failure |
| body | amqp-value: map | string keys; null is as good as absent; integers of any width; lists as good as arrays |
| state of the transfer | transactional-state | makes a transactional operation part of that transaction |

Many requests may be under way at a time. Answers come in the order in which they are ready.

## Answers

| Part of a response | Type | |
|---|---|---|
| application properties `statusCode`, `status-code` | int | 200, 204 when there is nothing to give, or a failure |
| application properties `statusDescription`, `status-description` | string | for people |
| application properties `errorCondition`, `error-condition` | symbol | failures only |
| body | amqp-value: map | empty when there is nothing to say |

A request that cannot be read, is larger than 16 MB or has no response link is rejected on its own link. All others are
accepted, also those that are refused in the answer; the disposition leaves before the answer.
"""

_DESCRIBED_LISTS = """\
## Described lists

Rules are listed as described lists, whose descriptors are the codes (ulong). In requests each may stand in place of
the map, described by its code, with eleven hexadecimal digits or ten, or by its name (symbol).
"""


def page() -> str:
    """The whole page."""
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
        f"{operation.summary} Needs the right {operation.right}.{transaction}",
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
    """All keys with their paths: those of a map, or of the maps in a list, follow it."""
    for field in fields:
        path = f"{above}{field.name}"
        yield path, field
        yield from walk(field.keys, f"{path}.")


if __name__ == "__main__":
    print(page(), end="")
