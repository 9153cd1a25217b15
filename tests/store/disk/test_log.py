"""The log: exactly the committed records are replayed, whatever else is in its segments."""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from peeklock.store.base import StoreError
from peeklock.store.disk.log import segments as segments_module
from peeklock.store.disk.log.records import PAYLOAD_HEAD, RECORD, payload_head, payload_seed, record_head
from peeklock.store.disk.log.replay import Examined, Record, Replay
from peeklock.store.disk.log.segments import HEADER, LogPosition, Segments
from peeklock.store.disk.log.synced import Synced
from peeklock.store.disk.log.writer import Log
from peeklock.store.disk.reserve import Reserve

START = LogPosition(0, 0, 0)
THREE = RECORD.size + PAYLOAD_HEAD + len(b"payloadthree")
"""How long a record of this payload and end is."""
NOISE = random.Random(7)


class Writing:
    """Writes groups of records to a log."""

    def __init__(self, folder: Path) -> None:
        self.segments = Segments(folder)
        synced = Synced(folder)
        synced.open()
        self.log = Log(self.segments, synced, Reserve(folder))

    def resume(self, folder: Path) -> Examined:
        """Reopen the log, as after a restart with nothing applied."""
        replay = Replay(self.segments, START, Synced(folder).read())
        examined = replay.examine()
        replay.fix_end(examined, folder)
        self.log.resume(examined.end, examined.last)
        return examined

    def commit(self, *ends: bytes, payload: bytes = b"payload", room: int = 0, grows: bool = True) -> list[LogPosition]:
        """Commit records with these ends in one group. Return their positions. `room` is added to the announced
        size."""
        self.log.begin(room + (PAYLOAD_HEAD + len(payload)) * len(ends), len(ends), grows=grows)
        places = []
        try:
            for end in ends:
                self.log.add(with_heads(self.log, payload), end)
                places.append(self.log.position)
            self.log.commit()
        finally:
            self.log.discard()
        return places

    def fail(self, *ends: bytes, **how: Any) -> None:
        with pytest.raises(OSError):
            self.commit(*ends, **how)


def with_heads(log: Log, *payloads: bytes) -> list[bytes]:
    """Return the payloads with the heads that they need in the next record."""
    segment, offset = log.payloads_at()
    parts = []
    for payload in payloads:
        offset += PAYLOAD_HEAD
        parts += [payload_head(payload, payload_seed(segment), offset), payload]
        offset += len(payload)
    return parts


def replayed(folder: Path, after: LogPosition = START, synced: int | None = None) -> list[Record]:
    """Replay the log. `synced` replaces the number in the file `synced`."""
    replay = Replay(Segments(folder), after, Synced(folder).read() if synced is None else synced)
    replay.examine()
    return list(replay.records())


def ends(folder: Path, after: LogPosition = START, synced: int | None = None) -> list[bytes]:
    return [record.end for record in replayed(folder, after, synced)]


def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, *, when: Callable[..., bool] = lambda *_: True, how: int = errno.EIO
) -> None:
    """Let calls of a function of `os` fail from now on, after they have had their effect."""
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
    found = replayed(tmp_path)
    assert [(record.position, record.end) for record in found] == list(
        zip(places, [b"one", b"two", b"", b"three", b"four"], strict=True)
    )
    assert [record.synced for record in found] == [0, 1, 1, 1, 4]
    assert [record.start for record in found[1:]] == [place.offset for place in places[:-1]]
    for at, place in enumerate(places):
        assert replayed(tmp_path, place) == found[at + 1 :]


def test_payloads_are_at_the_places_that_the_log_returned(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.commit(b"before")
    writing.log.begin(9 + 4 * PAYLOAD_HEAD, 2, grows=True)
    said = []
    for payloads in ([b"one", b"three"], [b"", b"!"]):
        parts = with_heads(writing.log, *payloads)
        said.append((writing.log.payloads_at(), b"".join(parts)))
        writing.log.add(parts, b"end")
    writing.log.commit()
    for (segment, offset), wanted in said:
        assert writing.segments.path(segment).read_bytes()[offset : offset + len(wanted)] == wanted


def test_a_log_that_is_not_there_has_no_records(tmp_path: Path) -> None:
    assert ends(tmp_path) == []


def test_a_log_whose_last_segment_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"log-0000000003 is missing, and the index refers to it\."):
        ends(tmp_path, LogPosition(3, 500, 12))


