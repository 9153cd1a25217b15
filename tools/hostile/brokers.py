"""The brokers that are attacked, one after the other: their entities and how each is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tools.hostile.small_disk import LOW_MIB
from tools.hostile.victim import (
    CONFIG,
    FROM_ONE_ADDRESS,
    FULL,
    FULL_SESSIONS,
    FULL_TOPIC,
    KEPT,
    KEY,
    LIVE,
    OTHER,
    QUEUE,
    REMEMBERED_IDS,
    ROOT,
    SESSIONS,
    SUBSCRIPTION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    module: str
    """The module that Python runs."""
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    is_strict: bool = False
    """Whether it requires TLS and client certificates."""


_GROWN: Final = " ".join(f"SET p{number} = given + given;" for number in range(4))
_LIMITS: Final = {"MaxSizeInMegabytes": 1}
_SMALL_CONFIG: Final[dict[str, Any]] = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "hostile",
                "AuthorizationRules": [{"Name": ROOT, "Rights": ["Manage"], "PrimaryKey": KEY}],
                "Queues": [
                    {"Name": KEPT},
                    {"Name": LIVE},
                    {"Name": QUEUE, "Properties": {"MaxSizeInMegabytes": 1024}},
                    {"Name": OTHER},
                    {"Name": SESSIONS, "Properties": {"RequiresSession": True}},
                    {"Name": FULL, "Properties": {**_LIMITS, "LockDuration": "PT5S", "MaxDeliveryCount": 10}},
                    {"Name": FULL_SESSIONS, "Properties": {**_LIMITS, "RequiresSession": True}},
                ],
                "Topics": [
                    {
                        "Name": FULL_TOPIC,
                        "Properties": _LIMITS,
                        "Subscriptions": [
                            {
                                "Name": SUBSCRIPTION,
                                "Rules": [
                                    {
                                        "Name": "grows",
                                        "Properties": {
                                            "FilterType": "Sql",
                                            "SqlFilter": {"SqlExpression": "1=1"},
                                            "Action": {"SqlExpression": _GROWN},
                                        },
                                    }
                                ],
                            }
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "Console"},
        "Server": {"MaxConnectionsPerAddress": FROM_ONE_ADDRESS},
    }
}
"""Entities of the smallest size, 1 MB; the standard tier's smallest size is 1 GB."""

BROKERS: Final[Mapping[str, Setup]] = {
    "usual": Setup(module="peeklock", arguments=("--max-message-ids", str(REMEMBERED_IDS)), config=CONFIG),
    "small": Setup(
        module="tools.hostile.small_disk",
        arguments=("--profile", "emulator", "--disk-free-low", str(LOW_MIB)),
        config=_SMALL_CONFIG,
    ),
    "strict": Setup(module="peeklock", arguments=(), config=CONFIG, is_strict=True),
}
"""By the names used in `Attack.broker`."""
