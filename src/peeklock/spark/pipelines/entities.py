"""Convert the address of an entity to options of the data source."""

from __future__ import annotations

from peeklock.entities.names import fold, split_subscription
from peeklock.spark.options import SUB_QUEUES


def entity_options(address: str) -> dict[str, str]:
    """The options for a queue, or a subscription as `topic/Subscriptions/name`, or the dead-letter queue of either."""
    for name, suffix in sorted(SUB_QUEUES.items(), key=lambda item: -len(item[1])):
        if fold(address).endswith(fold(suffix)):
            return {**entity_options(address[: -len(suffix)]), "subQueue": name}
    parts = split_subscription(address)
    return {"queue": address} if parts is None else {"topic": parts[0], "subscription": parts[1]}
