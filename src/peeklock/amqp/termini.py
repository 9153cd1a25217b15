"""The source and the target of a link (3.5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from peeklock.amqp.composites import (
    BOOLEAN,
    DELIVERY_STATE,
    STRING,
    SYMBOL,
    SYMBOL_MAP,
    SYMBOLS,
    UINT,
    Composite,
    composite,
    described_as,
    one_of,
)
from peeklock.amqp.transactions import Coordinator
from peeklock.amqp.types import Described

TERMINUS_DURABILITY = one_of(UINT, 0, 1, 2)
EXPIRY_POLICY = one_of(SYMBOL, "link-detach", "session-end", "connection-close", "never")


@composite
@dataclass(slots=True, kw_only=True)
class Source(Composite):
    """The source of a link (3.5.3)."""

    CODE: ClassVar[int] = 0x28
    address: Annotated[str | None, STRING] = None
    durable: Annotated[int, TERMINUS_DURABILITY] = 0
    expiry_policy: Annotated[str, EXPIRY_POLICY] = "session-end"
    timeout: Annotated[int, UINT] = 0
    dynamic: Annotated[bool, BOOLEAN] = False
    dynamic_node_properties: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None
    distribution_mode: Annotated[str | None, SYMBOL] = None
    filter: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None
    default_outcome: Annotated[Composite | Described | None, DELIVERY_STATE] = None
    outcomes: Annotated[list[str] | None, SYMBOLS] = None
    capabilities: Annotated[list[str] | None, SYMBOLS] = None


@composite
@dataclass(slots=True, kw_only=True)
class Target(Composite):
    """The target of a link (3.5.4)."""

    CODE: ClassVar[int] = 0x29
    address: Annotated[str | None, STRING] = None
    durable: Annotated[int, TERMINUS_DURABILITY] = 0
    expiry_policy: Annotated[str, EXPIRY_POLICY] = "session-end"
    timeout: Annotated[int, UINT] = 0
    dynamic: Annotated[bool, BOOLEAN] = False
    dynamic_node_properties: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None
    capabilities: Annotated[list[str] | None, SYMBOLS] = None


SOURCE = described_as("a source", Source)
TARGET = described_as("a target or a coordinator", Target, Coordinator)
