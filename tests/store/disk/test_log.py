"""The log: what was committed is replayed, whatever else is in its segments, and nothing more."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from peeklock.store.base import StoreError
from peeklock.store.disk.log import segments as segments_module
from peeklock.store.disk.log.segments import HEADER, Place, Segments
from peeklock.store.disk.log.writer import RECORD, Log, replay

START = Place(0, 0, 0)
NOISE = random.Random(7)


class Writing:
    """A log that is written, one group of records after the other."""

    def __init__(self, folder: Path, *, sync: bool = True) -> None:
        self.segments = Segments(folder)
        self.log = Log(self.segments, sync=sync)

    def commit(self, *ends: bytes, payload: bytes = b"payload", room: int = 0, grows: bool = True) -> list[Place]:
        """Records that end like this; where each ends. `room` is what they are said to need besides."""
        self.log.begin(room + len(payload) * len(ends), len(ends), grows=grows)
        places = []
        try:
            for end in ends:
                self.log.add([payload], end)
                places.append(self.log.place)
            self.log.commit()
        finally:
            self.log.forget()
        return places

    def fail(self, *ends: bytes, **how: Any) -> None:
        with pytest.raises(OSError):
            self.commit(*ends, **how)


def ends(folder: Path, after: Place = START) -> list[bytes]:
    return [end for _, end in replay(Segments(folder), after)]


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, *, when: Callable[..., bool] = lambda *_: True, how: int = errno.EIO
) -> None:
    """From now on; what it is called for is done all the same."""
    function = getattr(os, name)

    def fail(*arguments: Any) -> Any:
        done = function(*arguments)
        if when(*arguments):
            raise OSError(how, os.strerror(how))
        return done

    monkeypatch.setattr(os, name, fail)


def is_folder(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def test_records_are_replayed_in_order_with_their_places(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    places = writing.commit(b"one") + writing.commit(b"two", b"", b"three") + writing.commit(b"four", payload=b"")
    assert [place.commit for place in places] == [1, 2, 3, 4, 5]
    wanted = list(zip(places, [b"one", b"two", b"", b"three", b"four"], strict=True))
    assert list(replay(Segments(tmp_path), START)) == wanted
    for at, (place, _) in enumerate(wanted):
        assert list(replay(Segments(tmp_path), place)) == wanted[at + 1 :]


def test_payloads_are_where_the_log_said_that_they_will_be(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.commit(b"before")
    writing.log.begin(9, 2, grows=True)
    said = []
    for payloads in ([b"one", b"three"], [b"", b"!"]):
        said.append(writing.log.payloads_at())
        writing.log.add(payloads, b"end")
    writing.log.commit()
    for (segment, offset), wanted in zip(said, (b"onethree", b"!"), strict=True):
        assert writing.segments.path(segment).read_bytes()[offset : offset + len(wanted)] == wanted


def test_a_log_that_is_not_there_has_no_records(tmp_path: Path) -> None:
    assert ends(tmp_path) == []
    assert ends(tmp_path, Place(3, 500, 12)) == []  # all of it was applied, and freed


def test_what_was_forgotten_is_not_written(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.log.begin(5, 1, grows=True)
    writing.log.add([b"never"], b"never")
    writing.log.forget()
    writing.commit(b"one")
    assert ends(tmp_path) == [b"one"]


def test_a_group_of_very_many_records_is_written(tmp_path: Path) -> None:
    group = [b"%d" % number for number in range(3000)]
    Writing(tmp_path).commit(*group)
    assert ends(tmp_path) == group


def test_what_the_system_writes_only_a_part_of_is_written_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite

    def some(descriptor: int, parts: list[bytes], offset: int) -> int:
        return whole(descriptor, b"".join(parts)[:10], offset)

    monkeypatch.setattr(os, "pwritev", some)
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, offset: whole(file, bytes(data)[:7] if offset else data, offset)
    )
    Writing(tmp_path).commit(b"one", b"two" * 20, b"three")
    assert ends(tmp_path) == [b"one", b"two" * 20, b"three"]


@pytest.mark.parametrize("tail", ["cut off", "zeros", "noise"])
def test_a_tail_that_is_torn_at_any_byte_leaves_the_records_before_it(tmp_path: Path, tail: str) -> None:
    writing = Writing(tmp_path)
    writing.commit(b"one", b"two")
    group = writing.commit(b"three", b"four", b"five")
    writing.log.close()
    file = writing.segments.path(1)
    whole = file.read_bytes()
    before = [b"one", b"two", b"three", b"four", b"five"]
    assert len(whole) == group[-1].offset
    for cut in range(group[0].offset, len(whole)):
        rest = bytes(5000) if tail == "zeros" else NOISE.randbytes(5000) if tail == "noise" else b""
        if rest[:1] == whole[cut : cut + 1]:
            rest = b"\xff" + rest  # else this byte is not torn
        file.write_bytes(whole[:cut] + rest)
        assert ends(tmp_path) == before[: 3 if cut < group[1].offset else 4], cut


def test_a_record_with_any_byte_changed_is_not_taken_nor_what_follows_it(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    _, second, third = writing.commit(b"one", b"two", b"three")
    writing.log.close()
    file = writing.segments.path(1)
    whole = file.read_bytes()
    for at in range(second.offset, third.offset):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << NOISE.randrange(8))]) + whole[at + 1 :])
        assert ends(tmp_path) == [b"one", b"two"], at


def put_record(segments: Segments, at: Place, commit: int, salt: int) -> None:
    head = RECORD.pack(0, 3, 0, commit)
    with segments.path(at.segment).open("r+b") as file:
        file.seek(at.offset)
        file.write(crc32(head[4:] + b"put", salt).to_bytes(4, "little") + head[4:] + b"put")


@pytest.mark.parametrize("commit", [0, 1, 2, 3, 4, 2**64 - 1])
def test_a_whole_record_with_another_number_than_the_next_is_not_taken(tmp_path: Path, commit: int) -> None:
    writing = Writing(tmp_path)
    (*_, last) = writing.commit(b"one", b"two")
    put_record(writing.segments, last, commit, Segments(tmp_path).find(0)[1].salt)
    assert ends(tmp_path) == [b"one", b"two", *([b"put"] if commit == 3 else [])]


@pytest.mark.parametrize("salt", [0, 1])
def test_a_record_that_who_does_not_know_the_salt_made_is_not_taken(tmp_path: Path, salt: int) -> None:
    """As a sender could, who guesses number and segment: its bytes may be what a file was used for before."""
    writing = Writing(tmp_path)
    (last,) = writing.commit(b"one")
    assert Segments(tmp_path).find(0)[1].salt not in (0, 1)  # of 2**32
    put_record(writing.segments, last, 2, salt)
    assert ends(tmp_path) == [b"one"]


def test_a_length_that_cannot_be_is_not_read(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    (last,) = writing.commit(b"one")
    with writing.segments.path(1).open("r+b") as file:
        file.seek(last.offset)
        file.write(RECORD.pack(0, 2**32 - 1, 2**63, 2))
    assert ends(tmp_path) == [b"one"]


@pytest.mark.interpreted
def test_what_a_used_segment_held_before_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "SMALLEST", 2000)
    monkeypatch.setattr(segments_module, "LARGEST", 2000)
    writing = Writing(tmp_path)
    places = [writing.commit(b"old %d" % number)[0] for number in range(40)]
    old = writing.segments.path(1).stat().st_ino
    writing.segments.free(1)
    new = places[-1].segment + 1
    while places[-1].segment < new:
        places += writing.commit(b"old", payload=b"")
    assert writing.segments.path(new).stat().st_ino == old
    before = places[-2]
    wanted = ends(tmp_path, before)
    for number in range(5):
        writing.commit(b"new %d" % number)
        wanted.append(b"new %d" % number)
        assert ends(tmp_path, before) == wanted


def test_a_log_that_is_opened_again_goes_on_in_a_segment_of_its_own(tmp_path: Path) -> None:
    first = Writing(tmp_path)
    first.commit(b"one", b"two")
    first.log.close()
    *_, (place, _) = replay(Segments(tmp_path), START)
    second = Writing(tmp_path)
    second.segments.find(place.segment)
    second.log.go_on(place)
    (three,) = second.commit(b"three")
    assert three.segment == place.segment + 1
    assert ends(tmp_path) == [b"one", b"two", b"three"]
    assert ends(tmp_path, place) == [b"three"]


@pytest.mark.parametrize("name", ["pwritev", "fdatasync"])
def test_a_commit_that_failed_is_undone_with_all_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All of it may be in the file by then, and a record that is as long as the first may follow."""
    writing = Writing(tmp_path)
    writing.commit(b"one")
    for _ in range(3):
        calls = iter([True])
        with monkeypatch.context() as patched:
            failing(patched, name, when=lambda *_, calls=calls: next(calls, False))
            writing.fail(b"two", b"three", b"four")
        assert ends(tmp_path) == [b"one"]
    for at, end in enumerate([b"TWO", b"THREE", b"FOUR"], 1):
        writing.commit(end)
        assert ends(tmp_path) == [b"one", b"TWO", b"THREE", b"FOUR"][: at + 1]
    assert writing.log.place.segment == 1