def test_what_was_forgotten_is_not_written(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    writing.log.begin(5, 1, grows=True)
    writing.log.add(with_heads(writing.log, b"never"), b"never")
    writing.log.discard()
    writing.commit(b"one")
    assert ends(tmp_path) == [b"one"]


def test_a_group_of_very_many_records_is_written(tmp_path: Path) -> None:
    group = [b"%d" % number for number in range(3000)]
    Writing(tmp_path).commit(*group)
    assert ends(tmp_path) == group


def test_a_partial_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite

    def some(descriptor: int, parts: list[bytes], offset: int) -> int:
        return whole(descriptor, b"".join(parts)[:10], offset)

    monkeypatch.setattr(os, "pwritev", some)
    monkeypatch.setattr(
        os, "pwrite", lambda file, data, offset: whole(file, bytes(data)[:7] if offset else data, offset)
    )
    Writing(tmp_path).commit(b"one", b"two" * 20, b"three")
    assert ends(tmp_path) == [b"one", b"two" * 20, b"three"]


@pytest.fixture
def two_groups(tmp_path: Path) -> tuple[Writing, list[LogPosition]]:
    """Two groups of records: the writer, and the positions of the second group. The first group is synced."""
    writing = Writing(tmp_path)
    writing.commit(b"one", b"two")
    group = writing.commit(b"three", b"four", b"five")
    writing.log.close()
    writing.segments.cut(1, group[-1].offset)
    return writing, group


@pytest.mark.parametrize("tail", ["cut off", "zeros", "noise"])
def test_a_tail_cut_at_any_byte_leaves_the_records_before_it(
    tmp_path: Path, two_groups: tuple[Writing, list[LogPosition]], tail: str
) -> None:
    writing, group = two_groups
    file = writing.segments.path(1)
    whole = file.read_bytes()
    for cut in range(group[0].offset, len(whole)):
        rest = bytes(5000) if tail == "zeros" else NOISE.randbytes(5000) if tail == "noise" else b""
        if rest[:1] == whole[cut : cut + 1]:
            rest = b"\xff" + rest  # else this byte is not torn
        file.write_bytes(whole[:cut] + rest)
        kept = [b"one", b"two", b"three", b"four"][: 3 if cut < group[1].offset else 4]
        assert ends(tmp_path, synced=2) == kept, cut
        with pytest.raises(StoreError, match=rf"log-0000000001 is damaged: at offset \d+ .* commit {len(kept) + 1},"):
            ends(tmp_path, synced=5)


def test_a_changed_byte_counts_as_damage_only_if_its_record_is_known_to_be_synced(
    tmp_path: Path, two_groups: tuple[Writing, list[LogPosition]]
) -> None:
    """A damaged payload affects one message: its record is applied, and the message is reported when it is read."""
    writing, group = two_groups
    file = writing.segments.path(1)
    whole = file.read_bytes()
    for at in range(HEADER.size, len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << NOISE.randrange(8))]) + whole[at + 1 :])
        for synced in (2, 5):
            was_synced = synced == 5 or at < group[0].offset - THREE
            try:
                found = replayed(tmp_path, synced=synced)
            except StoreError:
                assert was_synced, at
            else:
                assert (len(found) == 5) is was_synced, at
                assert sum(not record.is_sound for record in found) == was_synced, at


def test_damage_before_the_last_group_is_detected_without_the_sync_file(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    (first,) = writing.commit(b"one")
    writing.commit(b"two")
    writing.commit(b"three")
    with writing.segments.path(1).open("r+b") as file:
        file.seek(first.offset)
        file.write(b"!!!!")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StoreError, match=rf"at offset {first.offset} the record of commit 2, which was acknowledged"):
        ends(tmp_path, synced=0)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_incomplete_record_is_kept_in_a_file_and_never_replayed(
    tmp_path: Path, two_groups: tuple[Writing, list[LogPosition]], caplog: pytest.LogCaptureFixture
) -> None:
    """The later records of the group are intact: they would follow a record as long as the first."""
    writing, group = two_groups
    file, start = writing.segments.path(1), group[0].offset - THREE
    whole = file.read_bytes()
    file.write_bytes(whole[: start + 20] + b"torn" + whole[start + 24 :] + bytes(100_000))
    Synced(tmp_path)._file.write_bytes(b"")
    again = Writing(tmp_path)
    examined = again.resume(tmp_path)
    assert (examined.end, examined.torn) == (LogPosition(1, start, 2), len(whole) - start)
    assert f"discarded {len(whole) - start} bytes at offset {start}" in caplog.text
    assert "no file records that they were synced" in caplog.text
    assert "acknowledged" not in caplog.text
    (kept,) = tmp_path.glob("torn-*")
    assert kept.read_bytes() == whole[start : start + 20] + b"torn" + whole[start + 24 :]
    again.commit(b"THREE", grows=False)
    assert ends(tmp_path) == [b"one", b"two", b"THREE"]


