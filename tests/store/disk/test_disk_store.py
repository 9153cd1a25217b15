"""The store on disk beyond the common contract: crashes, full disks, foreign files, versions."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from store_children import GROUP, KEPT, shared, start
from store_harness import Driver, body, entity, finish_purging, message
from store_harness import query as query_file

from peeklock.store.base import Changes, Counters, StoreError, StoreFull, StoreLocked
from peeklock.store.disk import folder as folder_module
from peeklock.store.disk.commits.batch import Batch
from peeklock.store.disk.commits.entry import Entry
from peeklock.store.disk.commits.record import to_bytes
from peeklock.store.disk.index import connections as sqlite_file
from peeklock.store.disk.index import queries as sqlite_queries
from peeklock.store.disk.index import runs as sqlite_runs
from peeklock.store.disk.index import schema as sqlite_schema
from peeklock.store.disk.index import writer as sqlite_writer
from peeklock.store.disk.index.pages import write_sums
from peeklock.store.disk.store import DiskStore


def open_store(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder, call))


def query(folder: Path, statement: str) -> list[tuple[object, ...]]:
    return query_file(folder / "peeklock.db", statement)


def test_a_killed_process_loses_no_acknowledged_commit_and_leaves_no_partial_one(tmp_path: Path) -> None:
    randomness = random.Random()
    reported = 0
    for _ in range(8):
        child = start(f"commit_until_killed({str(tmp_path)!r})")
        assert child.stdout
        for _ in range(randomness.randint(1, 60)):
            reported = int(child.stdout.readline())
        child.kill()
        reported = max([reported, *map(int, child.stdout.read().split())])
        child.communicate()
        driver = open_store(tmp_path)
        groups = driver.numbers(2, limit=1_000_000)
        assert groups == list(range(1, len(groups) + 1))
        assert len(groups) >= reported
        wanted = [n for n in range(1, len(groups) * GROUP + 1) if n % GROUP != 1]
        assert driver.numbers(1, limit=1_000_000) == wanted
        assert driver.entities[0].counters == Counters(len(groups) * GROUP, len(wanted), 0, 0, len(wanted) * 500)
        driver.store.close()


def test_a_killed_process_leaves_no_body_too_few_and_none_too_many(tmp_path: Path) -> None:
    randomness = random.Random()
    for _ in range(6):
        child = start(f"share_until_killed({str(tmp_path)!r})")
        assert child.stdout
        for _ in range(randomness.randint(1, 60)):
            reported = int(child.stdout.readline())
        child.kill()
        reported = max([reported, *map(int, child.stdout.read().split())])
        child.communicate()
        driver = open_store(tmp_path)
        last = driver.entities[2].counters.last_sequence_number
        assert last >= reported
        for id in 1, 2:
            numbers = range(max(1, last + 1 - KEPT[id]), last + 1)
            assert [each.content for each in driver.read(id)] == [shared(number).content for number in numbers]
            assert driver.entities[id - 1].counters.size_in_bytes == sum(shared(number).size for number in numbers)
        assert [at for _, at in driver.seen(3)] == list(range(max(1, last + 1 - KEPT[3]), last + 1))
        assert driver.bodies == min(last, max(KEPT[1], KEPT[2]))
        driver.store.close()


def test_a_folder_that_another_process_uses_is_refused_until_that_process_ends(tmp_path: Path) -> None:
    child = start(f"hold({str(tmp_path)!r})")
    assert child.stdout
    assert child.stdout.readline() == "open\n"
    with pytest.raises(StoreLocked, match=str(child.pid)) as held:
        open_store(tmp_path)
    assert str(tmp_path) in str(held.value)
    child.kill()
    child.communicate()
    open_store(tmp_path).store.close()


def test_a_folder_held_in_this_process_is_refused_until_it_is_closed(sqlite: Driver, tmp_path: Path) -> None:
    with pytest.raises(StoreLocked):
        open_store(tmp_path / "data")
    sqlite.store.close()
    open_store(tmp_path / "data").store.close()


def test_commits_fail_while_the_disk_is_full_and_succeed_afterwards(tmp_path: Path) -> None:
    child = start(f"run_out_of_room({str(tmp_path)!r})")
    child.communicate(timeout=60)
    assert child.returncode == 0


def test_a_full_disk_fails_the_commit_and_not_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is given no room for another segment."""

    def refuse(descriptor: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    driver = open_store(tmp_path)
    driver.create(1)
    driver.append(1, message(1), message(2))
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", refuse)
        for _ in range(3):
            error = driver.try_commit(Changes(appends=[(1, message(3, bytes(1_000_000)))], removals=[(1, message(2))]))
            assert isinstance(error, StoreFull)
            assert "free space" in str(error)
        assert driver.numbers(1) == [1, 2]
        driver.commit(Changes(removals=[(1, message(1))]))
        assert driver.numbers(1) == [2]
    driver.append(1, message(4, bytes(1_000_000)))
    for _ in range(2):
        assert driver.numbers(1) == [2, 4]
        assert driver.reopen()[0].counters == Counters(4, 2, 0, 0, 1_000_009)
    driver.store.close()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_while_the_index_cannot_grow_appends_are_refused_and_settlements_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """SQLite's own word for a full disk, by its own limit on pages."""
    connections: list[sqlite3.Connection] = []
    page_limits = [2**30]

    def connect(file: Path) -> sqlite3.Connection:
        connections.append(sqlite_file.connect_writer(file))
        connections[-1].execute(f"PRAGMA max_page_count = {page_limits[-1]}")
        return connections[-1]

    monkeypatch.setattr("peeklock.store.disk.store.connect_writer", connect)
    monkeypatch.setattr("peeklock.store.disk.index.database.connect_writer", connect)
    driver = open_store(tmp_path)
    driver.create(1)
    driver.append(1, message(1), message(2))
    assert driver.numbers(1) == [1, 2]
    page_limits.append(1)  # which SQLite takes for as many as there are
    connections[-1].execute("PRAGMA max_page_count = 1")
    driver.append(1, message(3, annex=bytes(100_000)))
    with pytest.raises(StoreFull, match="free space"):
        driver.numbers(1)
    for _ in range(3):
        assert isinstance(driver.try_commit(Changes(appends=[(1, message(4))])), StoreFull)
        assert isinstance(driver.try_commit(Changes(rewrites=[(1, message(2, bytes(9)), 0, 9)])), StoreFull)
    driver.commit(Changes(removals=[(1, message(1))]))
    driver.commit(Changes(updates=[(1, message(2, delivery_count=1), 0)]))
    page_limits.append(2**30)
    if is_restarted:
        driver.reopen()
    for _ in range(2):
        found = driver.read(1)
        assert [(each.sequence_number, each.delivery_count, each.content) for each in found] == [
            (2, 1, b"payload 2"),
            (3, 0, b"payload 3"),
        ]
        assert found[1].annex == bytes(100_000)
        assert driver.reopen()[0].counters == Counters(3, 2, 0, 0, 18)
    driver.append(1, message(4))
    assert driver.numbers(1) == [2, 3, 4]
    driver.store.close()


def test_long_waiting_changes_fit_into_a_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(file: Path) -> sqlite3.Connection:
        connection = sqlite_file.connect_writer(file)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 20_000_000)
        return connection

    monkeypatch.setattr("peeklock.store.disk.store.connect_writer", connect)
    monkeypatch.setattr("peeklock.store.disk.index.database.connect_writer", connect)
    driver = open_store(tmp_path)
    driver.create(1)
    answers: list[StoreError | None] = []
    for number in range(60):
        state = bytes([number]) * 1_000_000
        driver.store.commit(Changes(session_states=[(1, f"s{number}", state, 5)]), answers.append)
    driver.wait(answers, 60)
    assert answers == [None] * 60
    assert [driver.state(1, f"s{number}") for number in (0, 30, 59)] == [bytes([n]) * 1_000_000 for n in (0, 30, 59)]
    driver.store.close()


