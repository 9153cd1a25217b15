"""Bounds of the requests of clients for claims. The requests of a client end when it detaches."""

from __future__ import annotations

import pytest

from broker.test_claiming_messages import Client, letters
from broker.world import HOUR, FlakyStore, Receiver, World
from peeklock.broker.claims import Claim
from peeklock.broker.errors import QuotaExceeded
from peeklock.limits.broker import MAX_CLAIMS


def test_requests_that_wait_count_as_claims() -> None:
    world = World()
    client = Client(world)
    for _ in range(MAX_CLAIMS):
        client.ask(1, wait_ms=HOUR)
    with pytest.raises(QuotaExceeded, match="1000 claims"):
        client.ask(1, wait_ms=HOUR)
    client.leave()
    Client(world, name="another").ask(1, wait_ms=HOUR)


def test_names_with_an_owner_are_bounded() -> None:
    world = World()
    clients = [Client(world, name=f"{number}") for number in range(MAX_CLAIMS)]
    for client in clients:
        client.ask(1)
    with pytest.raises(QuotaExceeded, match="1000 names"):
        Client(world, name="another").ask(1)
    clients[0].ask(1)
    clients[1].leave()
    Client(world, name="another").ask(1)


def test_a_drain_is_not_answered_during_a_search_for_expired_messages() -> None:
    store = FlakyStore()
    world = World(store=store)
    world.send(*letters(3))
    client = Client(world)
    claim = client.claim()
    assert claim is not None
    store.held_answers = []
    client.release(claim)  # and the queue looks whether some have expired meanwhile
    receiver = Receiver(world, world.queue())
    world.run()
    assert (receiver.bodies, receiver.starvations) == ([], 0)
    store.release_answers()
    world.run()
    assert receiver.bodies == letters(3)
    assert receiver.starvations


def test_a_claim_being_committed_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.broker.claims.MAX_CLAIMS", 2)
    store = FlakyStore()
    world = World(store=store)
    world.send(*letters(3))
    client = Client(world)
    store.held = []
    client.ask(1)
    world.run()
    client.ask(1)
    with pytest.raises(QuotaExceeded):
        client.ask(1)
    store.release_commits()
    world.run()
    assert [type(answer) for answer in client.answers] == [Claim, Claim]
