"""A primary with a synchronous standby: nothing is acknowledged before the standby has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from threading import Thread

import pytest
from postgres_harness import make_store, new_engine, query, take_over
from postgres_server import SECONDS, Server, make_server, make_standby, wait_until
from psycopg.conninfo import make_conninfo
from store_harness import Driver, message

from peeklock.store.base import Changes, StoreError
from peeklock.store.postgres import checks, lease
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.failures import OutcomeUnknown
from peeklock.store.postgres.store import PostgresStore


class Pair:
    def __init__(self, primary: Server, standby: Server) -> None:
        self.primary = primary
        self.standby = standby

    @property
    def url(self) -> str:
        ports = f"{self.primary.port},{self.standby.port}"
        return make_conninfo(self.primary.url, host="127.0.0.1,127.0.0.1", port=ports, connect_timeout=2)

    def wait_until_synchronous(self) -> None:
        state = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND state = 'streaming'"
        wait_until(lambda: self.primary.query(state), "the standby is synchronous")


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        primary = stack.enter_context(make_server())
        standby = stack.enter_context(make_standby(primary))
        primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.query("SELECT pg_reload_conf()")
        found = Pair(primary, standby)
        found.wait_until_synchronous()
        yield found


@pytest.fixture
def engine(pair: Pair) -> Engine:
    return new_engine(pair.primary, url=pair.url, replication="require")


@pytest.fixture
def driver(engine: Engine) -> Iterator[Driver]:
    driver = Driver(lambda call: make_store(engine, call))
    driver.create(1)
    driver.append(1, message(1))
    yield driver
    driver.store.close()


def store_of(driver: Driver) -> PostgresStore:
    assert isinstance(driver.store, PostgresStore)
    return driver.store


def submit(driver: Driver, *numbers: int) -> list[StoreError | None]:
    answers: list[StoreError | None] = []
    for number in numbers:
        driver.store.commit(Changes(appends=[(1, message(number))]), answers.append)
    return answers


def wait_until_held_back(pair: Pair, count: int = 1) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name ~ '/write'"
    wait_until(lambda: len(pair.primary.query(waiting)) == count, "the commit waits for the standby")


def intervene(pair: Pair, function: str) -> None:
    pair.primary.query(
        f"SELECT {function}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name ~ '/write'"
    )


def visible(pair: Pair, engine: Engine) -> int:
    ((count,),) = pair.primary.query(f"SELECT count(*) FROM {engine.schema}.message")
    return int(str(count))


def test_a_pair_is_accepted_and_its_standby_alone_is_not(pair: Pair, engine: Engine) -> None:
    checks.check_engine(engine)
    with pytest.raises(StoreError, match="cannot be reached"):
        checks.check_engine(Engine(url=pair.standby.url, schema=engine.schema))
    standby = Engine(url=make_conninfo(pair.standby.url, target_session_attrs="any"))
    with connect(standby, "test") as connection, pytest.raises(StoreError, match="is a standby"):
        checks.check_writable(connection)


def test_a_stopped_standby_holds_back_the_answer_and_its_return_releases_it(pair: Pair, driver: Driver) -> None:
    pair.standby.stop()
    answers = submit(driver, 2)
    wait_until_held_back(pair)
    assert answers == []
    pair.standby.start()
    driver.wait(answers)
    assert answers == [None]
    assert driver.numbers(1) == [1, 2]


def test_a_renewal_does_not_wait_for_the_standby(pair: Pair, driver: Driver, engine: Engine) -> None:
    epoch = store_of(driver)._epoch
    pair.standby.stop()
    with connect(engine, "test") as connection:
        assert lease.renew(connection, epoch, "node")
        assert lease.renew(connection, epoch, "node")
        assert lease.read(connection, engine).beat == 3
    pair.standby.start()


def test_a_store_is_not_opened_before_the_standby_has_what_it_reads(pair: Pair, engine: Engine) -> None:
    epoch = take_over(engine)
    pair.standby.stop()
    raised: list[StoreError] = []

    def open_store() -> None:
        try:
            PostgresStore(engine, epoch, lambda call: None).open()
        except StoreError as error:
            raised.append(error)

    thread = Thread(target=open_store)
    thread.start()
    wait_until_held_back(pair)
    assert raised == []
    intervene(pair, "pg_cancel_backend")
    thread.join(SECONDS)
    assert "standby" in str(raised[0])
    pair.standby.start()


def test_a_take_over_whose_wait_for_the_standby_ends_early_is_not_a_success(pair: Pair, engine: Engine) -> None:
    take_over(engine)
    pair.standby.stop()
    raised: list[Exception] = []

    def take() -> None:
        try:
            take_over(engine, "another")
        except OutcomeUnknown as error:
            raised.append(error)

    thread = Thread(target=take)
    thread.start()
    waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: pair.primary.query(waiting), "the take-over waits for the standby")
    thread.join(SECONDS)
    assert len(raised) == 1
    pair.standby.start()
    pair.wait_until_synchronous()
    assert take_over(engine) == 3


@pytest.mark.parametrize("function", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_whose_wait_for_the_standby_ends_early_is_not_acknowledged_before_the_standby_has_it(
    pair: Pair, driver: Driver, engine: Engine, function: str
) -> None:
    """The commit is visible on the primary then, which a read would take for durable."""
    pair.standby.stop()
    answers = submit(driver, 2)
    wait_until_held_back(pair)
    for turn in range(1, 4):
        intervene(pair, function)
        wait_until(lambda turn=turn: visible(pair, engine) == 2, "the commit is visible")
        wait_until(lambda: store_of(driver).figures().outcomes.in_doubt == 1, "the commit is in doubt")
        wait_until_held_back(pair)  # the write that resolves the outcome waits now
        assert answers == []
    pair.standby.start()
    driver.wait(answers)
    assert answers == [None]
    outcomes = store_of(driver).figures().outcomes
    assert (outcomes.done, outcomes.repeated) == (1, 0)
    assert driver.numbers(1) == [1, 2]
    assert driver.reopen()[0].counters.active == 2


def test_a_promoted_standby_has_everything_that_was_acknowledged(pair: Pair, driver: Driver, engine: Engine) -> None:
    answers = submit(driver, *range(2, 500))
    driver.wait(answers, 100)
    pair.primary.kill()
    acknowledged = len(answers)
    pair.standby.promote()
    driver.wait(answers, 498)
    assert set(answers) == {None}
    assert acknowledged >= 100
    assert driver.numbers(1) == list(range(1, 500))
    driver.append(1, message(500))
    assert driver.reopen()[0].counters.active == 500


def test_a_commit_that_never_reached_the_standby_is_repeated_on_it(pair: Pair, driver: Driver, engine: Engine) -> None:
    pair.standby.stop()
    answers = submit(driver, 2)
    wait_until_held_back(pair)
    pair.primary.kill()
    pair.standby.start()
    pair.standby.promote()
    driver.wait(answers)
    assert answers == [None]
    assert store_of(driver).figures().outcomes.repeated == 1
    assert driver.numbers(1) == [1, 2]
    assert query(engine, "SELECT pg_is_in_recovery()") == [(False,)]
