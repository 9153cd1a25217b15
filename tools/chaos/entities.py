"""The namespace of a run: one entity for each promise, with the shortest locks that the service allows."""

from __future__ import annotations

from typing import Any, Final

from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME

PLAIN: Final = "plain"
"""Peek-lock with every settlement; messages are dead-lettered after a few deliveries."""
DELETED: Final = "deleted"
"""Receive-and-delete."""
SESSIONS: Final = "sessions"
ORDERS: Final = "orders"
"""Transactions complete messages of this queue …"""
INVOICES: Final = "invoices"
"""… and send to this one."""
SCHEDULED: Final = "scheduled"
UNIQUE: Final = "unique"
"""With duplicate detection."""
CLAIMED: Final = "claimed"
"""Some clients claim messages, others receive them."""
CLAIMED_SESSIONS: Final = "claimed-sessions"
"""Clients claim whole sessions."""
TOPIC: Final = "news"
SUBSCRIPTIONS: Final = (f"{TOPIC}/subscriptions/first", f"{TOPIC}/subscriptions/second")

LOCK_MS: Final = 5000
WINDOW_MS: Final = 20_000
MAX_DELIVERIES: Final = 6
NEVER: Final = 2000
"""MaxDeliveryCount of the other entities, too high to be reached."""

QUEUES: Final = (PLAIN, DELETED, SESSIONS, ORDERS, INVOICES, SCHEDULED, UNIQUE, CLAIMED, CLAIMED_SESSIONS)
WITH_SESSIONS: Final = (SESSIONS, CLAIMED_SESSIONS)
WITH_CLAIMS: Final = (CLAIMED, CLAIMED_SESSIONS)
RECEIVED_FROM: Final = (*QUEUES, *SUBSCRIPTIONS)


def copies(entity: str) -> tuple[str, ...]:
    """Return the entities where messages sent to an entity are received."""
    return SUBSCRIPTIONS if entity == TOPIC else (entity,)


def dead_letters(entity: str) -> str:
    return f"{entity}/$DeadLetterQueue"


def place(path: str) -> str:
    """Return the name used in this package for a path in the broker's spelling."""
    return path.replace("/Subscriptions/", "/subscriptions/")


def config() -> dict[str, Any]:
    """Return the namespace as the content of a configuration file."""
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
    """Return the broker's address for clients, with user and password: tokens would expire when the clock is set."""
    return f"amqp://{DEFAULT_KEY_NAME}:{DEFAULT_KEY}@127.0.0.1:{port}"