def test_where_a_failed_commit_cannot_be_undone_the_next_segment_says_where_the_log_went_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(tmp_path)
    writing.commit(b"one")
    with monkeypatch.context() as patched:
        failing(patched, "fdatasync")
        patched.setattr(os, "pwrite", partial(_refuse, os.pwrite))
        writing.fail(b"two", b"three")
    writing.commit(b"TWO", grows=False)
    writing.commit(b"THREE")
    assert writing.log.place.segment == 2
    assert b"three" in writing.segments.path(1).read_bytes()
    assert ends(tmp_path) == [b"one", b"TWO", b"THREE"]


def test_a_log_that_does_not_sync_its_commits_syncs_them_before_a_segment_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a failed commit could not be undone: a segment that lacks records would keep the log from opening."""
    writing = Writing(tmp_path, sync=False)
    writing.commit(b"one")
    with monkeypatch.context() as patched:
        failing(patched, "fdatasync")
        failing(patched, "pwritev")
        writing.fail(b"two")
    with monkeypatch.context() as patched:
        failing(patched, "fdatasync")
        writing.fail(b"TWO")
    writing.commit(b"TWO")
    assert writing.log.place.segment == 2
    assert ends(tmp_path) == [b"one", b"TWO"]


def _refuse(write: Callable[..., int], descriptor: int, data: bytes, offset: int) -> int:
    if offset:  # all but the headers of segments
        raise OSError(errno.EIO, "Input/output error")
    return write(descriptor, data, offset)


def test_a_segment_that_may_not_be_durable_hides_nothing_that_is_committed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is there, but the folder could not be synced."""
    writing = Writing(tmp_path)
    writing.commit(b"one")
    for _ in range(2):
        with monkeypatch.context() as patched:
            failing(patched, "fsync", when=is_folder)
            writing.fail(b"two", room=2_000_000)
        assert ends(tmp_path) == [b"one"]
    (place,) = writing.commit(b"TWO", grows=False)
    assert ends(tmp_path) == [b"one", b"TWO"]
    writing.commit(b"three")
    assert ends(tmp_path) == [b"one", b"TWO", b"three"]
    assert ends(tmp_path, place) == [b"three"]


