"""Transactions (part 4): the coordinator's messages and the states that refer to a transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from peeklock.amqp.composites import BINARY, BOOLEAN, DELIVERY_STATE, SYMBOLS, Composite, composite
from peeklock.amqp.types import Described


@composite
@dataclass(slots=True, kw_only=True)
class Coordinator(Composite):
    """coordinator (4.5.1): the target of a link on which transactions are declared and discharged."""

    CODE: ClassVar[int] = 0x30
    capabilities: Annotated[list[str] | None, SYMBOLS] = None


@composite
@dataclass(slots=True)
class Declare(Composite):
    """declare (4.5.2): the body of a message that requests a new transaction."""

    CODE: ClassVar[int] = 0x31
    global_id: Annotated[bytes | None, BINARY] = None


@composite
@dataclass(slots=True)
class Discharge(Composite):
    """discharge (4.5.3): the body of a message that commits a transaction or rolls it back."""

    CODE: ClassVar[int] = 0x32
    txn_id: Annotated[bytes, BINARY]
    fail: Annotated[bool | None, BOOLEAN] = None


@composite
@dataclass(slots=True)
class Declared(Composite):
    """declared (4.5.5): the outcome of a declare."""

    CODE: ClassVar[int] = 0x33
    txn_id: Annotated[bytes, BINARY]


@composite
@dataclass(slots=True)
class TransactionalState(Composite):
    """transactional-state (4.5.6): the state of work in a transaction, with its outcome at the commit."""

    CODE: ClassVar[int] = 0x34
    txn_id: Annotated[bytes, BINARY]
    outcome: Annotated[Composite | Described | None, DELIVERY_STATE] = None