def test_records_that_may_not_be_durable_are_written_again_before_they_are_given_out(
    tmp_path: Path, two_groups: tuple[Writing, list[LogPosition]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed sync dropped bytes, the next sync succeeds without writing them."""
    _, group = two_groups
    written: list[tuple[int, int]] = []
    pwrite = os.pwrite

    def note(descriptor: int, data: bytes, offset: int) -> int:
        written.append((offset, offset + len(data)))
        return pwrite(descriptor, data, offset)

    replay = Replay(Segments(tmp_path), START, 2)
    examined = replay.examine()
    monkeypatch.setattr(os, "pwrite", note)
    replay.fix_end(examined, tmp_path)
    assert written == [(group[0].offset - THREE, group[-1].offset)]


def put_record(segments: Segments, at: LogPosition, commit: int, salt: int) -> None:
    with segments.path(at.segment).open("r+b") as file:
        file.seek(at.offset)
        file.write(record_head(salt, b"put", 0, commit, 0) + b"put")


@pytest.mark.parametrize("commit", [0, 1, 2, 3, 4, 2**64 - 1])
def test_a_complete_record_with_an_unexpected_number_is_not_replayed(tmp_path: Path, commit: int) -> None:
    writing = Writing(tmp_path)
    (*_, last) = writing.commit(b"one", b"two")
    put_record(writing.segments, last, commit, Segments(tmp_path).find(0)[1].salt)
    assert ends(tmp_path) == [b"one", b"two", *([b"put"] if commit == 3 else [])]


@pytest.mark.parametrize("salt", [0, 1])
def test_a_record_with_another_salt_is_not_replayed(tmp_path: Path, salt: int) -> None:
    """A sender may guess commit number and segment, and its payloads may be in the previous contents of a file."""
    writing = Writing(tmp_path)
    (last,) = writing.commit(b"one")
    assert Segments(tmp_path).find(0)[1].salt not in (0, 1)  # of 2**31
    put_record(writing.segments, last, 2, salt)
    assert ends(tmp_path) == [b"one"]


def test_a_length_that_cannot_be_is_not_read(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    (last,) = writing.commit(b"one")
    salt = Segments(tmp_path).find(0)[1].salt
    with writing.segments.path(1).open("r+b") as file:
        file.seek(last.offset)
        file.write(RECORD.pack(salt, 0, 2**32 - 1, 2**63, 2, 1))
    assert ends(tmp_path) == [b"one"]


@pytest.mark.interpreted
def test_old_records_of_a_reused_segment_are_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_reopened_log_continues_in_its_last_segment(tmp_path: Path) -> None:
    first = Writing(tmp_path)
    (*_, place) = first.commit(b"one", b"two")
    first.log.close()
    second = Writing(tmp_path)
    assert second.resume(tmp_path).end == place
    (three,) = second.commit(b"three", grows=False)
    assert three.segment == place.segment
    assert ends(tmp_path) == [b"one", b"two", b"three"]
    assert ends(tmp_path, place) == [b"three"]


@pytest.mark.parametrize("is_orderly", [True, False])
def test_on_a_full_disk_a_reopened_log_has_room_for_settlements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_orderly: bool
) -> None:
    first = Writing(tmp_path)
    first.commit(b"one", payload=bytes(600_000))
    if is_orderly:
        first.log.close()
    failing(monkeypatch, "posix_fallocate", how=errno.ENOSPC)
    (tmp_path / "reserve").unlink()
    second = Writing(tmp_path)
    second.resume(tmp_path)
    second.fail(b"two", payload=bytes(600_000))
    for _ in range(100):
        second.commit(b"settled", payload=b"", grows=False)
    assert ends(tmp_path) == [b"one", *[b"settled"] * 100]


def test_where_there_is_no_room_for_a_long_segment_a_short_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing = Writing(tmp_path)
    writing.commit(b"one")
    failing(monkeypatch, "posix_fallocate", when=lambda _, offset, size: offset + size > 500_000, how=errno.ENOSPC)
    monkeypatch.setattr(Reserve, "hold", lambda _: True)
    for _ in range(5):
        writing.commit(b"more", payload=bytes(200_000))
    assert writing.segments.size(writing.log.position.segment) < 500_000
    assert len(ends(tmp_path)) == 6


@pytest.mark.parametrize("name", ["pwritev", "fdatasync"])
def test_a_commit_that_failed_is_undone_with_all_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All records may be in the file, and the next record may be as long as the first one."""
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
    assert writing.log.position.segment == 1


def test_if_a_failed_commit_cannot_be_undone_the_next_segment_has_the_position_where_the_log_continues(
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
    assert writing.log.position.segment == 2
    assert b"three" in writing.segments.path(1).read_bytes()
    assert ends(tmp_path) == [b"one", b"TWO", b"THREE"]


def _refuse(write: Callable[..., int], descriptor: int, data: bytes, offset: int) -> int:
    if offset:  # all but the headers of segments
        raise OSError(errno.EIO, "Input/output error")
    return write(descriptor, data, offset)


def test_a_segment_that_may_not_be_durable_hides_nothing_that_is_committed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file exists, but the folder could not be synced."""
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
        while writing.log.position.offset < 700_000:
            writing.commit(b"filled", payload=bytes(1000))
        filled = ends(tmp_path)
        writing.fail(b"two", payload=bytes(100_000))
        assert ends(tmp_path) == filled
        for _ in range(100):
            writing.commit(b"settled", payload=b"", grows=False)
    writing.commit(b"two", payload=bytes(100_000))
    assert ends(tmp_path) == [*filled, *[b"settled"] * 100, b"two"]
    assert writing.log.position.segment == 2


def test_a_record_that_is_longer_than_its_segment_has_room_is_written_all_the_same(tmp_path: Path) -> None:
    writing = Writing(tmp_path)
    long = NOISE.randbytes(3_000_000)
    writing.commit(long)  # only payloads are counted beforehand
    writing.commit(b"two")
    assert ends(tmp_path) == [long, b"two"]


@pytest.fixture
def five_segments(tmp_path: Path) -> list[LogPosition]:
    places = [START]
    writing = Writing(tmp_path)
    for number in range(1, 6):
        places += writing.commit(b"%d" % number, room=2_000_000 << number)
    writing.log.close()
    return places[1:]


def test_records_are_replayed_across_segments(tmp_path: Path, five_segments: list[LogPosition]) -> None:
    assert [place.segment for place in five_segments] == [1, 2, 3, 4, 5]
    assert ends(tmp_path) == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize("missing", [2, 3, 4])
def test_a_missing_segment_is_reported(tmp_path: Path, five_segments: list[LogPosition], missing: int) -> None:
    Segments(tmp_path).path(missing).unlink()
    with pytest.raises(StoreError, match=rf"log-000000000{missing + 1} begins with commit {missing + 1}, .* missing"):
        ends(tmp_path)
    later = LogPosition(missing + 1, HEADER.size, missing)
    assert ends(tmp_path, later) == [b"%d" % number for number in range(missing + 1, 6)]


def test_a_damaged_record_before_the_last_segment_is_reported(tmp_path: Path, five_segments: list[LogPosition]) -> None:
    with Segments(tmp_path).path(3).open("r+b") as file:
        file.seek(HEADER.size + 5)
        file.write(b"!")
    with pytest.raises(StoreError, match=rf"log-0000000003 is damaged: at offset {HEADER.size} .* commit 3,"):
        ends(tmp_path)
    assert ends(tmp_path, five_segments[2]) == [b"4", b"5"]


def test_segments_before_the_position_may_be_missing_or_damaged(
    tmp_path: Path, five_segments: list[LogPosition]
) -> None:
    segments = Segments(tmp_path)
    segments.path(1).unlink()
    segments.path(2).write_bytes(b"damaged")
    assert ends(tmp_path, five_segments[2]) == [b"4", b"5"]
