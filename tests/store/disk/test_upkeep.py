"""Check, repair, backup and restore of a data folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from base64 import b64decode
from contextlib import closing
from pathlib import Path
from signal import SIGKILL

import pytest
import store_children
from store_harness import Driver, body, entity, message

from peeklock.store.base import Changes, StoreError, StoreLocked
from peeklock.store.disk.log.segments import Segments
from peeklock.store.disk.pin import Pin
from peeklock.store.disk.store import DiskStore
from peeklock.store.disk.upkeep.backup import back_up, restore
from peeklock.store.disk.upkeep.check import check
from peeklock.store.disk.upkeep.findings import Kind
from peeklock.store.disk.upkeep.info import describe
from peeklock.store.disk.upkeep.repair import repair


def open_store(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder, call))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a closed store: nine messages in three entities, two of them with a shared body."""
    folder = tmp_path / "data"
    driver = open_store(folder)
    driver.create(1, 2, 3)
    driver.append(1, *(message(number, b"payload number %d" % number) for number in range(1, 8)))
    shared = body(5, b"a body that is shared" * 20)
    driver.commit(Changes(appends=[(2, message(1, body=shared)), (3, message(1, body=shared))]))
    driver.set_state(1, "session", b"state")
    driver.store.close()
    return folder


def hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of all files, except the ones that every access changes."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.iterdir()
        if file.name not in ("lock", "pin") and not file.name.endswith("-shm") and file.stat().st_size
    }


def flip(folder: Path, content: bytes, name: str = "log-*") -> None:
    for file in folder.glob(name):
        data = bytearray(file.read_bytes())
        if (at := data.find(content)) >= 0:
            data[at] ^= 1
            file.write_bytes(data)
            return
    raise AssertionError(f"{content!r} is nowhere")


def unapplied(folder: Path) -> list[bytes]:
    """Commit two more messages that are not in the index. Return their payloads."""
    files = {file: file.read_bytes() for file in folder.glob("peeklock.*")}
    driver = open_store(folder)
    driver.append(1, message(8, b"eighth"))
    driver.append(1, message(9, b"ninth"))
    driver.store.close()
    for file in folder.glob("peeklock.*"):
        file.unlink()
    for file, content in files.items():
        file.write_bytes(content)
    return [b"eighth", b"ninth"]


def break_head(folder: Path, payload: bytes) -> None:
    """Damage the head of the record with this payload."""
    (file,) = folder.glob("log-*")
    data = bytearray(file.read_bytes())
    salt = Segments(folder).header(1).salt.to_bytes(4, "little")
    data[data.rindex(salt, 0, data.index(payload)) + 9] ^= 1
    file.write_bytes(data)


def test_checking_an_undamaged_folder_reports_nothing_and_changes_nothing(data: Path) -> None:
    before = hashes(data)
    checked = check(data)
    assert checked.is_sound, checked.findings
    assert (checked.messages, checked.segments, checked.torn_bytes) == (9, 1, 0)
    assert checked.records == 4
    assert hashes(data) == before


def test_the_check_covers_records_missing_in_the_index(data: Path) -> None:
    unapplied(data)
    before = hashes(data)
    assert check(data).is_sound
    assert hashes(data) == before


def test_a_folder_as_a_kill_leaves_it_is_sound_and_stays_as_it_is(data: Path, tmp_path: Path) -> None:
    driver = open_store(data)
    driver.append(1, message(8))
    driver.numbers(1)  # the index has it, in SQLite's log
    driver.append(1, message(9))
    killed = tmp_path / "killed"
    shutil.copytree(data, killed)
    driver.store.close()
    assert (killed / "peeklock.db-wal").stat().st_size
    before = hashes(killed)
    checked = check(killed)
    assert checked.is_sound, checked.findings
    assert hashes(killed) == before


def test_a_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a data folder"):
        check(tmp_path)


def test_a_damaged_message_is_found_by_entity_and_number(data: Path) -> None:
    flip(data, b"payload number 3")
    (found,) = check(data).findings
    assert (found.kind, found.entity, found.sequence_number, found.file.name) == (Kind.MESSAGE, 1, 3, "log-0000000001")


def test_a_damaged_body_is_found_with_every_message_that_has_it(data: Path) -> None:
    flip(data, b"a body that is shared")
    assert [(each.entity, each.sequence_number) for each in check(data).findings] == [(2, 1), (3, 1)]


def test_a_damaged_record_a_damaged_page_and_a_missing_segment_are_found(data: Path) -> None:
    break_head(data, b"payload number 1")
    assert Kind.RECORD in {each.kind for each in check(data).findings}
    break_head(data, b"payload number 1")
    database = data / "peeklock.db"
    whole = database.read_bytes()
    database.write_bytes(whole[:20_000] + bytes([whole[20_000] ^ 1]) + whole[20_001:])
    (page,) = check(data).findings
    assert (page.kind, page.offset) == (Kind.PAGE, 16384)
    database.write_bytes(whole)
    (data / "log-0000000001").unlink()
    assert {each.kind for each in check(data).findings} == {Kind.SEGMENT, Kind.MESSAGE}


