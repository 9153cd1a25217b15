"""All states and all inputs of connections, sessions and links."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from engine.pair import Peer, attach, only
from peeklock import engine
from peeklock.amqp.errors import AmqpError, Condition
from peeklock.amqp.frames import AMQP_HEADER
from peeklock.amqp.performatives import Begin, Close, Detach, End, Open
from peeklock.engine.connection import Connection
from peeklock.engine.errors import CloseConnection, EndSession, StateError
from peeklock.engine.events import ConnectionClosed, LinkAttached, SessionEnded
from peeklock.engine.links import Link, Receiver, Sender
from peeklock.engine.opening import Settings
from peeklock.engine.session import Session
from peeklock.engine.states import (
    CONNECTION,
    LINK,
    SESSION,
    ConnectionInput,
    ConnectionState,
    LinkInput,
    LinkState,
    SessionInput,
    SessionState,
)

C, CI = ConnectionState, ConnectionInput
S, SI = SessionState, SessionInput
L, LI = LinkState, LinkInput


# --- the tables: each pair, on an endpoint that was led to the state by inputs of its table ---


def a_connection() -> Connection:
    return Connection(Settings(container_id="it"), is_server=True)


def a_session() -> Session:
    return Session(a_connection(), 0)


def a_sender() -> Link:
    return Sender(a_session(), "link", 0)


def a_receiver() -> Link:
    return Receiver(a_session(), "link", 0)


MACHINES: list[tuple[Callable[[], Any], Any, type[Enum], type[Enum], type[AmqpError]]] = [
    (a_connection, CONNECTION, C, CI, CloseConnection),
    (a_session, SESSION, S, SI, CloseConnection),
    (a_sender, LINK, L, LI, EndSession),
    (a_receiver, LINK, L, LI, EndSession),
]
PAIRS = [
    pytest.param(make, table, state, cause, scope, id=f"{make.__name__}-{state.name}-{cause.name}")
    for make, table, states, inputs, scope in MACHINES
    for state in states
    for cause in inputs
]


def path_to(table: dict[tuple[Any, Any], Any], start: Any, goal: Any) -> list[Any]:
    """Return the shortest sequence of inputs that leads to a state."""
    paths: dict[Any, list[Any]] = {start: []}
    while goal not in paths:
        before = dict(paths)
        for (state, cause), after in table.items():
            if state in before:
                paths.setdefault(after, [*before[state], cause])
        assert len(paths) > len(before), f"{goal} cannot be reached"
    return paths[goal]


@pytest.mark.parametrize(("make", "table", "state", "cause", "scope"), PAIRS)
def test_a_pair_of_the_table_leads_to_its_state_and_any_other_is_an_error(
    make: Callable[[], Any], table: dict[tuple[Any, Any], Any], state: Any, cause: Any, scope: type[AmqpError]
) -> None:
    endpoint = make()
    for step in path_to(table, endpoint.state, state):
        endpoint._step(step)
    assert endpoint.state is state
    if (state, cause) in table:
        endpoint._step(cause)
        assert endpoint.state is table[state, cause]
    elif cause.name.startswith("RECEIVE_"):
        with pytest.raises(scope) as raised:
            endpoint._step(cause)
        assert raised.value.condition == Condition.ILLEGAL_STATE
        assert type(raised.value) is scope
        assert endpoint.state is state
    else:
        with pytest.raises(StateError):
            endpoint._step(cause)
        assert endpoint.state is state


def test_a_state_is_assigned_by_a_step_only() -> None:
    found: set[tuple[str, str]] = set()
    for path in Path(engine.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                found |= {
                    (path.stem, node.name)
                    for each in ast.walk(node)
                    if isinstance(each, ast.Attribute) and each.attr == "state" and isinstance(each.ctx, ast.Store)
                }
    endpoints = {(module, name) for module in ("connection", "session", "links") for name in ("__init__", "_step")}
    values_of_deliveries = {("deliveries", "__init__"), ("dispositions", "__init__")}
    assert found == endpoints | values_of_deliveries


# --- on the wire: what an engine does with each input in each state that it can rest in ---


def connection_in(state: ConnectionState) -> Peer:
    """Return a peer of an engine in that state. The engine is a server if both roles have the state."""
    is_server = state not in (C.OPEN_PIPED, C.OPEN_SENT)
    peer = Peer(is_server=is_server, open_it=state in (C.OPENED, C.CLOSE_SENT, C.ENDED))
    if state in (C.HEADERS_EXCHANGED, C.OPEN_SENT):
        peer.raw(AMQP_HEADER)
    if state is C.CLOSE_SENT:
        peer.engine.close()
    if state is C.ENDED:
        peer.engine.lost()
    assert peer.engine.state is state
    return peer


CONNECTION_INPUTS: dict[ConnectionInput, Callable[[Peer], object]] = {
    CI.RECEIVE_HEADER: lambda peer: peer.raw(AMQP_HEADER),
    CI.RECEIVE_OPEN: lambda peer: peer.send(0, Open(container_id="peer")),
    CI.RECEIVE_CLOSE: lambda peer: peer.send(0, Close()),
    CI.SEND_CLOSE: lambda peer: peer.engine.close(),
    CI.DROP_TRANSPORT: lambda peer: peer.engine.lost(),
}
REFUSED = "refused"
"""The result if the connection is closed with an error."""
CONNECTION_OUTCOMES: dict[ConnectionState, tuple[ConnectionState | str, ...]] = {
    C.START: (C.HEADERS_EXCHANGED, REFUSED, REFUSED, C.ENDED, C.ENDED),
    C.HEADERS_EXCHANGED: (REFUSED, C.OPENED, REFUSED, C.CLOSE_SENT, C.ENDED),
    C.OPEN_PIPED: (C.OPEN_SENT, REFUSED, REFUSED, C.CLOSE_SENT, C.ENDED),
    C.OPEN_SENT: (REFUSED, C.OPENED, C.ENDED, C.CLOSE_SENT, C.ENDED),
    C.OPENED: (REFUSED, REFUSED, C.ENDED, C.CLOSE_SENT, C.ENDED),
    C.CLOSE_SENT: (REFUSED, C.CLOSE_SENT, C.ENDED, C.CLOSE_SENT, C.ENDED),
    C.ENDED: (C.ENDED, C.ENDED, C.ENDED, C.ENDED, C.ENDED),
}
"""By the inputs above. Each answer that the engine owes is sent at once: it does not rest in the other states."""


@pytest.mark.parametrize("state", CONNECTION_OUTCOMES)
@pytest.mark.parametrize("cause", CONNECTION_INPUTS)
def test_an_input_of_a_connection_has_the_outcome_of_its_table(state: ConnectionState, cause: ConnectionInput) -> None:
    peer = connection_in(state)
    peer.events.clear()
    CONNECTION_INPUTS[cause](peer)
    expected = dict(zip(CONNECTION_INPUTS, CONNECTION_OUTCOMES[state], strict=True))[cause]
    errors = [event.error for event in only(ConnectionClosed, peer.events) if event.error is not None]
    assert len(errors) == (expected == REFUSED)
    assert peer.engine.state is (C.ENDED if expected == REFUSED else expected)


def test_a_header_that_was_on_its_way_when_the_connection_was_closed_is_no_error() -> None:
    peer = connection_in(C.OPEN_PIPED)
    peer.engine.close()
    assert (peer.raw(AMQP_HEADER), peer.engine.state) == ([], C.CLOSE_SENT)


def session_in(state: SessionState) -> tuple[Peer, Session]:
    peer = Peer(is_server=False)
    session = Session(peer.engine, 9)
    if state is not S.UNMAPPED:
        session = peer.engine.begin()
    if state is S.MAPPED:
        answer_begin(peer)
    if state is S.END_SENT:
        session.end()
    assert session.state is state
    return peer, session


def answer_begin(peer: Peer) -> object:
    return peer.send(7, Begin(remote_channel=0, next_outgoing_id=0, incoming_window=9, outgoing_window=9))


SESSION_INPUTS: dict[SessionInput, Callable[[Peer, Session], object]] = {
    SI.SEND_BEGIN: lambda peer, session: session.begin(),
    SI.RECEIVE_BEGIN: lambda peer, session: answer_begin(peer),
    SI.SEND_END: lambda peer, session: session.end(),
    SI.RECEIVE_END: lambda peer, session: peer.send(7, End()),
    SI.LOSE_CONNECTION: lambda peer, session: peer.engine.lost(),
}
SESSION_OUTCOMES: dict[SessionState, tuple[SessionState | type[StateError] | str, ...]] = {
    S.UNMAPPED: (S.BEGIN_SENT, REFUSED, S.UNMAPPED, REFUSED, S.UNMAPPED),
    S.BEGIN_SENT: (StateError, S.MAPPED, S.END_SENT, REFUSED, S.UNMAPPED),
    S.MAPPED: (StateError, REFUSED, S.END_SENT, S.UNMAPPED, S.UNMAPPED),
    S.END_SENT: (StateError, S.END_SENT, S.END_SENT, REFUSED, S.UNMAPPED),
}
"""Of a session that this side begins. An end needs a begin before it, also after this side's end."""