def test_a_path_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file/data cannot be created: Not a directory\.$"):
        open_store(tmp_path / "file" / "data")
    with pytest.raises(StoreError, match=r"file is not a folder\.$"):
        open_store(tmp_path / "file")


def test_a_folder_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StoreError, match=r"Is a directory\.$"):
        open_store(tmp_path)


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at " * 100, b"short"])
def test_a_file_that_is_not_a_database_is_refused_and_unchanged(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "peeklock.db"
    file.write_bytes(content)
    with pytest.raises(StoreError, match="is not a database"):
        open_store(tmp_path)
    assert file.read_bytes() == content


def test_a_database_of_another_application_is_refused(tmp_path: Path) -> None:
    query(tmp_path, "CREATE TABLE theirs (x)")
    with pytest.raises(StoreError, match="another application"):
        open_store(tmp_path)
    assert query(tmp_path, "SELECT name FROM sqlite_schema") == [("theirs",)]
    assert query(tmp_path, "PRAGMA journal_mode") == [("delete",)]


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "peeklock.db").touch()
    driver = open_store(tmp_path)
    driver.create(1)
    driver.store.close()


@pytest.mark.parametrize("version", [0, 4, 99])
def test_another_version_of_the_disk_format_is_refused(tmp_path: Path, version: int) -> None:
    open_store(tmp_path).store.close()
    query(tmp_path, f"PRAGMA user_version = {version}")
    write_sums(tmp_path / "peeklock.db")
    with pytest.raises(StoreError, match=rf"another version .* its format is version {version}, .* version 1\.$"):
        open_store(tmp_path)


