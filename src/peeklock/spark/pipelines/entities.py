"""Convert the address of an entity to options of the data source."""

from __future__ import annotations

from typing import Final

from peeklock.spark.options import SUB_QUEUES

_SUBSCRIPTIONS: Final = "/subscriptions/"


def entity_options(address: str) -> dict[str, str]:
    """The options for a queue, or a subscription as `topic/Subscriptions/name`, or the dead-letter queue of either."""
    for name, suffix in sorted(SUB_QUEUES.items(), key=lambda item: -len(item[1])):
        if address.lower().endswith(suffix.lower()):
            return {**entity_options(address[: -len(suffix)]), "subQueue": name}
    at = address.lower().rfind(_SUBSCRIPTIONS)
    if at < 0:
        return {"queue": address}
    return {"topic": address[:at], "subscription": address[at + len(_SUBSCRIPTIONS) :]}