def test_without_room_for_a_segment_the_log_stays_as_it_is_and_small_records_still_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(tmp_path)
    writing.commit(b"one")
    full = partial(failing, name="posix_fallocate", how=errno.ENOSPC)
    with monkeypatch.context() as patched:
        full(patched)
        while writing.log.place.offset < 700_000:
            writing.commit(b"filled", payload=bytes(1000))
        filled = ends(tmp_path)
        writing.fail(b"two", payload=bytes(100_000))
        assert ends(tmp_path) == filled
        for _ in range(100):
            writing.commit(b"settled", payload=b"", grows=False)
    writing.commit(b"two", payload=bytes(100_000))
    assert ends(tmp_path) == [*filled, *[b"settled"] * 100, b"two"]
    assert writing.log.place.segment == 2


def test_a_record_that_is_longer_than_its_segment_has_room_is_written_all_the_same(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    long = NOISE.randbytes(3_000_000)
    writing.commit(long)  # only payloads are counted beforehand
    writing.commit(b"two")
    assert ends(tmp_path) == [long, b"two"]


@pytest.fixture
def five_segments(tmp_path: Path) -> list[Place]:
    places = [START]
    for number in range(1, 6):
        writing = Writing(tmp_path)
        writing.segments.find(0)
        writing.log.go_on(places[-1])
        places += writing.commit(b"%d" % number)
        writing.log.close()
    return places[1:]


def test_records_are_replayed_across_segments(tmp_path: Path, five_segments: list[Place]) -> None:
    assert [place.segment for place in five_segments] == [1, 2, 3, 4, 5]
    assert ends(tmp_path) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("missing", [2, 3, 4])
def test_a_missing_segment_is_told_in_a_sentence(tmp_path: Path, five_segments: list[Place], missing: int) -> None:
    Segments(tmp_path).path(missing).unlink()
    with pytest.raises(StoreError, match=rf"log-000000000{missing + 1} begins with commit {missing + 1}, .* missing"):
        ends(tmp_path)
    assert ends(tmp_path, five_segments[missing - 1]) == [b"%d" % number for number in range(missing + 1, 6)]


def test_a_damaged_record_in_a_segment_that_others_follow_is_told_in_a_sentence(
    tmp_path: Path, five_segments: list[Place]
) -> None:
    with Segments(tmp_path).path(3).open("r+b") as file:
        file.seek(HEADER.size + RECORD.size + 5)
        file.write(b"!")
    with pytest.raises(StoreError, match="missing or damaged"):
        ends(tmp_path)
    assert ends(tmp_path, five_segments[2]) == [b"4", b"5"]


def test_what_lies_before_the_place_may_be_gone_or_damaged(tmp_path: Path, five_segments: list[Place]) -> None:
    segments = Segments(tmp_path)
    segments.path(1).unlink()
    segments.path(2).write_bytes(b"damaged")
    assert ends(tmp_path, five_segments[2]) == [b"4", b"5"]
