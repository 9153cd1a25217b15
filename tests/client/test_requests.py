"""Requests and responses."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

import pytest

from client.engine_server import EngineServer
from peeklock.client import (
    Connection,
    LinkClosed,
    Message,
    Properties,
    Requester,
    SendRejected,
    Timeout,
    connect,
)


@pytest.fixture
def connection(server: EngineServer) -> Iterator[Connection]:
    with connect(server.url, timeout=10) as connected:
        yield connected


@pytest.fixture
def requester(connection: Connection) -> Requester:
    return connection.requester("echo")


def ask(**properties: object) -> Message:
    return Message(application_properties=dict(properties))


def answer(response: Message) -> object:
    assert response.application_properties is not None
    return response.application_properties["n"]


def test_a_request_gets_its_response(requester: Requester) -> None:
    response = requester.request(ask(n=1))
    assert response.application_properties == {"n": 1, "status-code": 200, "status-description": "so be it"}


def test_many_requests_one_after_the_other(requester: Requester) -> None:
    assert [answer(requester.request(ask(n=number))) for number in range(300)] == list(range(300))


def test_a_request_keeps_its_own_message_id_and_properties(requester: Requester) -> None:
    message_id = UUID(int=7)
    properties = Properties(message_id=message_id, subject="s")
    message = Message(properties=properties, application_properties={"n": 1})
    response = requester.request(message)
    assert response.properties is not None
    assert response.properties.correlation_id == message_id
    assert properties == Properties(message_id=message_id, subject="s")


def test_responses_find_their_requests_in_any_order(requester: Requester) -> None:
    first = requester.submit(ask(n=1, pair=True))
    second = requester.submit(ask(n=2, pair=True))
    assert answer(requester.response(first)) == 1
    assert answer(requester.response(second)) == 2


def test_the_same_message_id_twice_at_a_time_is_refused(requester: Requester) -> None:
    message = Message(properties=Properties(message_id="m"), application_properties={"silent": True})
    requester.submit(message)
    with pytest.raises(ValueError, match="in flight"):
        requester.submit(message)


def test_no_response_in_time_is_a_timeout_and_the_next_request_works(requester: Requester) -> None:
    with pytest.raises(Timeout, match="the response to"):
        requester.request(ask(silent=True), timeout=0.05)
    assert answer(requester.request(ask(n=5))) == 5


def test_a_response_without_a_waiting_caller_is_dropped(requester: Requester) -> None:
    requester.forget(requester.submit(ask(n=1)))
    assert answer(requester.request(ask(n=2))) == 2


def test_responses_may_come_from_a_dynamic_node(connection: Connection) -> None:
    with connection.requester("echo", dynamic=True) as requester:
        assert answer(requester.request(ask(n=3))) == 3
    assert requester.closed


def test_a_rejected_request_is_an_error(connection: Connection) -> None:
    requester = connection.requester("q")
    with pytest.raises(SendRejected, match="we do not like it"):
        requester.request(Message(data=[b"reject"]))


def test_an_address_that_is_not_there_leaves_no_links_behind(connection: Connection) -> None:
    with pytest.raises(LinkClosed):
        connection.requester("missing")
    assert answer(connection.requester("echo").request(ask(n=1))) == 1


def test_a_link_that_is_detached_during_a_request_is_reported(connection: Connection) -> None:
    with pytest.raises(LinkClosed, match="it broke"):
        connection.requester("fragile").request(ask(n=1))