def test_counters_that_do_not_fit_are_found(data: Path) -> None:
    """Wrong counters, as a defect of the broker would leave them: the checksum of the page matches."""
    from peeklock.store.disk.index import pages

    with closing(sqlite3.connect(data / "peeklock.db")) as connection:
        connection.execute("UPDATE entity SET active = 70 WHERE id = 1")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages.write_sums(data / "peeklock.db")
    assert [each.text for each in check(data).findings] == ["queue-1 counts 70 active messages, but has 7."]


def test_a_repair_removes_damaged_messages_only(data: Path) -> None:
    flip(data, b"payload number 3")
    flip(data, b"a body that is shared")
    before = hashes(data)
    assert [each.sequence_number for each in repair(data, dry_run=True).findings] == [3, 1, 1]
    assert hashes(data) == before
    repaired = repair(data)
    assert [(each.entity, each.sequence_number) for each in repaired.messages] == [(1, 3), (2, 1), (3, 1)]
    assert repaired.file is not None
    rows = [json.loads(line) for line in repaired.file.read_text().splitlines()]
    assert (rows[0]["entity"], rows[0]["sequence_number"]) == ("queue-1", 3)
    assert b64decode(rows[0]["payload"])[1:] == b"ayload number 3"
    assert check(data).is_sound
    assert not repair(data).is_needed
    driver = open_store(data)
    assert driver.numbers(1) == [1, 2, 4, 5, 6, 7]
    assert driver.numbers(2) == driver.numbers(3) == []
    assert driver.entities[0].counters.active == 6
    assert driver.damages == []
    assert driver.state(1, "session") == b"state"
    driver.append(1, message(8))
    driver.store.close()
    assert check(data).is_sound


def test_a_message_that_a_broker_found_damaged_is_removed(data: Path) -> None:
    flip(data, b"payload number 3")
    driver = open_store(data)
    driver.numbers(1)
    driver.store.close()
    assert [each.text for each in check(data).findings] == ["A broker found this message damaged."]
    repair(data)
    assert check(data).is_sound
    assert open_store(data).entities[0].counters.damaged == 0


def test_an_unreadable_commit_is_skipped_and_later_commits_are_kept(data: Path) -> None:
    first, _ = unapplied(data)
    break_head(data, first)
    with pytest.raises(StoreError, match="is damaged: at offset"):
        open_store(data)
    repaired = repair(data)
    (lost,) = repaired.lost
    assert lost.describe().startswith("Commit 5 cannot be read: ")
    assert repaired.file is not None
    (row,) = [json.loads(line) for line in repaired.file.read_text().splitlines()]
    assert [b64decode(each) for each in row["payloads"]] == [first]
    assert check(data).is_sound
    driver = open_store(data)
    assert driver.numbers(1) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert driver.entities[0].counters.active == 8
    assert driver.entities[0].counters.last_sequence_number >= 1_000_000, (
        "numbers of the lost commit are not used again"
    )
    driver.append(1, message(2_000_000))
    assert driver.reopen()[0].counters.active == 9
    driver.store.close()
    assert check(data).is_sound


def test_a_last_commit_that_cannot_be_read_is_given_up(data: Path) -> None:
    _, last = unapplied(data)
    break_head(data, last)
    repair(data)
    assert check(data).is_sound
    driver = open_store(data)
    assert driver.numbers(1) == [1, 2, 3, 4, 5, 6, 7, 8]
    driver.append(1, message(2_000_000))
    assert driver.reopen()[0].counters.active == 9


def test_messages_of_a_missing_segment_are_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    driver = open_store(data)
    driver.create(1)
    for first in (1, 11, 21, 31):
        driver.append(1, *(message(number, bytes([number]) * 200_000) for number in range(first, first + 10)))
    driver.store.close()
    first, *_ = sorted(data.glob("log-*"))
    first.unlink()
    with pytest.raises(StoreError, match=f"{first.name} is missing"):
        open_store(data)
    lost = {each.sequence_number for each in repair(data).messages}
    assert lost
    assert check(data).is_sound
    assert open_store(data).numbers(1) == [number for number in range(1, 41) if number not in lost]


def test_damaged_checksums_of_a_sound_index_are_made_anew_and_a_damaged_index_is_not_guessed_at(data: Path) -> None:
    (data / "peeklock.sums").write_bytes(bytes(9000))
    with pytest.raises(StoreError):
        open_store(data)
    assert repair(data).sums_rewritten
    assert check(data).is_sound
    database = data / "peeklock.db"
    whole = database.read_bytes()
    database.write_bytes(whole[:20_000] + bytes([whole[20_000] ^ 1]) + whole[20_001:])
    before = hashes(data)
    with pytest.raises(StoreError, match="cannot be repaired: 1 of its pages are damaged"):
        repair(data)
    assert hashes(data) == before


