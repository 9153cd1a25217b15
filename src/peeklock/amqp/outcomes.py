"""The error type (2.8.14) and delivery states (3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from peeklock.amqp.composites import (
    BOOLEAN,
    STRING,
    SYMBOL,
    SYMBOL_MAP,
    UINT,
    ULONG,
    Composite,
    composite,
    described_as,
)


@composite
@dataclass(slots=True)
class Error(Composite):
    """An error (2.8.14). It always has three fields and a description, because clients read them without a check."""

    CODE: ClassVar[int] = 0x1D
    condition: Annotated[str, SYMBOL]
    description: Annotated[str, STRING] = ""
    info: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None


ERROR = described_as("an error", Error)


@composite
@dataclass(slots=True)
class Received(Composite):
    """The state received (3.4.1): how much of a delivery has arrived."""

    CODE: ClassVar[int] = 0x23
    section_number: Annotated[int, UINT]
    section_offset: Annotated[int, ULONG]


@composite
@dataclass(slots=True)
class Accepted(Composite):
    """The outcome accepted (3.4.2)."""

    CODE: ClassVar[int] = 0x24


@composite
@dataclass(slots=True)
class Rejected(Composite):
    """The outcome rejected (3.4.3)."""

    CODE: ClassVar[int] = 0x25
    error: Annotated[Error | None, ERROR] = None


@composite
@dataclass(slots=True)
class Released(Composite):
    """The outcome released (3.4.4)."""

    CODE: ClassVar[int] = 0x26


@composite
@dataclass(slots=True)
class Modified(Composite):
    """The outcome modified (3.4.5)."""

    CODE: ClassVar[int] = 0x27
    delivery_failed: Annotated[bool | None, BOOLEAN] = None
    undeliverable_here: Annotated[bool | None, BOOLEAN] = None
    message_annotations: Annotated[dict[Any, Any] | None, SYMBOL_MAP] = None
