"""The state tables of connections, sessions and links. Every change of a state goes through `step`.

A pair of state and input that is not in its table is an error: of the peer if the input was received, otherwise of this
program.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final, TypeVar

from peeklock.amqp.errors import AmqpError, Condition
from peeklock.engine.errors import CloseConnection, EndSession, StateError


class ConnectionState(Enum):
    """The states of a connection (2.4.6), including the header exchange (2.2)."""

    START = auto()
    HEADER_SENT = auto()
    HEADER_RECEIVED = auto()
    HEADERS_EXCHANGED = auto()
    OPEN_PIPED = auto()
    OPEN_SENT = auto()
    OPEN_RECEIVED = auto()
    OPENED = auto()
    CLOSE_SENT = auto()
    CLOSE_RECEIVED = auto()
    ENDED = auto()


class ConnectionInput(Enum):
    SEND_HEADER = auto()
    RECEIVE_HEADER = auto()
    SEND_OPEN = auto()
    RECEIVE_OPEN = auto()
    SEND_CLOSE = auto()
    RECEIVE_CLOSE = auto()
    DROP_TRANSPORT = auto()
    """The transport is lost, or this side stops reading from it."""


class SessionState(Enum):
    """The states of a session (2.5.5)."""

    UNMAPPED = auto()
    BEGIN_SENT = auto()
    BEGIN_RECEIVED = auto()
    MAPPED = auto()
    END_SENT = auto()
    END_RECEIVED = auto()


class SessionInput(Enum):
    SEND_BEGIN = auto()
    RECEIVE_BEGIN = auto()
    SEND_END = auto()
    RECEIVE_END = auto()
    LOSE_CONNECTION = auto()


class LinkState(Enum):
    """The states of a link (2.6.4)."""

    DETACHED = auto()
    ATTACH_SENT = auto()
    ATTACH_RECEIVED = auto()
    ATTACHED = auto()
    DETACH_SENT = auto()
    DETACH_RECEIVED = auto()


class LinkInput(Enum):
    SEND_ATTACH = auto()
    RECEIVE_ATTACH = auto()
    SEND_DETACH = auto()
    RECEIVE_DETACH = auto()
    LOSE_SESSION = auto()


_C, _CI = ConnectionState, ConnectionInput
_S, _SI = SessionState, SessionInput
_L, _LI = LinkState, LinkInput

CONNECTION: dict[tuple[ConnectionState, ConnectionInput], ConnectionState] = {
    (_C.START, _CI.SEND_HEADER): _C.HEADER_SENT,
    (_C.START, _CI.RECEIVE_HEADER): _C.HEADER_RECEIVED,
    (_C.HEADER_SENT, _CI.RECEIVE_HEADER): _C.HEADERS_EXCHANGED,
    (_C.HEADER_SENT, _CI.SEND_OPEN): _C.OPEN_PIPED,
    (_C.HEADER_RECEIVED, _CI.SEND_HEADER): _C.HEADERS_EXCHANGED,
    (_C.HEADERS_EXCHANGED, _CI.SEND_OPEN): _C.OPEN_SENT,
    (_C.HEADERS_EXCHANGED, _CI.RECEIVE_OPEN): _C.OPEN_RECEIVED,
    (_C.OPEN_PIPED, _CI.RECEIVE_HEADER): _C.OPEN_SENT,
    (_C.OPEN_PIPED, _CI.SEND_CLOSE): _C.CLOSE_SENT,
    (_C.OPEN_SENT, _CI.RECEIVE_OPEN): _C.OPENED,
    (_C.OPEN_SENT, _CI.SEND_CLOSE): _C.CLOSE_SENT,
    (_C.OPEN_SENT, _CI.RECEIVE_CLOSE): _C.CLOSE_RECEIVED,
    (_C.OPEN_RECEIVED, _CI.SEND_OPEN): _C.OPENED,
    (_C.OPEN_RECEIVED, _CI.RECEIVE_CLOSE): _C.CLOSE_RECEIVED,
    (_C.OPENED, _CI.SEND_CLOSE): _C.CLOSE_SENT,
    (_C.OPENED, _CI.RECEIVE_CLOSE): _C.CLOSE_RECEIVED,
    (_C.CLOSE_RECEIVED, _CI.SEND_OPEN): _C.CLOSE_RECEIVED,
    (_C.CLOSE_RECEIVED, _CI.SEND_CLOSE): _C.ENDED,
    (_C.CLOSE_SENT, _CI.RECEIVE_HEADER): _C.CLOSE_SENT,
    (_C.CLOSE_SENT, _CI.RECEIVE_OPEN): _C.CLOSE_SENT,
    (_C.CLOSE_SENT, _CI.RECEIVE_CLOSE): _C.ENDED,
    **{(state, _CI.DROP_TRANSPORT): _C.ENDED for state in _C},
}

SESSION: dict[tuple[SessionState, SessionInput], SessionState] = {
    (_S.UNMAPPED, _SI.SEND_BEGIN): _S.BEGIN_SENT,
    (_S.UNMAPPED, _SI.RECEIVE_BEGIN): _S.BEGIN_RECEIVED,
    (_S.BEGIN_SENT, _SI.RECEIVE_BEGIN): _S.MAPPED,
    (_S.BEGIN_SENT, _SI.SEND_END): _S.END_SENT,
    (_S.BEGIN_RECEIVED, _SI.SEND_BEGIN): _S.MAPPED,
    (_S.MAPPED, _SI.SEND_END): _S.END_SENT,
    (_S.MAPPED, _SI.RECEIVE_END): _S.END_RECEIVED,
    (_S.END_SENT, _SI.RECEIVE_BEGIN): _S.END_SENT,
    (_S.END_SENT, _SI.RECEIVE_END): _S.UNMAPPED,
    (_S.END_RECEIVED, _SI.SEND_END): _S.UNMAPPED,
    **{(state, _SI.LOSE_CONNECTION): _S.UNMAPPED for state in _S},
}

LINK: dict[tuple[LinkState, LinkInput], LinkState] = {
    (_L.DETACHED, _LI.SEND_ATTACH): _L.ATTACH_SENT,
    (_L.DETACHED, _LI.RECEIVE_ATTACH): _L.ATTACH_RECEIVED,
    (_L.ATTACH_SENT, _LI.RECEIVE_ATTACH): _L.ATTACHED,
    (_L.ATTACH_SENT, _LI.SEND_DETACH): _L.DETACH_SENT,
    (_L.ATTACH_RECEIVED, _LI.SEND_ATTACH): _L.ATTACHED,
    (_L.ATTACH_RECEIVED, _LI.RECEIVE_DETACH): _L.DETACH_RECEIVED,
    (_L.ATTACHED, _LI.SEND_DETACH): _L.DETACH_SENT,
    (_L.ATTACHED, _LI.RECEIVE_DETACH): _L.DETACH_RECEIVED,
    (_L.DETACH_RECEIVED, _LI.SEND_ATTACH): _L.DETACH_RECEIVED,
    (_L.DETACH_RECEIVED, _LI.SEND_DETACH): _L.DETACHED,
    (_L.DETACH_SENT, _LI.RECEIVE_ATTACH): _L.DETACH_SENT,
    (_L.DETACH_SENT, _LI.RECEIVE_DETACH): _L.DETACHED,
    **{(state, _LI.LOSE_SESSION): _L.DETACHED for state in _L},
}


_SCOPES: Final[dict[type[Enum], type[AmqpError]]] = {
    ConnectionInput: CloseConnection,
    SessionInput: CloseConnection,
    LinkInput: EndSession,
}
"""The errors to raise if the peer sends an input that the state does not allow. The parent endpoint ends."""

State = TypeVar("State", bound=Enum)
Input = TypeVar("Input", bound=Enum)


def step(table: dict[tuple[State, Input], State], state: State, cause: Input) -> State:
    """Return the next state. Raise an error if the pair of state and input is not in the table."""
    try:
        return table[state, cause]
    except KeyError:
        raise _error_of(state, cause) from None


def _error_of(state: Enum, cause: Enum) -> Exception:
    endpoint = type(state).__name__.removesuffix("State").lower()
    text = f"{_words(cause)} does not fit a {endpoint} that is {_words(state)}"
    if cause.name.startswith("RECEIVE_"):
        return _SCOPES[type(cause)](Condition.ILLEGAL_STATE, text)
    return StateError(text)


def _words(name: Enum) -> str:
    return name.name.lower().replace("_", " ")