@pytest.mark.parametrize("is_running", [True, False])
def test_a_backup_has_all_that_was_acknowledged_and_is_sound(data: Path, tmp_path: Path, is_running: bool) -> None:
    driver = open_store(data)
    driver.append(1, message(8, b"eighth"))
    driver.commit(Changes(removals=[(1, message(1, b"payload number 1"))]))
    if not is_running:
        driver.store.close()
    made = back_up(data, tmp_path / "backup")
    assert made.commit == 6
    assert check(tmp_path / "backup").is_sound
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "backup").iterdir()} == {0o600}
    if is_running:
        driver.append(1, message(9))
        driver.store.close()
    restore(tmp_path / "backup", tmp_path / "restored")
    again = open_store(tmp_path / "restored")
    assert again.numbers(1) == [2, 3, 4, 5, 6, 7, 8]
    assert again.read(2)[0].content.endswith(b"shared")
    again.append(1, message(9))
    assert again.reopen()[0].counters.active == 8
    again.store.close()
    assert check(tmp_path / "restored").is_sound


def test_a_backup_is_complete_or_absent(data: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreError, match="is not an empty folder"):
        back_up(data, tmp_path / "full")
    with pytest.raises(StoreError, match="is not a data folder"):
        back_up(tmp_path / "full", tmp_path / "target")
    unapplied(data)
    os.truncate(data / "log-0000000001", (data / "log-0000000001").read_bytes().index(b"ninth"))
    with pytest.raises(StoreError, match="commit 6 was acknowledged before the backup began"):
        back_up(data, tmp_path / "target")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data", "full"]


def test_a_folder_is_described_while_it_is_used(data: Path) -> None:
    driver = open_store(data)
    found = describe(data)
    assert [(each["path"], each["active"]) for each in found.entities] == [
        ("queue-1", 7),
        ("queue-2", 1),
        ("queue-3", 1),
    ]
    assert (found.version, found.synced_commit, found.applied_commit, found.log_files) == (1, 4, 4, 1)
    driver.store.close()


def test_a_damaged_message_that_the_index_does_not_have_yet_is_found_and_removed(data: Path) -> None:
    first, _ = unapplied(data)
    flip(data, first)
    before = hashes(data)
    (found,) = check(data).findings
    assert (found.kind, found.path, found.sequence_number, found.commit) == (Kind.MESSAGE, "queue-1", 8, 5)
    assert hashes(data) == before
    assert [each.sequence_number for each in repair(data).messages] == [8]
    assert check(data).is_sound
    driver = open_store(data)
    assert driver.numbers(1) == [1, 2, 3, 4, 5, 6, 7, 9]
    assert driver.entities[0].counters.active == 8
    driver.store.close()


def test_a_segment_with_a_record_that_cannot_be_read_is_emptied_and_removed(data: Path) -> None:
    """The record was applied, and all of its messages are intact: none is lost."""
    break_head(data, b"payload number 1")
    assert [each.kind for each in check(data).findings] == [Kind.RECORD]
    repaired = repair(data)
    assert (repaired.messages, repaired.lost, repaired.file) == ([], [], None)
    assert [file.name for file in repaired.removed] == ["log-0000000001"]
    assert [file.name for file in sorted(data.glob("log-*"))] == ["log-0000000002"]
    assert check(data).is_sound
    driver = open_store(data)
    assert [each.payload for each in driver.read(1)] == [b"payload number %d" % number for number in range(1, 8)]
    assert driver.read(2)[0].content == driver.read(3)[0].content == b"payload 1" + b"a body that is shared" * 20
    driver.append(1, message(8))
    driver.store.close()
    assert check(data).is_sound


def test_a_segment_whose_header_is_damaged_is_emptied_and_removed(data: Path) -> None:
    flip(data, b"Peeklock log v1")
    assert Kind.SEGMENT in {each.kind for each in check(data).findings}
    repair(data)
    assert check(data).is_sound
    assert open_store(data).numbers(1) == [1, 2, 3, 4, 5, 6, 7]


