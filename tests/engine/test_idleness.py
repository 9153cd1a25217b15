"""The idle time-outs of both sides; time is an argument."""

from __future__ import annotations

import pytest

from engine.pair import Pair, Peer, only
from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, HEARTBEAT
from peeklock.amqp.performatives import Close, Open
from peeklock.engine.connection import Connection
from peeklock.engine.events import ConnectionClosed
from peeklock.engine.opening import Settings


def idle(milliseconds: int | None) -> Settings:
    return Settings(container_id="engine", idle_time_out_ms=milliseconds)


def opened(engine_idle: int | None, peer_idle: int | None) -> Peer:
    peer = Peer(settings=idle(engine_idle), open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", idle_time_out=peer_idle))
    peer.answers()
    return peer


def test_a_heartbeat_is_sent_before_half_of_the_peers_time_out() -> None:
    peer = opened(None, 8000)
    peer.engine.tick(100.0)
    assert peer.engine.take_output() == []
    peer.engine.tick(101.9)
    assert peer.engine.take_output() == []
    peer.engine.tick(102.0)
    assert peer.engine.take_output() == [HEARTBEAT]


def test_heartbeats_are_sent_while_no_other_frame_is_sent() -> None:
    peer = opened(None, 8000)
    beats = []
    for second in range(20):
        peer.engine.tick(100.0 + second)
        beats += peer.engine.take_output()
    assert 6 <= len(beats) <= 10


def test_any_written_frame_replaces_a_heartbeat() -> None:
    peer = opened(None, 8000)
    peer.engine.tick(100.0)
    peer.begin()
    peer.answers()
    peer.engine.tick(102.0)
    assert peer.engine.take_output() == []
    peer.engine.tick(104.0)
    assert peer.engine.take_output() == [HEARTBEAT]


def test_heartbeats_do_not_pile_up_in_front_of_a_stuck_transport() -> None:
    peer = opened(None, 8000)
    for second in range(20):
        peer.engine.tick(100.0 + second)
    assert peer.engine.take_output() == [HEARTBEAT]


def test_a_peer_that_sets_no_time_out_gets_no_heartbeats() -> None:
    peer = opened(None, None)
    peer.engine.tick(0.0)
    peer.engine.tick(10_000.0)
    assert peer.engine.take_output() == []
    assert peer.engine.opened


def test_a_peer_silent_for_twice_our_time_out_is_closed() -> None:
    peer = opened(1000, None)
    peer.engine.tick(50.0)
    assert peer.engine.tick(52.0) == []
    (closed,) = only(ConnectionClosed, peer.engine.tick(52.1))
    assert closed.error is not None
    assert closed.error.condition == Condition.RESOURCE_LIMIT_EXCEEDED
    assert isinstance(peer.answers()[-1], Close)
    assert peer.engine.ended
    assert peer.engine.tick(99.0) == []


def test_a_heartbeat_from_the_peer_keeps_it_alive() -> None:
    peer = opened(1000, None)
    for second in range(50, 60):
        assert peer.engine.tick(float(second)) == []
        peer.raw(HEARTBEAT)


def test_a_peer_that_never_sends_a_header_is_silent_too() -> None:
    engine = Connection(idle(1000), is_server=True)
    engine.tick(0.0)
    assert only(ConnectionClosed, engine.tick(3.0))
    assert engine.ended


@pytest.mark.parametrize("milliseconds", [1, 99])
def test_a_time_out_that_is_too_short_is_refused(milliseconds: int) -> None:
    peer = opened_with_idle(milliseconds)
    (closed,) = only(ConnectionClosed, peer.events)
    assert closed.error is not None
    assert closed.error.condition == Condition.NOT_ALLOWED
    assert f"{milliseconds} ms" in closed.error.description


@pytest.mark.parametrize("milliseconds", [0, 100, 4_294_967_295])
def test_other_time_outs_are_kept(milliseconds: int) -> None:
    assert opened_with_idle(milliseconds).engine.opened


def opened_with_idle(milliseconds: int) -> Peer:
    peer = Peer(open_it=False)
    peer.raw(AMQP_HEADER)
    peer.send(0, Open(container_id="peer", idle_time_out=milliseconds))
    return peer


@pytest.mark.parametrize(
    ("ours", "theirs", "interval"),
    [(None, None, 10.0), (120_000, None, 10.0), (4000, None, 1.0), (None, 8000, 2.0), (4000, 400, 0.1)],
)
def test_the_tick_interval_keeps_both_time_outs(ours: int | None, theirs: int | None, interval: float) -> None:
    assert opened(ours, theirs).engine.tick_interval == pytest.approx(interval)


def test_two_engines_keep_each_other_alive_at_their_tick_interval() -> None:
    pair = Pair.opened(idle(2000), idle(1000))
    now = 0.0
    while now < 30.0:
        now += min(pair.client.tick_interval, pair.server.tick_interval)
        assert pair.client.tick(now) == []
        assert pair.server.tick(now) == []
        pair.pump()
    assert pair.client.opened
    assert pair.server.opened
