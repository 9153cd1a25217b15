"""Each query uses the one index that fits it, whatever the planner knows of the tables."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest
from postgres_harness import query
from store_harness import Driver, body, message

from peeklock.store.base import ACTIVE, CLAIMED, DEFERRED, SCHEDULED, Changes, Range, Run, StoreError, StoreFull
from peeklock.store.postgres import queries
from peeklock.store.postgres.arrays import Integers
from peeklock.store.postgres.engine import Engine, connect
from peeklock.store.postgres.failures import store_error

PARAMETERS: dict[str, Any] = {
    "entity": 1,
    "after": 5,
    "through": 5000,
    "after_key": 1 << 44 | 5,
    "through_key": 1 << 44 | 5000,
    "state": 1,
    "session_id": b"s1",
    "rows": 100,
    "room": 100_000,
    "now": 50,
    "after_time": 1,
    "keys": Integers([1 << 44 | 7, 1 << 44 | 8]),
    "excluded": Integers([7, 8]),
    "top": 10,
    "skip": 0,
    "updated_after": 5,
    "first": 1 << 44,
    "last": (1 << 44) + 5000,
}


def of(**wanted: Any) -> Range:
    return Range(entity=1, through=5000, limit=100, max_bytes=100_000, **wanted)


QUERIES = {
    "active": (queries.by_range(of()), "message_pkey"),
    "any state": (queries.by_range(of(state=None)), "message_pkey"),
    "claimed": (queries.by_range(of(state=CLAIMED)), "message_pkey"),
    "deferred": (queries.by_range(of(state=DEFERRED)), "message_state"),
    "session": (queries.by_range(of(session_id="s1")), "message_session"),
    "session in any state": (queries.by_range(of(session_id="s1", state=None)), "message_session"),
    "numbers": (queries.BY_KEYS, "message_pkey"),
    "runs": (queries.runs(of(state=CLAIMED), has_excluded=False), "message_pkey"),
    "runs without some": (queries.runs(of(state=ACTIVE), has_excluded=True), "message_pkey"),
    "runs of scheduled": (queries.runs(of(state=SCHEDULED), has_excluded=False), "message_state"),
    "runs of a session": (queries.runs(of(session_id="s1"), has_excluded=True), "message_session"),
    "expired": (queries.EXPIRED.past, "message_expiry"),
    "next expiry": (queries.EXPIRED.following, "message_expiry"),
    "due": (queries.DUE.past, "message_due"),
    "next due": (queries.DUE.following, "message_due"),
    "session counts": (queries.SESSION_COUNTS, "message_session"),
    "sessions": (queries.SESSIONS, "message_session"),
    "session state": (queries.SESSION_STATE, "session_pkey"),
    "state sizes": (queries.SESSION_STATE_SIZES, "session_pkey"),
    "updated sessions": (queries.UPDATED_SESSIONS, "session_pkey"),
    "bodies": (queries.BODIES, "body_pkey"),
    "seen": (queries.SEEN, "history_pkey"),
}


def plan(engine: Engine, statement: str) -> str:
    wanted = {name: PARAMETERS[name] for name in re.findall(r"%\((\w+)\)s", statement)}
    with connect(engine, "test") as connection:
        return "\n".join(line for (line,) in connection.execute(f"EXPLAIN {statement}", wanted, prepare=False))


def fill(driver: Driver) -> None:
    for id in 1, 2:
        driver.append(
            id,
            *(
                message(
                    n,
                    state=n % 3,
                    session_id=f"s{n % 50}" if n % 2 else None,
                    expires_at=n if n % 5 == 0 else None,
                    due_at=n,
                    body=body(id * 10_000 + n) if n % 7 == 0 else None,
                )
                for n in range(1, 3001)
            ),
        )
        driver.commit(
            Changes(
                session_states=[(id, f"s{n}", b"state", n) for n in range(100)],
                seen=[(id, bytes(16), n) for n in range(1000)],
            )
        )


def test_every_query_uses_its_index(postgres: Driver, engine: Engine) -> None:
    postgres.create(1, 2)
    for state in ("empty", "filled", "analyzed"):
        if state == "filled":
            fill(postgres)
        elif state == "analyzed":
            query(engine, "ANALYZE")
        for name, (statement, index) in QUERIES.items():
            found = plan(engine, statement)
            assert index in found, f"{name}, {state}:\n{found}"
            assert "Seq Scan" not in found, f"{name}, {state}:\n{found}"
            others = set(re.findall(r"using (message_\w+)", found)) - {index}
            assert not others, f"{name}, {state}:\n{found}"


def test_changes_of_many_rows_do_not_search_the_table(postgres: Driver, engine: Engine) -> None:
    """Counted by what the server did: it reads each table by its indexes only."""
    postgres.create(1, 2)
    fill(postgres)
    scans = "SELECT sum(seq_scan) FROM pg_stat_user_tables WHERE schemaname = %s AND relname IN ('message', 'session')"
    postgres.reopen()
    before = query(engine, scans, engine.schema)
    messages = [message(n, state=n % 3) for n in range(1, 100)]
    postgres.commit(Changes(updates=[(1, each, each.state) for each in messages]))
    postgres.commit(Changes(rewrites=[(1, each, each.state, 9) for each in messages]))
    postgres.commit(Changes(removals=[(1, each) for each in messages[::2]]))
    postgres.commit(Changes(run_updates=[(2, Run(n, n, 9), n % 3, CLAIMED) for n in range(1, 100)]))
    postgres.commit(Changes(run_removals=[(2, Run(n, n, 9), CLAIMED) for n in range(1, 100)]))
    postgres.commit(Changes(session_states=[(1, f"s{n}", None, 5) for n in range(50)]))
    postgres.reopen()
    assert query(engine, scans, engine.schema) == before


def test_a_full_disk_of_the_server_is_told_from_other_errors() -> None:
    assert isinstance(store_error(psycopg.errors.DiskFull("could not extend file")), StoreFull)
    assert type(store_error(psycopg.errors.NumericValueOutOfRange("out of range"))) is StoreError


@pytest.mark.parametrize("at", [2**63, -(2**63) - 1])
def test_a_time_out_of_range_is_refused_alone(postgres: Driver, at: int) -> None:
    postgres.create(1)
    answers: list[StoreError | None] = []
    for number in range(1, 6):
        appends = [(1, message(number, expires_at=at if number == 3 else 5))]
        postgres.store.commit(Changes(appends=appends), answers.append)
    postgres.wait(answers, 5)
    assert [error is not None for error in answers] == [False, False, True, False, False]
    assert postgres.numbers(1) == [1, 2, 4, 5]
