"""Claims in a data folder: after a kill, with damage, and in check, repair and backup."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from store_children import start
from store_harness import Driver, as_dict, body, message, query

from peeklock.store.base import ACTIVE, CLAIMED, Changes, Counters, Range, Run, StoreError
from peeklock.store.disk.index import pages
from peeklock.store.disk.store import DiskStore
from peeklock.store.disk.upkeep.backup import back_up
from peeklock.store.disk.upkeep.check import check
from peeklock.store.disk.upkeep.info import describe
from peeklock.store.disk.upkeep.repair import repair

ONE, TWO = b"claim number one", b"claim number two"
PAYLOAD_BYTES = len(b"payload number 1")
FLIPS = 40


def open_store(folder: Path) -> Driver:
    return Driver(lambda call: DiskStore(folder, call))


def size(count: int) -> int:
    return count * PAYLOAD_BYTES


def claimed(first: int, last: int, claim: bytes = ONE) -> Changes:
    run = Run(first, last, size(last - first + 1))
    return Changes(run_updates=[(1, run, ACTIVE, CLAIMED)], claims={(1, claim): b"%d to %d" % (first, last)})


def removed(first: int, last: int, claim: bytes = ONE) -> Changes:
    return Changes(run_removals=[(1, Run(first, last, size(last - first + 1)), CLAIMED)], claims={(1, claim): None})


def fill(folder: Path) -> Driver:
    """Create a store with nine messages."""
    driver = open_store(folder)
    driver.create(1)
    driver.append(1, *(message(number, b"payload number %d" % number) for number in range(1, 10)))
    return driver


def flip(folder: Path, content: bytes) -> None:
    for file in folder.glob("log-*"):
        data = bytearray(file.read_bytes())
        if (at := data.find(content)) >= 0:
            data[at] ^= 1
            file.write_bytes(data)
            return
    raise AssertionError(f"{content!r} is nowhere")


def keep_out_of_the_index(folder: Path, *commits: Changes) -> None:
    """Commit changes, and restore the previous index: only the log has the changes."""
    files = {file: file.read_bytes() for file in folder.glob("peeklock.*")}
    driver = open_store(folder)
    for changes in commits:
        driver.commit(changes)
    driver.store.close()
    for file in folder.glob("peeklock.*"):
        file.unlink()
    for file, content in files.items():
        file.write_bytes(content)


def claim_and_die(folder: str) -> None:
    """Claim messages in a child process, and exit like a kill."""
    driver = fill(Path(folder))
    driver.commit(claimed(2, 5))
    driver.commit(claimed(6, 9, TWO))
    driver.commit(removed(2, 5))
    driver.commit(Changes(run_updates=[(1, Run(8, 9, size(2)), CLAIMED, ACTIVE)], claims={(1, TWO): b"less"}))
    os._exit(9)


def killed(folder: Path) -> None:
    child = start(f"claim_and_die({str(folder)!r})", "test_claims_on_disk")
    child.communicate(timeout=60)
    assert child.returncode == 9


def test_claims_outlive_a_kill(tmp_path: Path) -> None:
    folder, copy = tmp_path / "data", tmp_path / "copy"
    killed(folder)
    shutil.copytree(folder, copy)
    assert query(copy / "peeklock.db", "SELECT count(*) FROM message") == [(0,)], "only the log has them"
    driver = open_store(folder)
    assert driver.numbers(1) == [1, 8, 9]
    assert driver.numbers(1, state=CLAIMED) == [6, 7]
    assert driver.store.claims() == [(1, TWO, b"less")]
    assert driver.entities[0].counters == Counters(9, active=3, claimed=2, size_in_bytes=size(5))
    driver.store.close()
    assert check(folder).is_sound


def test_a_record_that_is_torn_is_not_a_claim(tmp_path: Path) -> None:
    """A kill left the record incomplete before the commit was acknowledged."""
    fill(tmp_path).store.close()
    files = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    keep_out_of_the_index(tmp_path, claimed(2, 5))
    log = tmp_path / "log-0000000001"
    whole, before = log.read_bytes(), len(files[log.name].rstrip(b"\0"))
    for length in range(before, len(whole.rstrip(b"\0")), 7):
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        log.write_bytes(whole[:length] + bytes(len(whole) - length))
        driver = open_store(tmp_path)
        assert (driver.numbers(1), driver.store.claims()) == (list(range(1, 10)), [])
        assert driver.entities[0].counters.claimed == 0
        driver.store.close()
        for file in tmp_path.iterdir():
            file.unlink()


def test_a_flipped_bit_in_the_record_of_a_claim_is_refused(tmp_path: Path) -> None:
    """The commit was acknowledged, so its record must not be discarded as incomplete."""
    folder, copy = tmp_path / "data", tmp_path / "copy"
    fill(folder).store.close()
    begin = len((folder / "log-0000000001").read_bytes().rstrip(b"\0"))
    keep_out_of_the_index(folder, claimed(2, 5), removed(2, 4), Changes(claims={(1, TWO): b"claim"}))
    log = (folder / "log-0000000001").read_bytes()
    chance = Random(1)
    refused = 0
    for _ in range(FLIPS):
        shutil.copytree(folder, copy)
        data = bytearray(log)
        data[chance.randrange(begin, len(log.rstrip(b"\0")))] ^= 1 << chance.randrange(8)
        (copy / "log-0000000001").write_bytes(data)
        try:
            driver = open_store(copy)
        except StoreError as error:
            refused += "log-0000000001 is damaged" in str(error)
        else:  # a bit without effect
            assert driver.spans(1, state=CLAIMED) == [(5, 5)]
            assert driver.numbers(1) == [1, 6, 7, 8, 9]
            assert driver.store.claims() == [(1, TWO, b"claim")]
            driver.store.close()
        shutil.rmtree(copy)
    assert refused > FLIPS // 2


class TestDamagedMessages:
    @pytest.fixture
    def driver(self, tmp_path: Path) -> Driver:
        """A store whose message 3 was found damaged."""
        fill(tmp_path).store.close()
        flip(tmp_path, b"payload number 3")
        driver = open_store(tmp_path)
        assert driver.numbers(1) == [1, 2, 4, 5, 6, 7, 8, 9]
        return driver

    def test_runs_are_read_around_them(self, driver: Driver) -> None:
        assert driver.spans(1) == [(1, 2), (4, 9)]

    def test_they_stay_damaged_in_a_run_and_are_counted_so(self, driver: Driver) -> None:
        driver.commit(claimed(2, 5))
        assert driver.numbers(1, state=CLAIMED) == [2, 4, 5]
        counters = driver.reopen()[0].counters
        assert counters == Counters(9, active=5, claimed=3, damaged=1, size_in_bytes=size(9))
        driver.commit(Changes(run_updates=[(1, Run(3, 4, size(2)), CLAIMED, ACTIVE)]))
        counters = driver.reopen()[0].counters
        assert counters == Counters(9, active=6, claimed=2, damaged=1, size_in_bytes=size(9))

    def test_they_stay_when_their_run_is_removed(self, driver: Driver, tmp_path: Path) -> None:
        driver.commit(claimed(2, 5))
        driver.commit(removed(2, 5))
        counters = driver.reopen()[0].counters
        assert counters == Counters(9, active=5, damaged=1, size_in_bytes=size(6))
        driver.store.close()
        assert [each.text for each in check(tmp_path).findings] == ["A broker found this message damaged."]
        repair(tmp_path)
        assert check(tmp_path).is_sound


@pytest.mark.parametrize("first", ["the read", "the claim"])
def test_a_message_that_is_found_damaged_while_it_is_claimed_is_counted_once(tmp_path: Path, first: str) -> None:
    fill(tmp_path).store.close()
    flip(tmp_path, b"payload number 3")
    driver = open_store(tmp_path)
    answers: list[object] = []
    # In any state, because the claim's commit may be applied before the read.
    wanted = Range(entity=1, through=9, limit=9, max_bytes=1000, state=None)
    if first == "the read":
        driver.store.read(wanted, answers.append)
        driver.store.commit(claimed(2, 5), answers.append)
    else:
        driver.store.commit(claimed(2, 5), answers.append)
        driver.store.read_numbers(1, [3], 1000, answers.append)
    driver.wait(answers, 2)
    driver.commit(removed(2, 5))
    assert driver.reopen()[0].counters == Counters(9, active=5, damaged=1, size_in_bytes=size(6))


def test_a_claimed_message_that_is_found_damaged_is_counted_off_the_claimed_ones(tmp_path: Path) -> None:
    driver = fill(tmp_path)
    driver.commit(claimed(2, 5))
    driver.store.close()
    flip(tmp_path, b"payload number 3")
    driver = open_store(tmp_path)
    assert driver.numbers(1, state=CLAIMED) == [2, 4, 5]
    assert [(each.sequence_number, each.state) for each in driver.damages] == [(3, CLAIMED)]
    assert driver.reopen()[0].counters == Counters(9, active=5, claimed=3, damaged=1, size_in_bytes=size(9))
    driver.commit(removed(2, 5))
    assert driver.reopen()[0].counters == Counters(9, active=5, damaged=1, size_in_bytes=size(6))


def test_a_damaged_message_keeps_its_body_when_its_run_is_removed(tmp_path: Path) -> None:
    driver = open_store(tmp_path)
    driver.create(1)
    shared = body(1, b"a body that is shared")
    driver.append(1, message(1, b"the first", body=shared), message(2, b"the second", body=shared))
    driver.store.close()
    flip(tmp_path, b"the first")
    driver = open_store(tmp_path)
    assert driver.numbers(1) == [2]
    run = Run(1, 2, 9 + 10 + 2 * len(shared.data))
    driver.commit(Changes(run_removals=[(1, run, ACTIVE)]))
    assert driver.bodies == 1
    assert driver.reopen()[0].counters == Counters(2, damaged=1, size_in_bytes=9 + len(shared.data))
    driver.store.close()
    assert [each.text for each in check(tmp_path).findings] == ["A broker found this message damaged."]


class TestUpkeep:
    @pytest.fixture
    def data(self, tmp_path: Path) -> Path:
        """A folder whose messages 2 to 5 and 7 are claimed."""
        folder = tmp_path / "data"
        driver = fill(folder)
        driver.commit(claimed(2, 5))
        driver.commit(claimed(7, 7, TWO))
        driver.store.close()
        return folder

    def test_claimed_messages_are_sound_and_described(self, data: Path) -> None:
        assert check(data).is_sound
        (found,) = describe(data).entities
        assert (found["active"], found["claimed"]) == (4, 5)

    def test_a_wrong_count_of_claimed_messages_is_found(self, data: Path) -> None:
        with closing(sqlite3.connect(data / "peeklock.db")) as connection:
            connection.execute("UPDATE entity SET claimed = 50")
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages.write_sums(data / "peeklock.db")
        assert [each.text for each in check(data).findings] == ["queue-1 counts 50 claimed messages, but has 5."]

    def test_a_repair_counts_claimed_messages_and_keeps_claims_whose_messages_it_takes_out(self, data: Path) -> None:
        flip(data, b"payload number 3")
        flip(data, b"payload number 7")
        repaired = repair(data)
        assert [each.sequence_number for each in repaired.messages] == [3, 7]
        assert check(data).is_sound
        driver = open_store(data)
        assert driver.entities[0].counters == Counters(9, active=4, claimed=3, size_in_bytes=size(7))
        assert sorted(driver.store.claims()) == [(1, ONE, b"2 to 5"), (1, TWO, b"7 to 7")]
        driver.commit(Changes(claims={(1, TWO): None}))
        driver.commit(Changes(run_removals=[(1, Run(2, 2, size(1)), CLAIMED), (1, Run(4, 5, size(2)), CLAIMED)]))
        assert driver.reopen()[0].counters == Counters(9, active=4, size_in_bytes=size(4))
        driver.store.close()
        assert check(data).is_sound

    def test_a_claim_in_a_commit_that_cannot_be_read_leaves_its_messages_active(self, data: Path) -> None:
        begin = len((data / "log-0000000001").read_bytes().rstrip(b"\0"))
        keep_out_of_the_index(data, claimed(8, 9), removed(8, 9), removed(7, 7, TWO))
        log = bytearray((data / "log-0000000001").read_bytes())
        log[begin + 9] ^= 1
        (data / "log-0000000001").write_bytes(log)
        with pytest.raises(StoreError, match="is damaged"):
            open_store(data)
        repaired = repair(data)
        assert [(each.first_commit, each.last_commit) for each in repaired.lost] == [(5, 5)]
        assert check(data).is_sound
        driver = open_store(data)
        assert driver.numbers(1) == [1, 6, 8, 9]
        assert driver.numbers(1, state=CLAIMED) == [2, 3, 4, 5]
        counters = driver.entities[0].counters
        assert (counters.active, counters.claimed, counters.size_in_bytes) == (4, 4, size(8))

    def test_claims_are_in_a_backup(self, data: Path, tmp_path: Path) -> None:
        driver = open_store(data)
        driver.commit(Changes(run_updates=[(1, Run(5, 5, size(1)), CLAIMED, ACTIVE)], claims={(1, ONE): b"2 to 4"}))
        back_up(data, tmp_path / "backup")
        wanted = [as_dict(each) for each in driver.read(1, state=None)]
        driver.store.close()
        copy = open_store(tmp_path / "backup")
        assert [as_dict(each) for each in copy.read(1, state=None)] == wanted
        assert sorted(copy.store.claims()) == [(1, ONE, b"2 to 4"), (1, TWO, b"7 to 7")]
        copy.store.close()