@pytest.mark.parametrize("state", SESSION_OUTCOMES)
@pytest.mark.parametrize("cause", SESSION_INPUTS)
def test_an_input_of_a_session_has_the_outcome_of_its_table(state: SessionState, cause: SessionInput) -> None:
    peer, session = session_in(state)
    expected = dict(zip(SESSION_INPUTS, SESSION_OUTCOMES[state], strict=True))[cause]
    if expected is StateError:
        with pytest.raises(StateError):
            SESSION_INPUTS[cause](peer, session)
        assert session.state is state
        return
    SESSION_INPUTS[cause](peer, session)
    if expected == REFUSED:
        (closed,) = only(ConnectionClosed, peer.events)
        assert closed.error is not None
        assert session.state is S.UNMAPPED
    else:
        assert not only(ConnectionClosed, peer.events)
        assert session.state is expected


def test_the_end_that_answers_an_end_unmaps_the_session() -> None:
    peer, session = session_in(S.MAPPED)
    session.end()
    peer.send(7, End())
    assert session.state is S.UNMAPPED


def test_a_begin_of_the_peer_is_answered_at_once() -> None:
    assert Peer().begin().state is S.MAPPED


def link_in(state: LinkState) -> tuple[Peer, Link]:
    """Return a link that this side attached, unless the state requires that only the peer has."""
    peer = Peer()
    session = peer.begin()
    if state is L.ATTACH_RECEIVED:
        (attached,) = only(LinkAttached, peer.attach_only())
        link: Link = attached.link
    else:
        link = session.receiver("link")
        if state is not L.DETACHED:
            link.attach(attach(link))
    if state in (L.ATTACHED, L.DETACH_SENT, L.DETACH_RECEIVED):
        peer.attach_only()
    link.answers_detach_later = True
    if state is L.DETACH_SENT:
        link.detach()
    if state is L.DETACH_RECEIVED:
        peer.send(0, Detach(handle=0, closed=True))
    assert link.state is state
    return peer, link