def test_the_file_has_an_application_id_and_closing_leaves_no_wal(sqlite: Driver, tmp_path: Path) -> None:
    sqlite.create(1)
    sqlite.store.close()
    assert query(tmp_path / "data", "PRAGMA application_id") == [(sqlite_schema.APPLICATION_ID,)]
    assert query(tmp_path / "data", "PRAGMA journal_mode") == [("wal",)]
    left = {"lock", "log-0000000001", "peeklock.db", "peeklock.sums", "reserve", "synced"}
    assert {file.name for file in (tmp_path / "data").iterdir()} == left


def test_callbacks_run_on_close_if_the_event_loop_is_closed(tmp_path: Path) -> None:
    def closed(callback: Callable[[], None]) -> None:
        raise RuntimeError("Event loop is closed")

    store = DiskStore(tmp_path, closed)
    store.open()
    answers: list[StoreError | None] = []
    store.commit(Changes(entities={1: entity(1)}), answers.append)
    store.commit(Changes(appends=[(1, message(1))]), answers.append)
    store.close()
    assert answers == [None, None]


def test_a_callback_runs_once_though_both_the_loop_and_close_could_run_it(tmp_path: Path) -> None:
    calls: list[Callable[[], None]] = []
    store = DiskStore(tmp_path, calls.append)
    store.open()
    answers: list[StoreError | None] = []
    store.commit(Changes(entities={1: entity(1)}), answers.append)
    store.close()
    for call in calls:
        call()
    assert answers == [None]


def test_callbacks_run_on_the_thread_that_drives_the_loop(sqlite: Driver) -> None:
    threads: list[threading.Thread] = []
    sqlite.store.commit(Changes(entities={1: entity(1)}), lambda _: threads.append(threading.current_thread()))
    sqlite.wait(threads)
    assert threads == [threading.current_thread()]


def test_an_entity_number_out_of_range_is_refused_by_name(sqlite: Driver) -> None:
    sqlite.create(2**19 - 1)
    sqlite.append(2**19 - 1, message(2**44 - 1))
    assert sqlite.numbers(2**19 - 1) == sqlite.numbered(2**19 - 1, 2**44 - 1) == [2**44 - 1]
    for id in 0, 2**19:
        assert str(id) in str(sqlite.try_commit(Changes(entities={id: entity(id)})))