def test_messages_of_an_entity_or_with_a_body_that_a_lost_commit_made_are_set_aside(tmp_path: Path) -> None:
    data = tmp_path / "data"
    driver = open_store(data)
    driver.create(1)
    driver.store.close()
    files = {file: file.read_bytes() for file in data.glob("peeklock.*")}
    driver = open_store(data)
    shared = body(5, b"shared")
    driver.commit(Changes(entities={2: entity(2)}, appends=[(1, message(1, b"first copy", body=shared))]))
    driver.append(2, message(1, b"of the entity that is lost"))
    driver.append(1, message(2, b"second"))
    driver.store.close()
    for file, content in files.items():
        file.write_bytes(content)
    break_head(data, b"first copy")
    repaired = repair(data)
    assert [(each.first_commit, each.last_commit) for each in repaired.lost] == [(2, 2)]
    assert [(each.entity, each.sequence_number) for each in repaired.messages] == [(2, 1)]
    assert check(data).is_sound
    assert open_store(data).numbers(1) == [2]


@pytest.mark.interpreted
@pytest.mark.parametrize("moment", ["set_aside", "_start_new_log", "forget_segments", "free"])
def test_a_repair_that_is_killed_can_be_run_again(data: Path, moment: str) -> None:
    first, _ = unapplied(data)
    break_head(data, first)
    flip(data, b"payload number 3")
    assert store_children.start(f"repair_and_die_after({str(data)!r}, {moment!r})").wait(timeout=60) == -SIGKILL
    assert list(data.glob("damaged-*.jsonl")), "what is taken out is set aside before anything is changed"
    repair(data)
    assert check(data).is_sound
    driver = open_store(data)
    assert driver.numbers(1) == [1, 2, 4, 5, 6, 7, 9]
    assert driver.entities[0].counters.active == 7
    assert driver.entities[0].counters.last_sequence_number >= 1_000_000
    driver.store.close()


def test_no_segment_is_freed_while_a_backup_is_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    driver = open_store(data)
    driver.create(1)

    def pass_through(first: int) -> None:
        messages = [message(number, bytes([number % 256]) * 200_000) for number in range(first, first + 20)]
        driver.append(1, *messages)
        driver.commit(Changes(removals=[(1, each) for each in messages]))
        driver.numbers(1)

    with Pin(data).hold():
        for first in (1, 21, 41):
            pass_through(first)
        kept = len(list(data.glob("log-*")))
        assert kept > 2
    for first in (61, 81, 101, 121):
        pass_through(first)
    assert len(list(data.glob("log-*"))) < kept
    with Pin(data).hold():
        kept = len(list(data.glob("log-*")))
        driver.store.close()
        assert len(list(data.glob("log-*"))) == kept
    driver.reopen()
    driver.store.close()
    assert len(list(data.glob("log-*"))) == 1


def test_a_backup_has_a_journal_mode_that_a_broker_can_use_and_no_log_of_sqlite(data: Path, tmp_path: Path) -> None:
    driver = open_store(data)
    back_up(data, tmp_path / "backup")
    driver.store.close()
    assert {file.name for file in (tmp_path / "backup").iterdir()} == {
        "log-0000000001",
        "peeklock.db",
        "peeklock.sums",
        "synced",
    }
    assert (tmp_path / "backup" / "peeklock.db").read_bytes()[18:20] == b"\2\2", "a write-ahead log"
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o700


def test_a_damaged_page_gets_no_new_checksum_in_a_backup(data: Path, tmp_path: Path) -> None:
    database = data / "peeklock.db"
    whole = database.read_bytes()
    at = whole.rindex(b"queue-3")
    database.write_bytes(whole[:at] + b"Q" + whole[at + 1 :])
    with pytest.raises(StoreError, match=r"peeklock.db is damaged: page \d+ .* does not match its checksum"):
        back_up(data, tmp_path / "backup")
    assert [file.name for file in tmp_path.iterdir()] == ["data"]


def test_a_damaged_message_is_in_the_backup_and_reported_and_such_a_backup_is_not_restored(
    data: Path, tmp_path: Path
) -> None:
    flip(data, b"payload number 3")
    made = back_up(data, tmp_path / "backup")
    assert made.checked is not None
    assert [each.sequence_number for each in made.checked.findings] == [3]
    before = hashes(tmp_path / "backup")
    refused = restore(tmp_path / "backup", tmp_path / "restored")
    assert refused.checked is not None
    assert not refused.checked.is_sound
    assert not (tmp_path / "restored").exists()
    assert hashes(tmp_path / "backup") == before


def test_a_folder_that_is_replaced_is_moved_aside_unless_a_broker_uses_it(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup")
    driver = open_store(data)
    with pytest.raises(StoreError, match="is not an empty folder"):
        restore(tmp_path / "backup", data)
    with pytest.raises(StoreLocked, match=f"in use by process {os.getpid()}"):
        restore(tmp_path / "backup", data, replace=True)
    assert driver.numbers(2) == [1]
    driver.store.close()
    moved = restore(tmp_path / "backup", data, replace=True).moved_to
    assert moved is not None
    assert check(moved).is_sound
    assert check(data).is_sound
    assert not [file.name for file in tmp_path.iterdir() if "partial" in file.name]
