"""The bodies of SASL frames (5.3.3). `repr` omits their credentials, so that logs do not have them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from peeklock.amqp.composites import BINARY, STRING, SYMBOL, SYMBOLS, UBYTE, Composite, composite, one_of

SASL_CODE = one_of(UBYTE, 0, 1, 2, 3, 4)


@composite
@dataclass(slots=True)
class SaslMechanisms(Composite):
    """sasl-mechanisms (5.3.3.1): the mechanisms that the server offers."""

    CODE: ClassVar[int] = 0x40
    sasl_server_mechanisms: Annotated[list[str], SYMBOLS]


@composite
@dataclass(slots=True)
class SaslInit(Composite):
    """sasl-init (5.3.3.2): the mechanism that the client has selected, and its first response."""

    CODE: ClassVar[int] = 0x41
    mechanism: Annotated[str, SYMBOL]
    initial_response: Annotated[bytes | None, BINARY] = field(default=None, repr=False)
    hostname: Annotated[str | None, STRING] = None


@composite
@dataclass(slots=True)
class SaslChallenge(Composite):
    """sasl-challenge (5.3.3.3)."""

    CODE: ClassVar[int] = 0x42
    challenge: Annotated[bytes, BINARY] = field(repr=False)


@composite
@dataclass(slots=True)
class SaslResponse(Composite):
    """sasl-response (5.3.3.4)."""

    CODE: ClassVar[int] = 0x43
    response: Annotated[bytes, BINARY] = field(repr=False)


@composite
@dataclass(slots=True)
class SaslOutcome(Composite):
    """sasl-outcome (5.3.3.5). Code 0 is success, 1 refused credentials, 2 to 4 other failures."""

    CODE: ClassVar[int] = 0x44
    code: Annotated[int, SASL_CODE]
    additional_data: Annotated[bytes | None, BINARY] = field(default=None, repr=False)