def test_a_session_id_that_is_not_text_is_refused(sqlite: Driver) -> None:
    sqlite.create(1)
    assert sqlite.try_commit(Changes(appends=[(1, message(1, session_id="\ud800"))])) is not None
    assert sqlite.try_commit(Changes(session_states=[(1, "\ud800", b"state", 5)])) is not None
    assert sqlite.numbers(1) == []
    assert sqlite.sessions(1) == []


def test_a_time_that_no_column_holds_is_refused(sqlite: Driver) -> None:
    sqlite.create(1)
    assert sqlite.try_commit(Changes(appends=[(1, message(1, expires_at=2**80))])) is not None
    sqlite.append(1, message(1, expires_at=2**63 - 1))
    assert sqlite.expired(1, 5) == ([], 2**63 - 1)


def test_data_of_a_dropped_entity_is_finally_deleted(tmp_path: Path) -> None:
    driver = open_store(tmp_path)
    driver.create(1, 2**19 - 1)
    for id in 1, 2**19 - 1:
        driver.append(id, *(message(number, b"", session_id="s") for number in range(1, 4000)))
        driver.commit(Changes(session_states=[(id, f"s{number}", b"", 5) for number in range(1, 3000)]))
        driver.commit(Changes(seen=[(id, bytes(16), at) for at in range(3000)]))
    driver.commit(Changes(entities={2: entity(2)}, dropped_entities=[2**19 - 1]))
    driver.store.close()  # perhaps before all are deleted: the next start goes on
    finish_purging(tmp_path / "peeklock.db")
    assert query(tmp_path, "SELECT count(*) FROM dropped_entity") == [(0,)]
    assert query(tmp_path, "SELECT count(*) FROM message") == [(3999,)]
    assert query(tmp_path, "SELECT entity, count(*) FROM session GROUP BY entity") == [(1, 2999)]
    assert query(tmp_path, "SELECT key >> 44, count(*) FROM history GROUP BY 1") == [(1, 3000)]


def test_a_body_that_a_message_lacks_is_named_and_other_messages_are_read(sqlite: Driver, tmp_path: Path) -> None:
    sqlite.create(1)
    sqlite.append(1, message(1), message(2, body=body(77)), message(3))
    assert sqlite.numbers(1) == [1, 2, 3]  # so that the index has it
    sqlite.reopen()  # so that no one has the body in memory
    with closing(sqlite3.connect(tmp_path / "data" / "peeklock.db", isolation_level=None)) as connection:
        connection.execute("DELETE FROM body")
    with pytest.raises(StoreError, match=r"is damaged: .* body 77\.$"):
        sqlite.read(1)
    assert sqlite.numbers(1, through=1) == [1]
    assert sqlite.numbers(1, after=2) == [3]


def test_a_record_has_a_shared_body_once() -> None:
    data = bytes(1_000_000)
    changes = Changes(appends=[(id, message(1, b"front", body=body(1, data))) for id in range(1, 501)])
    entry, payloads = Entry.of(Batch(changes), 1, 0)
    again, _ = Entry.of(Batch(Changes(appends=[(501, message(1, b"front", body=body(1, data)))])), 1, 2_000_000)
    assert 1_000_000 < sum(map(len, payloads)) < 1_010_000
    assert len(to_bytes(entry)) < 100_000
    joined = Entry.join([entry, again])
    assert joined.bodies == entry.bodies
    assert len(joined.copies) == 501


def test_every_index_is_partial_so_that_a_plain_message_is_in_none(sqlite: Driver, tmp_path: Path) -> None:
    indexes = query(tmp_path / "data", "SELECT name, partial FROM pragma_index_list('message')")
    assert sorted(indexes) == [
        ("message_body", 1),
        ("message_due", 1),
        ("message_expiry", 1),
        ("message_session", 1),
        ("message_state", 1),
    ]


SCANS = tuple(f"SCAN {table}" for table in ("message", "session", "body", "history", "claim", "old"))

_SESSION = "INDEX message_session (<expr>=? AND session_id=? AND key>? AND key<?)"


