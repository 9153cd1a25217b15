"""Segments of the log: creating, reading, truncating and reusing them."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from peeklock.store.base import StoreError
from peeklock.store.disk.keys import LENGTH_BITS
from peeklock.store.disk.log import segments as segments_module
from peeklock.store.disk.log.records import PAYLOAD_HEAD, payload_head, payload_seed
from peeklock.store.disk.log.segments import HEADER, Segment, Segments

KIB = 1024
NOISE = random.Random(3)


@pytest.fixture
def segments(tmp_path: Path) -> Segments:
    return Segments(tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "SMALLEST", 4 * KIB)
    monkeypatch.setattr(segments_module, "LARGEST", 16 * KIB)
    monkeypatch.setattr(segments_module, "_MAX_SPARES", 1)


def make(segments: Segments, number: int, *payloads: bytes, needed: int = 0) -> int:
    """How long it is."""
    descriptor, size = segments.make(Segment(number, number, number - 1, 0), needed)
    os.pwrite(descriptor, b"".join(framed(number, payloads)), HEADER.size)
    os.close(descriptor)
    assert segments.path(number).stat().st_size == size == segments.size(number)
    return size


def framed(number: int, payloads: Sequence[bytes]) -> Iterator[bytes]:
    offset = HEADER.size
    for payload in payloads:
        offset += PAYLOAD_HEAD
        yield payload_head(payload, payload_seed(number), offset)
        yield payload
        offset += len(payload)


def places_of(payloads: Sequence[bytes]) -> list[int]:
    places, offset = [], HEADER.size
    for payload in payloads:
        offset += PAYLOAD_HEAD
        places.append(offset << LENGTH_BITS | len(payload))
        offset += len(payload)
    return places


def read(segments: Segments, number: int, *payloads: bytes) -> list[bytes | None]:
    """From where `make` put these."""
    return segments.read(number, places_of(payloads))


def test_payloads_are_returned_in_the_requested_order(segments: Segments) -> None:
    payloads = [NOISE.randbytes(length) for length in (10, 0, 5, 3000, 1, 500_000, 20, 30, 9000, 100)]
    make(segments, 1, *payloads)
    places = places_of(payloads)
    for _ in range(200):
        wanted = [NOISE.randrange(len(payloads)) for _ in range(NOISE.randint(1, 20))]
        if NOISE.random() < 0.7:
            wanted.sort()
        assert segments.read(1, [places[at] for at in wanted]) == [payloads[at] for at in wanted]


def test_more_than_is_read_at_once_is_read(segments: Segments) -> None:
    payloads = [NOISE.randbytes(3_000_000), *(NOISE.randbytes(990) for _ in range(2000))]
    make(segments, 1, *payloads, needed=6_000_000)
    assert read(segments, 1, *payloads) == payloads


def test_a_payload_with_any_bit_changed_is_not_read_and_those_beside_it_are(segments: Segments) -> None:
    payloads = [b"first", b"second", b"third"]
    make(segments, 1, *payloads)
    begin = HEADER.size + PAYLOAD_HEAD + len(b"first")
    whole = segments.path(1).read_bytes()
    for bit in range(8 * (PAYLOAD_HEAD + len(b"second"))):
        changed = bytearray(whole)
        changed[begin + bit // 8] ^= 1 << bit % 8
        segments.path(1).write_bytes(changed)
        assert read(segments, 1, *payloads) == [b"first", None, b"third"]


def test_a_payload_from_another_place_or_segment_is_not_read(segments: Segments) -> None:
    make(segments, 1, b"same", b"same")
    make(segments, 2, b"same", b"same")
    frames = [HEADER.size + at * (PAYLOAD_HEAD + 4) for at in range(2)]
    whole = segments.path(1).read_bytes()
    first, second = (whole[at : at + PAYLOAD_HEAD + 4] for at in frames)
    with segments.path(1).open("r+b") as file:
        file.seek(frames[0])
        file.write(second + first)
    assert read(segments, 1, b"same", b"same") == [None, None]
    with segments.path(2).open("r+b") as file:
        file.seek(frames[0])
        file.write(first)
    assert read(segments, 2, b"same", b"same") == [None, b"same"]


def test_payloads_beyond_a_short_segment_are_damaged_and_a_missing_segment_is_named(
    segments: Segments,
) -> None:
    payloads = [b"first", b"second"]
    make(segments, 1, *payloads)
    os.truncate(segments.path(1), HEADER.size + 2 * PAYLOAD_HEAD + len(b"firstsec"))
    assert read(segments, 1, *payloads) == [b"first", None]
    with pytest.raises(StoreError, match=r"log-0000000002 is missing, and it contains messages\.$"):
        read(segments, 2, b"first")


def test_an_unreadable_sector_damages_only_its_own_payloads(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = [b"first", b"second", b"third"]
    make(segments, 1, *payloads)
    bad = HEADER.size + 2 * PAYLOAD_HEAD + len(b"first") + 1
    pread = os.pread

    def read_sectors(descriptor: int, length: int, offset: int) -> bytes:
        if offset <= bad < offset + length:
            raise OSError(errno.EIO, "Input/output error")
        return pread(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", read_sectors)
    assert read(segments, 1, *payloads) == [b"first", None, b"third"]


@pytest.mark.interpreted
@pytest.mark.usefixtures("small")
def test_segments_are_as_long_as_all_together_between_two_limits(segments: Segments) -> None:
    sizes = [make(segments, number) for number in range(1, 6)]
    assert [size // KIB for size in sizes] == [4, 4, 8, 16, 16]
    assert make(segments, 6, needed=50_000) == 50_000
    assert segments.total == sum(sizes) + 50_000
    assert segments.last == 6
    assert segments.before(4) == [1, 2, 3]


@pytest.mark.interpreted
@pytest.mark.usefixtures("small")
def test_a_segment_that_is_freed_is_the_next_one_when_it_is_long_enough(segments: Segments, tmp_path: Path) -> None:
    for number in range(1, 6):
        make(segments, number, b"old")
    inodes = {number: segments.path(number).stat().st_ino for number in range(1, 6)}
    segments.free(1)  # too short to be kept
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"log-000000000{number}" for number in range(2, 6)]
    segments.free(4)
    segments.free(5)  # one is kept, not two
    assert len(list(tmp_path.iterdir())) == 3
    assert make(segments, 6) == 16 * KIB
    assert segments.path(6).stat().st_ino == inodes[4]
    assert make(segments, 7) == 16 * KIB
    assert sorted(segments.find(0)) == [2, 3, 6, 7]
    assert segments.find(0)[6] == Segment(6, 6, 5, 0)
    segments.free(6)
    assert make(segments, 8, needed=40_000) == 40_000
    assert segments.path(8).stat().st_ino == inodes[4]


@pytest.mark.interpreted
@pytest.mark.usefixtures("small")
def test_closing_and_opening_leave_no_spare_one(segments: Segments, tmp_path: Path) -> None:
    for number in range(1, 6):
        make(segments, number)
    segments.free(5)
    assert len(list(tmp_path.iterdir())) == 5
    segments.find(0)
    assert len(list(tmp_path.iterdir())) == 5, "a look changes nothing"
    segments.remove_leftovers()
    assert len(list(tmp_path.iterdir())) == 4
    segments.free(4)
    segments.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"log-000000000{number}" for number in range(1, 4)]


def test_a_freed_segment_is_not_read_again(segments: Segments) -> None:
    make(segments, 1, b"content")
    assert read(segments, 1, b"content") == [b"content"]
    segments.free(1)
    with pytest.raises(StoreError, match="missing"):
        read(segments, 1, b"content")
    assert (segments.total, segments.last, segments.size(1)) == (0, 0, 0)


def test_a_segment_is_cut_at_its_end_and_never_made_longer(segments: Segments) -> None:
    make(segments, 1, b"content")
    end = HEADER.size + PAYLOAD_HEAD + 7
    for _ in range(2):
        segments.cut(1, end)
        assert segments.path(1).stat().st_size == segments.size(1) == segments.total == end
        assert read(segments, 1, b"content") == [b"content"]
    segments.cut(1, 1000)
    assert segments.path(1).stat().st_size == end
    segments.cut(9, 1000)  # which is not there


@pytest.mark.parametrize("name", ["posix_fallocate", "pwrite", "fsync"])
def test_a_segment_that_cannot_be_made_leaves_no_file(
    segments: Segments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, name, fail)
        with pytest.raises(OSError):
            make(segments, 1)
    assert list(tmp_path.iterdir()) == []
    assert segments.find(0) == {}
    assert segments.total == 0
    make(segments, 1)
    assert list(segments.find(0)) == [1]


def test_segments_in_the_folder_are_found_by_number(segments: Segments, tmp_path: Path) -> None:
    for number in (1, 2, 12):
        make(segments, number)
    for other in ("log-", "log-x", "log-12.bak", "other"):
        (tmp_path / other).write_bytes(b"not ours")
    again = Segments(tmp_path)
    assert again.find(0) == {number: Segment(number, number, number - 1, 0) for number in (1, 2, 12)}
    assert again.total == segments.total
    assert again.last == 12


@pytest.mark.parametrize("at", range(HEADER.size))
def test_a_header_with_any_byte_changed_is_refused_unless_all_before_is_applied(
    segments: Segments, tmp_path: Path, at: int
) -> None:
    make(segments, 3)
    make(segments, 4)
    with segments.path(3).open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    for applied in (0, 2, 3):
        with pytest.raises(StoreError, match="log-0000000003 is damaged, or was written by another version"):
            Segments(tmp_path).find(applied)
    again = Segments(tmp_path)
    assert list(again.find(4)) == [4]
    assert again.before(4) == [3]  # so that it can be freed


def test_the_lengths_of_segments_can_be_set_in_the_compiled_package_too(
    segments: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments_module, "SMALLEST", 4 * KIB)
    monkeypatch.setattr(segments_module, "LARGEST", 16 * KIB)
    for number in range(1, 6):
        make(segments, number)
    assert [segments.size(number) // KIB for number in range(1, 6)] == [4, 4, 8, 16, 16]
    assert segments.is_wasteful(0), "48 KiB are more than twice the largest one"


def test_a_segment_under_another_name_is_refused(segments: Segments, tmp_path: Path) -> None:
    make(segments, 3)
    segments.path(3).rename(segments.path(5))
    with pytest.raises(StoreError, match="log-0000000005 is damaged"):
        Segments(tmp_path).find(0)


@pytest.mark.interpreted
def test_only_so_many_files_are_kept_open(segments: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, "SMALLEST", 4 * KIB)
    monkeypatch.setattr(segments_module, "_OPEN_FILES", 3)
    for number in range(1, 11):
        make(segments, number, b"%d" % number)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for number in range(1, 11):
            assert read(segments, number, b"%d" % number) == [b"%d" % number]
    assert len(os.listdir("/proc/self/fd")) == before + 3
    segments.close()
    assert len(os.listdir("/proc/self/fd")) == before