LINK_INPUTS: dict[LinkInput, Callable[[Peer, Link], object]] = {
    LI.SEND_ATTACH: lambda peer, link: link.attach(attach(link)),
    LI.RECEIVE_ATTACH: lambda peer, link: peer.attach_only(),
    LI.SEND_DETACH: lambda peer, link: link.detach(),
    LI.RECEIVE_DETACH: lambda peer, link: peer.send(0, Detach(handle=0, closed=True)),
    LI.LOSE_SESSION: lambda peer, link: link.session.end(),
}
LINK_OUTCOMES: dict[LinkState, tuple[LinkState | type[StateError] | str, ...]] = {
    L.DETACHED: (L.ATTACH_SENT, L.DETACHED, L.DETACHED, REFUSED, L.DETACHED),
    L.ATTACH_SENT: (StateError, L.ATTACHED, L.DETACH_SENT, REFUSED, L.DETACHED),
    L.ATTACH_RECEIVED: (L.ATTACHED, REFUSED, L.DETACH_SENT, L.DETACH_RECEIVED, L.DETACHED),
    L.ATTACHED: (StateError, REFUSED, L.DETACH_SENT, L.DETACH_RECEIVED, L.DETACHED),
    L.DETACH_SENT: (StateError, REFUSED, L.DETACH_SENT, L.DETACHED, L.DETACHED),
    L.DETACH_RECEIVED: (L.DETACH_RECEIVED, REFUSED, L.DETACHED, REFUSED, L.DETACHED),
}
"""REFUSED: the session is ended with an error. An attach of the peer that answers none of ours makes another link."""


@pytest.mark.parametrize("state", LINK_OUTCOMES)
@pytest.mark.parametrize("cause", LINK_INPUTS)
def test_an_input_of_a_link_has_the_outcome_of_its_table(state: LinkState, cause: LinkInput) -> None:
    peer, link = link_in(state)
    expected = dict(zip(LINK_INPUTS, LINK_OUTCOMES[state], strict=True))[cause]
    if expected is StateError:
        with pytest.raises(StateError):
            LINK_INPUTS[cause](peer, link)
        assert link.state is state
        return
    LINK_INPUTS[cause](peer, link)
    if expected == REFUSED:
        (ended,) = only(SessionEnded, peer.events)
        assert ended.error is not None
        assert link.state is L.DETACHED
    else:
        assert not only(SessionEnded, peer.events)
        assert link.state is expected
    assert peer.engine.opened
    assert not only(ConnectionClosed, peer.events)


def test_an_attach_that_answers_one_of_a_link_detached_meanwhile_is_no_error() -> None:
    peer, link = link_in(L.ATTACH_SENT)
    link.detach()
    assert peer.attach_only() == []
    assert link.state is L.DETACH_SENT
