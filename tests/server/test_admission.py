"""Admission: limits in total, per address and in the reserve; and too many failed logins."""

from __future__ import annotations

import pytest

from peeklock.broker.agenda import ManualClock
from peeklock.broker.errors import TooManyFailedLogins
from peeklock.limits.server import Limits
from peeklock.server.admission import TOO_MANY, TOO_MANY_OF_ADDRESS, Admission, Ticket

HERE, THERE, ELSEWHERE = "127.0.0.1", "192.0.2.7", "2001:db8::1"


def admission(**limits: int) -> Admission:
    return Admission(Limits(**{"max_connections": 4, "reserved_connections": 2, **limits}), ManualClock())


def admitted(places: Admission, address: str = HERE) -> Ticket:
    ticket = places.admit(address)
    assert isinstance(ticket, Ticket), ticket
    return ticket


# --- places ---


def test_a_place_is_freed_once_when_its_connection_ends() -> None:
    places = admission(reserved_connections=0)
    tickets = [admitted(places) for _ in range(4)]
    assert places.admit(HERE) == TOO_MANY
    tickets[0].release()
    tickets[0].release()
    assert places.open == 3
    assert not admitted(places).is_reserved
    assert places.admit(HERE) == TOO_MANY


def test_one_address_may_use_half_of_the_connections_except_loopback() -> None:
    places = admission()
    for _ in range(2):
        admitted(places, THERE)
    assert places.admit(THERE) == TOO_MANY_OF_ADDRESS
    admitted(places, ELSEWHERE)
    for _ in range(3):
        admitted(places, HERE)


def test_a_configured_limit_for_addresses_applies_to_loopback_too() -> None:
    places = admission(max_connections_per_address=1)
    ticket = admitted(places, HERE)
    assert places.admit(HERE) == TOO_MANY_OF_ADDRESS
    ticket.release()
    admitted(places, HERE)


def test_beyond_the_limit_connections_are_admitted_to_the_reserve() -> None:
    places = admission()
    assert [admitted(places).is_reserved for _ in range(6)] == [False] * 4 + [True] * 2


def test_in_the_reserve_a_new_connection_replaces_the_oldest_without_a_key() -> None:
    places = admission()
    for _ in range(4):
        admitted(places)
    evicted: list[str] = []
    first, second = admitted(places), admitted(places)
    first.evict = lambda: evicted.append("first")
    second.evict = lambda: evicted.append("second")
    third = admitted(places)
    assert evicted == ["first"]
    assert places.open == 6
    second.mark_key_shown()
    third.evict = lambda: evicted.append("third")
    fourth = admitted(places)
    assert evicted == ["first", "third"]
    fourth.mark_key_shown()
    assert places.admit(HERE) == TOO_MANY
    second.release()
    assert admitted(places).is_reserved


# --- failed logins ---


def test_after_too_many_failed_logins_an_address_waits_for_the_end_of_the_minute() -> None:
    clock = ManualClock(0)
    places = Admission(Limits(max_failed_logins=3), clock)
    guesser, other = admitted(places, THERE), admitted(places, ELSEWHERE)
    for _ in range(3):
        guesser.check_login()
        guesser.login_failed()
    clock.advance(15_500)
    with pytest.raises(TooManyFailedLogins, match=r"3 logins from this address failed .* try again in 45 s"):
        guesser.check_login()
    with pytest.raises(TooManyFailedLogins):
        admitted(places, THERE).check_login()
    other.check_login()
    clock.advance(44_500)
    guesser.check_login()
    guesser.login_failed()
    guesser.check_login()


def test_failures_that_are_further_apart_than_a_minute_do_not_add_up() -> None:
    clock = ManualClock(0)
    ticket = admitted(Admission(Limits(max_failed_logins=2), clock))
    for _ in range(10):
        ticket.login_failed()
        ticket.check_login()
        clock.advance(60_000)


def test_the_limit_of_failed_logins_can_be_disabled() -> None:
    ticket = admitted(Admission(Limits(max_failed_logins=0), ManualClock()))
    for _ in range(1000):
        ticket.login_failed()
    ticket.check_login()


def test_the_number_of_counted_addresses_is_bounded() -> None:
    places = Admission(Limits(max_failed_logins=2), ManualClock(0))
    for number in range(10_050):
        places.failed_logins.add(f"address-{number}")
    with pytest.raises(TooManyFailedLogins):
        places.failed_logins.check("address-of-nobody")  # addresses beyond the bound share a count
    places.failed_logins.check("address-1")
