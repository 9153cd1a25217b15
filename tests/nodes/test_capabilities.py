"""The broker's open: capabilities, and containers that may have only one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER
from peeklock.amqp.performatives import Close, Open
from peeklock.entities.authorization import (
    DEFAULT_KEY,
    DEFAULT_KEY_NAME,
    AuthorizationRule,
    Right,
    default_authorization_rule,
)
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.nodes.capabilities import CAPABILITIES, SOLE_CONNECTION
from raw_client import eventually
from sdk.raw_peer import RawPeer
from serving import BrokerThread, StartBroker

OTHER = AuthorizationRule(name="other", primary_key="other-key", rights=frozenset({Right.LISTEN}))

Connect = Callable[..., tuple[RawPeer, Open]]


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(namespace=NamespaceDefinition(authorization_rules=(default_authorization_rule(), OTHER)))


@pytest.fixture
def connect(broker: BrokerThread) -> Iterator[Connect]:
    made: list[RawPeer] = []

    def opened(id: str = "me", *, key: str | None = "", desired: list[str] | None = None) -> tuple[RawPeer, Open]:
        """Open a connection, logged in with a key if one is given (empty: the default). Return it and the answer."""
        peer = RawPeer(broker)
        made.append(peer)
        if key is None:
            peer.login("ANONYMOUS")
        elif key:
            peer.login("PLAIN", f"\0other\0{key}".encode())
        else:
            peer.login("PLAIN", f"\0{DEFAULT_KEY_NAME}\0{DEFAULT_KEY}".encode())
        peer.write(AMQP_HEADER)
        assert peer.read(8) == AMQP_HEADER
        desired = [SOLE_CONNECTION] if desired is None else desired
        peer.send(Open(container_id=id, desired_capabilities=desired or None))
        return peer, peer.expect(Open)

    yield opened
    for peer in made:
        peer.socket.close()


def test_every_open_offers_the_capabilities_that_jms_requires(connect: Connect) -> None:
    for key in ("", None):
        _, answer = connect(key=key, desired=[])
        assert answer.offered_capabilities == list(CAPABILITIES)
    assert {*CAPABILITIES} == {"ANONYMOUS-RELAY", "DELAYED_DELIVERY", "SHARED-SUBS", "peeklock:claims"}


def test_a_second_connection_of_a_sole_container_is_refused(connect: Connect) -> None:
    _, first = connect()
    assert first.offered_capabilities == [*CAPABILITIES, SOLE_CONNECTION]
    second, answer = connect()
    assert (answer.properties or {})["amqp:connection-establishment-failed"] is True
    error = second.expect(Close).error
    assert error is not None
    assert error.condition == Condition.INVALID_FIELD
    assert error.info == {"invalid-field": "container-id"}


def test_a_container_id_is_free_after_its_connection_closed(broker: BrokerThread, connect: Connect) -> None:
    first, _ = connect()
    first.socket.close()
    eventually(lambda: not broker.call(lambda: broker.broker.namespace.sole_containers))
    _, answer = connect()
    assert "amqp:connection-establishment-failed" not in (answer.properties or {})


def test_a_refused_connection_does_not_affect_the_first(broker: BrokerThread, connect: Connect) -> None:
    connect()
    for _ in range(2):
        second, answer = connect()
        assert (answer.properties or {})["amqp:connection-establishment-failed"] is True
        second.socket.close()
        eventually(lambda: broker.call(lambda: len(broker.broker.shells)) == 1)


@pytest.mark.parametrize(
    "other",
    [{"desired": []}, {"key": "other-key"}, {"key": None}, {"id": "you"}],
    ids=["not asked for", "another key", "no key", "another id"],
)
def test_connections_of_different_clients_are_not_refused(connect: Connect, other: dict[str, object]) -> None:
    connect()
    _, answer = connect(**other)
    assert "amqp:connection-establishment-failed" not in (answer.properties or {})


def test_a_connection_that_has_not_logged_in_is_not_offered_to_be_the_only_one(connect: Connect) -> None:
    _, answer = connect(key=None)
    assert answer.offered_capabilities == list(CAPABILITIES)
