"""The timetable looks when a message is due, one look at a time, and misses no message."""

from __future__ import annotations

from collections.abc import Callable

from peeklock.broker.agenda import Agenda, ManualClock
from peeklock.broker.retries import RETRY_MS
from peeklock.broker.timetable import BATCH, BATCH_BYTES, Finished, Timetable
from peeklock.store.base import Position, StoredMessage, StoreError, TimedRead


def enqueued_at(message: StoredMessage) -> int:
    return message.enqueued_at


class Bench:
    """A timetable with a store of due times, and a record of its calls."""

    def __init__(self) -> None:
        self.clock = ManualClock(1_000_000)
        self.agenda = Agenda(self.clock)
        self.due: list[int] = []
        self.reads: list[TimedRead] = []
        self.acts: list[tuple[int, Finished]] = []
        """The number of messages of each batch, and the callback to call."""
        self.may_begin = True
        self.held = 0
        self.looks = 0
        self.positions: list[Position | None] = []
        """The positions after which the reads began."""
        self.timetable = Timetable(self.agenda, self._read, enqueued_at, self._act, self._begin, self._end)

    def run(self) -> None:
        self.agenda.run()

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.run()

    def answer(self) -> None:
        """Answer the read with the current content of the store."""
        now = self.clock()
        past = sorted(at for at in self.due if at <= now)[:BATCH]
        others = sorted(self.due)[len(past) :]
        self.reads.pop(0)(([StoredMessage(1, b"", at) for at in past], others[0] if others else None))
        self.run()

    def finish(self, well: bool = True) -> None:
        count, finished = self.acts.pop(0)
        if well:
            del self.due[:count]
        finished(well)
        self.run()

    def answer_with(self, times: list[int], following: int | None) -> None:
        """Answer the read with these messages. The number of a message is also its due time."""
        self.reads.pop(0)(([StoredMessage(at, b"", at) for at in times], following))
        self.run()

    def _read(self, now: int, limit: int, max_bytes: int, after: Position | None, done: TimedRead) -> None:
        assert (now, limit, max_bytes) == (self.clock(), BATCH, BATCH_BYTES)
        self.positions.append(after)
        self.looks += 1
        self.reads.append(done)

    def _act(self, messages: list[StoredMessage], finished: Callable[[bool], None]) -> None:
        self.acts.append((len(messages), finished))

    def _begin(self) -> bool:
        self.held += self.may_begin
        return self.may_begin

    def _end(self) -> None:
        self.held -= 1

    def expect_in(self, milliseconds: int) -> None:
        self.due.append(self.clock() + milliseconds)
        self.due.sort()
        self.timetable.expect(self.clock() + milliseconds)


def test_nothing_is_read_before_something_is_due() -> None:
    bench = Bench()
    bench.expect_in(1000)
    bench.advance(999)
    assert bench.looks == 0
    bench.advance(1)
    assert bench.looks == 1


def test_the_soonest_counts() -> None:
    bench = Bench()
    bench.expect_in(3000)
    bench.expect_in(1000)
    bench.expect_in(2000)
    bench.advance(1000)
    assert bench.looks == 1
    bench.answer()
    bench.finish()
    bench.advance(999)
    assert bench.looks == 1
    bench.advance(1)
    assert bench.looks == 2


def test_the_store_returns_the_next_due_time() -> None:
    bench = Bench()
    bench.due = [bench.clock() + 5000]
    bench.timetable.look()
    bench.answer()
    assert bench.acts == []
    bench.advance(5000)
    assert bench.looks == 2


def test_a_whole_batch_is_followed_by_the_next_at_once() -> None:
    bench = Bench()
    bench.due = [bench.clock()] * (BATCH + 1)
    bench.timetable.look()
    bench.answer()
    bench.finish()
    assert bench.looks == 2
    bench.answer()
    assert bench.acts[0][0] == 1
    bench.finish()
    assert bench.looks == 2


def test_reads_for_due_messages_run_one_at_a_time_and_are_repeated_for_newly_due_ones() -> None:
    bench = Bench()
    bench.expect_in(1000)
    bench.advance(1000)
    bench.answer()
    bench.expect_in(500)
    bench.advance(500)
    assert bench.looks == 1
    bench.finish()
    assert bench.looks == 2


def test_after_a_failure_the_read_is_repeated_after_a_delay() -> None:
    bench = Bench()
    bench.expect_in(0)
    bench.run()
    bench.answer()
    bench.expect_in(0)
    bench.run()
    bench.finish(well=False)
    assert bench.looks == 1
    bench.advance(RETRY_MS)
    assert bench.looks == 2


