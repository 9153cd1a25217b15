"""Limits on the memory held for clients: each client has a limit, and the clients that hold most are refused first."""

from __future__ import annotations

import random

import pytest

from peeklock.broker.accounts import SHARE_DIVISOR, STEP, Account, Accounts
from peeklock.broker.errors import QuotaExceeded

MB = 1 << 20


class Bench:
    def __init__(self, *, all: int = 100 * MB, rule: int = 60 * MB, connection: int = 40 * MB) -> None:
        self.accounts = Accounts(all_bytes=all, rule_bytes=rule)
        self._connection = connection
        self.told: list[str] = []

    def connect(self, name: str, rule: str = "root") -> Account:
        account = Account("Locks", self._connection, self.accounts, lambda: self.told.append(name))
        account.join(rule)
        return account


def fill(account: Account, step: int = MB, most: int = 1000) -> int:
    """Take memory until it is refused, and return how much was taken."""
    taken = 0
    while taken < most * MB:
        try:
            account.check()
        except QuotaExceeded:
            break
        account.take(step)
        taken += step
    return taken


def test_a_connection_holds_up_to_its_limit() -> None:
    bench = Bench()
    account = bench.connect("a")
    assert fill(account) == 40 * MB
    with pytest.raises(QuotaExceeded, match="Locks hold 41943040 bytes of this connection"):
        account.check()
    account.release(MB)
    assert bench.told == ["a"]
    account.check()


def test_one_that_is_larger_than_the_limit_finds_room_in_the_end() -> None:
    account = Bench().connect("a")
    account.check()
    account.take(90 * MB)
    assert account.is_full
    account.release(90 * MB)
    assert not account.is_full


def test_many_greedy_connections_of_a_rule_leave_room_for_a_modest_one_and_for_other_rules() -> None:
    bench = Bench()
    greedy = [bench.connect(str(n)) for n in range(8)]
    held = sum(fill(each) for each in greedy)
    assert 60 * MB <= held <= 120 * MB
    modest, other = bench.connect("modest"), bench.connect("other", "listener")
    assert fill(modest, step=10_000) >= 60 * MB // 9 // SHARE_DIVISOR // 2
    assert fill(other) >= 20 * MB
    assert all(each.is_full for each in greedy)


def test_all_together_hold_no_more_than_twice_the_limit() -> None:
    bench = Bench()
    accounts = [bench.connect(str(n), f"rule {n % 10}") for n in range(300)]
    for account in accounts:
        fill(account, step=100_000)
    assert bench.accounts.used <= 200 * MB
    assert fill(bench.connect("one more", "rule 1"), step=1000) > 0


def test_refused_callers_are_notified_when_memory_is_released() -> None:
    bench = Bench()
    first, second = bench.connect("first"), bench.connect("second")
    fill(first)
    fill(second)
    assert second.is_full
    first.release(first.used)
    assert "second" in bench.told
    second.check()


def test_nothing_is_counted_when_nothing_is_held() -> None:
    chance = random.Random(1)
    bench = Bench()
    accounts = [bench.connect(str(n), f"rule {n % 3}") for n in range(20)]
    held: list[tuple[Account, int]] = []
    for _ in range(5000):
        if held and chance.random() < 0.48:
            account, size = held.pop(chance.randrange(len(held)))
            account.release(size)
        else:
            account, size = chance.choice(accounts), chance.choice([300, 1300, 70_000])
            account.take(size)
            held.append((account, size))
        used = sum(each.used for each in accounts)
        assert used <= bench.accounts.used <= 2 * used + len(accounts) * STEP
    for account, size in held:
        account.release(size)
    assert bench.accounts.used == 0
    assert not bench.accounts.full


def test_rules_that_hold_nothing_are_forgotten() -> None:
    bench = Bench()
    keeper = bench.connect("keeper", "kept")
    keeper.take(MB)
    for number in range(3000):
        bench.connect("passing", f"rule {number}")
    assert len(bench.accounts._rules) <= 1001
    assert "kept" in bench.accounts._rules