@pytest.mark.parametrize(
    ("statement", "how"),
    [
        (sqlite_queries.BY_NUMBER, "message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (sqlite_queries.IN_LARGE_STATE, "message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (sqlite_queries.BY_KEYS, "message USING INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_queries.IN_SMALL_STATE, "INDEX message_state (state=? AND rowid>? AND rowid<?)"),
        (sqlite_queries.BY_SESSION, _SESSION),
        (sqlite_queries.BY_SESSION_AND_STATE, _SESSION),
        (sqlite_queries.RUNS_IN_LARGE_STATE.together, "message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (sqlite_queries.RUNS_IN_LARGE_STATE.each, "message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        (sqlite_queries.RUNS_IN_SMALL_STATE.together, "INDEX message_state (state=? AND rowid>? AND rowid<?)"),
        (sqlite_queries.RUNS_IN_SMALL_STATE.each, "INDEX message_state (state=? AND rowid>? AND rowid<?)"),
        (sqlite_queries.RUNS_OF_SESSION.together, _SESSION),
        (sqlite_queries.RUNS_OF_SESSION.each, _SESSION),
        (sqlite_queries.EXPIRED.past, "INDEX message_expiry (<expr>=? AND expires_at>? AND expires_at<?)"),
        (sqlite_queries.EXPIRED.following, "INDEX message_expiry (<expr>=?"),
        (sqlite_queries.DUE.past, "INDEX message_due (<expr>=? AND due_at>? AND due_at<?)"),
        (sqlite_queries.DUE.following, "INDEX message_due (<expr>=?"),
        (sqlite_queries.SESSION_COUNTS, "COVERING INDEX message_session (<expr>=?"),
        (sqlite_queries.SESSION_STATE_SIZES, "INDEX sqlite_autoindex_session_1 (entity=?)"),
        (sqlite_queries.SESSION_STATE, "INDEX sqlite_autoindex_session_1 (entity=? AND session_id=?)"),
        (sqlite_queries.SESSIONS, "COVERING INDEX message_session (<expr>=?"),
        (sqlite_queries.SESSIONS, "COVERING INDEX sqlite_autoindex_session_1 (entity=?)"),
        (sqlite_queries.UPDATED_SESSIONS, "INDEX sqlite_autoindex_session_1 (entity=?)"),
        (sqlite_queries.BY_NUMBER, "body USING INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_queries.ANNEXES, "message USING INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_queries.ANY_EXISTS, "message USING INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_queries.BODIES, "body USING INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_queries.SEEN, "history USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
    ],
)
def test_no_read_scans_or_sorts_the_stored_rows(sqlite: Driver, tmp_path: Path, statement: str, how: str) -> None:
    names = ["after", "through", "state", "session_id", "entity", "rows", "offset", "now", "behind", "behind_key"]
    names += ["keys", "skip", "top", "updated_after", "since", "default_state", "common_annex"]
    with closing(sqlite3.connect(tmp_path / "data" / "peeklock.db")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {statement}", dict.fromkeys(names, 1)).fetchall()
    steps = [step for *_, step in plan]
    assert any(how in step for step in steps), steps
    scans = [step for step in steps if step.startswith(SCANS)]
    # What was chosen is gone through once more, under the name of the table that it was chosen from.
    assert scans == ["SCAN message"] * steps.count("CO-ROUTINE message")
    # Counts are sorted, one row a session, by the first of its messages.
    assert statement == sqlite_queries.SESSION_COUNTS or not [step for step in steps if "TEMP B-TREE" in step]


@pytest.mark.parametrize(
    ("section", "how"),
    [
        ("session_states", "INDEX sqlite_autoindex_session_1 (entity=? AND session_id=?)"),
        ("freed", "body USING INTEGER PRIMARY KEY (rowid=?)"),
        ("freed", "message USING COVERING INDEX message_body (body=?)"),
        ("forgotten", "old USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("runs", "run_message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
        ("updates", "message USING INTEGER PRIMARY KEY (rowid=?)"),
        ("rewrites", "USING ROWID SEARCH ON TABLE message FOR IN-OPERATOR"),
        ("moves", "message USING INTEGER PRIMARY KEY (rowid=?)"),
        ("body_moves", "body USING INTEGER PRIMARY KEY (rowid=?)"),
        ("run_updates", "message USING COVERING INDEX message_state (state=? AND rowid>? AND rowid<?)"),
        ("run_removals", "message USING INDEX message_state (state=? AND rowid>? AND rowid<?)"),
        ("damaged", "message USING INTEGER PRIMARY KEY (rowid=?)"),
        ("claims", "INDEX sqlite_autoindex_claim_1 (entity=? AND id=?)"),
    ],
)
def test_a_commit_looks_up_the_rows_that_it_changes_or_deletes(section: str, how: str) -> None:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        sqlite_schema.create(connection)
        for statement in sqlite_runs.TRIGGERS:
            connection.execute(statement)
        steps: list[str] = []
        for statement in sqlite_writer._STEPS[section].split(";")[:-1]:
            parameters = {"bytes": b"", section: "[]"}
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.replace('NEW.', ':')}", parameters)
            steps += [step for *_, step in plan]
    assert any(how in step for step in steps), steps
    assert not [step for step in steps if step.startswith(SCANS)]


@pytest.mark.parametrize(
    ("trigger", "hows"),
    [
        ("apply_run_update", ["message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"]),
        (
            "apply_run_removal",
            [
                "message USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)",
                "body USING INTEGER PRIMARY KEY (rowid=?)",
                "message USING INDEX message_body (body=?)",
            ],
        ),
    ],
)
def test_a_run_is_a_range_of_keys(trigger: str, hows: list[str]) -> None:
    (text,) = [each for each in sqlite_runs.TRIGGERS if f"TRIGGER {trigger} " in each]
    begin, end = text.index("BEGIN"), text.rindex("END")
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        sqlite_schema.create(connection)
        steps: list[str] = []
        for statement in text[begin + len("BEGIN") : end].split(";")[:-1]:
            parameters = dict.fromkeys(("first_key", "last_key", "before", "after"), 1)
            plan = connection.execute(f"EXPLAIN QUERY PLAN {statement.replace('NEW.', ':')}", parameters)
            steps += [step for *_, step in plan]
    assert [how for how in hows if not any(how in step for step in steps)] == [], steps
    # Whether there is any body: the scan ends with the first.
    scans = [" ".join(step.split()[:2]) for step in steps if step.startswith(SCANS)]
    assert scans == ["SCAN body"] * (trigger == "apply_run_removal")


def test_every_folder_that_was_made_is_synced_into_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    sync = folder_module.sync_folder

    def note(folder: Path) -> None:
        synced.append(folder)
        sync(folder)

    monkeypatch.setattr(folder_module, "sync_folder", note)
    folder_module.make_folder(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path, tmp_path / "a"}
    synced.clear()
    folder_module.make_folder(tmp_path / "a" / "b")
    assert synced == []


def modes(folder: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in folder.iterdir()}


def test_all_files_are_for_their_owner_alone_in_a_folder_that_is_open_to_others_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "notes.txt").touch(0o644)
    before = os.umask(0)
    try:
        driver = open_store(tmp_path)
        driver.create(1)
        driver.commit(Changes(appends=[(1, message(1))]))
        made = modes(tmp_path)
        driver.store.close()
    finally:
        os.umask(before)
    assert made.keys() >= {"lock", "log-0000000001", "peeklock.db", "peeklock.sums", "reserve", "synced", "notes.txt"}
    assert made.pop("notes.txt") == 0o644
    assert set(made.values()) == {0o600}


def test_others_lose_the_rights_that_they_have_to_files_of_a_copied_folder(tmp_path: Path) -> None:
    driver = open_store(tmp_path)
    driver.create(1)
    driver.store.close()
    for file in tmp_path.iterdir():
        file.chmod(0o664)
    (tmp_path / "notes.txt").touch(0o644)
    driver = open_store(tmp_path)
    found = modes(tmp_path)
    driver.store.close()
    assert found.pop("notes.txt") == 0o644
    assert set(found.values()) == {0o600}