def test_a_read_that_failed_is_tried_again_in_a_while() -> None:
    bench = Bench()
    bench.timetable.look()
    bench.reads.pop()(StoreError("the disk is on fire"))
    assert bench.held == 0
    bench.advance(RETRY_MS - 1)
    assert bench.looks == 1
    bench.advance(1)
    assert bench.looks == 2


def test_a_bad_moment_is_waited_out() -> None:
    bench = Bench()
    bench.may_begin = False
    bench.expect_in(0)
    bench.run()
    assert bench.looks == 0
    bench.may_begin = True
    bench.advance(RETRY_MS)
    assert bench.looks == 1
    assert bench.held == 1
    bench.answer()
    assert bench.held == 1
    bench.finish()
    assert bench.held == 0


def test_a_batch_that_ends_early_is_followed_by_the_next_behind_it() -> None:
    bench = Bench()
    bench.timetable.look()
    bench.answer_with([10, 20], 30)
    bench.finish()
    bench.answer_with([30, 40], 2_000_000)
    bench.finish()
    assert bench.positions == [None, (20, 20)]
    bench.advance(1_000_000)
    assert bench.positions == [None, (20, 20), None]


def test_a_message_returned_before_the_position_is_read_again() -> None:
    bench = Bench()
    bench.timetable.look()
    bench.answer_with([10, 20], 30)
    bench.timetable.expect(10)  # while the batch is dealt with
    bench.finish()
    bench.answer_with([10, 20], 30)
    bench.acts.pop()[1](True)
    bench.timetable.expect(20)  # before the next is read
    bench.run()
    bench.answer_with([20], 30)
    bench.finish()
    assert bench.positions == [None, None, None, (20, 20)]


def test_a_due_message_missing_in_the_read_is_searched_for_after_a_delay() -> None:
    bench = Bench()
    bench.timetable.look()
    bench.answer_with([], 10)
    assert bench.looks == 1
    bench.advance(RETRY_MS)
    assert bench.looks == 2


def test_after_a_failure_it_begins_anew() -> None:
    bench = Bench()
    bench.timetable.look()
    bench.answer_with([10, 20], 30)
    bench.finish(well=False)
    bench.advance(RETRY_MS)
    assert bench.positions == [None, None]


def test_a_timetable_stopped_during_a_read_does_not_read_again() -> None:
    for found in ([], [1], [2_000_000_000]):
        bench = Bench()
        bench.due = found
        bench.timetable.look()
        bench.timetable.stop()
        bench.answer()
        if bench.acts:
            bench.finish(well=False)
        bench.timetable.expect(bench.clock())
        bench.advance(10 * RETRY_MS)
        assert (bench.looks, bench.reads) == (1, [])
        assert bench.held == 0


# --- mistakes of ours ---


def test_a_failure_with_due_messages_does_not_end_the_timetable() -> None:
    bench = Bench()
    fails = True

    def act(messages: list[StoredMessage], finished: Finished) -> None:
        if fails:
            raise ValueError("a mistake of ours")
        bench._act(messages, finished)

    bench.timetable = Timetable(bench.agenda, bench._read, enqueued_at, act, bench._begin, bench._end)
    bench.expect_in(1000)
    bench.advance(1000)
    bench.answer()
    assert (bench.looks, bench.held) == (1, 0)
    fails = False
    bench.advance(RETRY_MS)
    bench.answer()
    bench.finish()
    assert (bench.due, bench.looks, bench.held) == ([], 2, 0)


def test_a_callback_that_ran_before_a_failure_is_not_run_twice() -> None:
    bench = Bench()

    def act(messages: list[StoredMessage], finished: Finished) -> None:
        finished(True)
        raise ValueError("a mistake of ours")

    bench.timetable = Timetable(bench.agenda, bench._read, enqueued_at, act, bench._begin, bench._end)
    bench.expect_in(1000)
    bench.advance(1000)
    bench.answer()
    assert bench.held == 0


def test_a_read_that_fails_at_once_is_made_again() -> None:
    bench = Bench()
    fails = True

    def read(now: int, limit: int, max_bytes: int, after: Position | None, done: TimedRead) -> None:
        if fails:
            raise ValueError("a mistake of ours")
        bench._read(now, limit, max_bytes, after, done)

    bench.timetable = Timetable(bench.agenda, read, enqueued_at, bench._act, bench._begin, bench._end)
    bench.expect_in(1000)
    bench.advance(1000)
    assert bench.held == 0
    fails = False
    bench.advance(RETRY_MS)
    assert bench.looks == 1
