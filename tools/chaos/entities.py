"""The namespace that is used in a run: one entity for each promise, with locks as short as the service has them."""

from __future__ import annotations

from typing import Any, Final

from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME

PLAIN: Final = "plain"
"""Peek-lock with every gesture; a message becomes a dead letter after some deliveries."""
DELETED: Final = "deleted"
"""Receive-and-delete."""
SESSIONS: Final = "sessions"
ORDERS: Final = "orders"
"""What transactions take from …"""
INVOICES: Final = "invoices"
"""… and send to."""
SCHEDULED: Final = "scheduled"
UNIQUE: Final = "unique"
"""Duplicates are detected."""
CLAIMED: Final = "claimed"
"""Clients claim, and others receive …"""
CLAIMED_SESSIONS: Final = "claimed-sessions"
"""… also whole sessions."""
TOPIC: Final = "news"
SUBSCRIPTIONS: Final = (f"{TOPIC}/subscriptions/first", f"{TOPIC}/subscriptions/second")

LOCK_MS: Final = 5000
WINDOW_MS: Final = 20_000
MAX_DELIVERIES: Final = 6
NEVER: Final = 2000
"""Deliveries before a message of the other entities becomes a dead letter."""

QUEUES: Final = (PLAIN, DELETED, SESSIONS, ORDERS, INVOICES, SCHEDULED, UNIQUE, CLAIMED, CLAIMED_SESSIONS)
WITH_SESSIONS: Final = (SESSIONS, CLAIMED_SESSIONS)
WITH_CLAIMS: Final = (CLAIMED, CLAIMED_SESSIONS)
RECEIVED_FROM: Final = (*QUEUES, *SUBSCRIPTIONS)


def copies(entity: str) -> tuple[str, ...]:
    """Where messages sent to an entity are received."""
    return SUBSCRIPTIONS if entity == TOPIC else (entity,)


def dead_letters(entity: str) -> str:
    return f"{entity}/$DeadLetterQueue"


def place(path: str) -> str:
    """As it is called here, where the broker writes it in its own way."""
    return path.replace("/Subscriptions/", "/subscriptions/")


def config() -> dict[str, Any]:
    """As a configuration file has it."""
    common = {"LockDuration": f"PT{LOCK_MS // 1000}S", "MaxDeliveryCount": NEVER}
    special: dict[str, dict[str, Any]] = {
        PLAIN: {"MaxDeliveryCount": MAX_DELIVERIES},
        SESSIONS: {"RequiresSession": True},
        CLAIMED_SESSIONS: {"RequiresSession": True},
        UNIQUE: {
            "RequiresDuplicateDetection": True,
            "DuplicateDetectionHistoryTimeWindow": f"PT{WINDOW_MS // 1000}S",
        },
    }
    queues = [{"Name": name, "Properties": common | special.get(name, {})} for name in QUEUES]
    subscriptions = [{"Name": path.rsplit("/", 1)[1], "Properties": common} for path in SUBSCRIPTIONS]
    namespace = {"Name": "chaos", "Queues": queues, "Topics": [{"Name": TOPIC, "Subscriptions": subscriptions}]}
    return {"UserConfig": {"Namespaces": [namespace]}}


def address(port: int) -> str:
    """For clients; a user and a password need no tokens, which would run out when the clock is set."""
    return f"amqp://{DEFAULT_KEY_NAME}:{DEFAULT_KEY}@127.0.0.1:{port}"
