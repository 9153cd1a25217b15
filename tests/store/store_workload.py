"""A random workload for stores: a sequence of changes of all kinds, which depends only on the seed.

So the same changes can be committed to two stores, and after a kill to a store in memory, to compare the contents.
"""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from store_harness import FIELDS, Driver, as_dict, entity

from peeklock.store.base import ACTIVE, CLAIMED, DEFERRED, SCHEDULED, Body, Changes, Run, StoredMessage, StoreError
from peeklock.store.disk import reserve
from peeklock.store.disk import store as sqlite
from peeklock.store.disk.index import compaction as index_compaction
from peeklock.store.disk.index import index as sqlite_index
from peeklock.store.disk.log import segments
from peeklock.store.disk.log import writer as log
from peeklock.store.disk.store import DiskStore

CLOCK = 1
"""The entity whose last sequence number is the number of changes that were committed. It has no messages."""

NOBODY = 99_999
"""The id of an entity that never existed."""

SMALL = {
    (segments, "SMALLEST"): 4 * 1024,
    (segments, "LARGEST"): 32 * 1024,
    (segments, "_MAX_SPARES"): 2,
    (segments, "_READ_GAP"): 64,
    (segments, "_READ_BYTES"): 1024,
    (segments, "_OPEN_FILES"): 3,
    (log, "_RESERVE"): 1024,
    (reserve, "_SIZE"): 4096,
    (log, "_LONG"): 300,
    (log, "_MAX_PARTS"): 20,
    (sqlite, "_GROUP_ROWS"): 50,
    (sqlite, "_REPLAYED_RECORDS"): 7,
    (sqlite_index, "_LARGE_ROWS"): 60,
    (sqlite_index, "_LARGE_BYTES"): 30_000,
    (sqlite_index, "_ENTRY_ROWS"): 1,
    (sqlite_index, "_MAX_ROWS"): 200,
    (sqlite_index, "_PIECE_ROWS"): 9,
    (index_compaction, "_MOVED_ROWS"): 5,
    (index_compaction, "_MOVED_BYTES"): 3000,
}
"""Small sizes, so that rare events happen often. Compiled modules keep their own constants; the tests hold for both."""

CALLS = ("pwritev", "pwrite", "fdatasync", "fsync", "posix_fallocate", "truncate", "rename", "unlink")
"""The functions of `os` that change the disk."""

CLAIMS = (b"the first claim.", bytes(16), bytes(15) + b"1")

SESSIONS = ("", "a", "b\0", "\N{SNOWMAN}")


class Workload:
    """Creates the changes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.entities: list[int] = []
        self.messages: dict[int, dict[int, StoredMessage]] = {}
        """By entity id and sequence number."""
        self.forgotten: dict[int, int] = {}
        """By entity id: the time from which on the seen keys must still be stored."""
        self._last: dict[int, int] = {}
        self._skipped: dict[int, list[int]] = {}
        self._gone: list[int] = []
        self._ids = CLOCK
        self._bodies = 0
        self._now = 1000

    def next(self) -> tuple[Changes, bool]:
        """Return the next changes, and whether the store must refuse them; refused changes have no effect."""
        if self.count and self.random.random() < 0.05:
            return self._refused(), True
        self.count += 1
        self._now += self.random.randint(0, 3)
        changes = Changes(advances={CLOCK: self.count})
        if self.count == 1:
            changes.entities[CLOCK] = entity(CLOCK)
        if len(self.entities) < 3 or self.random.random() < 0.03:
            self._create(changes)
        if self.random.random() < 0.02:
            id = self.random.choice([CLOCK, *self.entities])
            changes.entities[id] = entity(id, path=f"renamed-{self.count}", definition={"of": self.count})
        self._append(changes)
        for _ in range(self._few()):
            self._update(changes)
        for _ in range(self._few()):
            self._rewrite(changes)
        self._remove(changes)
        for _ in range(self._few()):
            self._change_run(changes)
        if self.random.random() < 0.3:
            self._remove_run(changes)
        self._tell_others(changes)
        if len(self.entities) > 3 and self.random.random() < 0.05:
            self._drop(changes)
        return changes, False

    def _few(self) -> int:
        return self.random.choice([0, 0, 0, 1, 1, 2, 5])

    def _create(self, changes: Changes) -> None:
        """Create an entity: in half of the cases with the id of a dropped one, and sequence numbers from 1."""
        if self._gone and self.random.random() < 0.5:
            id = self._gone.pop(self.random.randrange(len(self._gone)))
            self.forgotten.pop(id, None)
        else:
            self._ids += 1
            id = self._ids
        changes.entities[id] = entity(id, path=f"created-{self.count}")
        self.entities.append(id)
        self.messages[id] = {}
        self._last[id] = 0
        self._skipped[id] = []

    def _drop(self, changes: Changes) -> None:
        id = self.random.choice(self.entities)
        changes.dropped_entities.append(id)
        self.entities.remove(id)
        self._gone.append(id)

    def _append(self, changes: Changes) -> None:
        body = None
        if self.random.random() < 0.3:
            body = self._body()
        for _ in range(self.random.choice([0, 1, 1, 2, 3, 12])):
            id = self.random.choice(self.entities)
            message = self._message(self._number(id), body)
            changes.appends.append((id, message))
            self.messages[id][message.sequence_number] = _copy(message)

    def _body(self) -> Body:
        there = [each.body for id in self.entities for each in self.messages[id].values() if each.body is not None]
        if there and self.random.random() < 0.3:
            again = self.random.choice(there)
            return Body(again.key, again.data)
        self._bodies += 1
        return Body(self._bodies, self._bytes())

    def _number(self, id: int) -> int:
        if self._skipped[id] and self.random.random() < 0.1:
            return self._skipped[id].pop(self.random.randrange(len(self._skipped[id])))
        number = self._last[id] + 1
        if self.random.random() < 0.1:
            number += self.random.randint(1, 4)
            self._skipped[id] += range(self._last[id] + 1, number)
        self._last[id] = number
        return number

    def _message(self, number: int, body: Body | None) -> StoredMessage:
        message = StoredMessage(number, self._bytes(), self._now, body=body)
        if self.random.random() < 0.4:
            return message  # a plain message, like nearly all
        if self.random.random() < 0.4:
            message.session_id = self.random.choice(SESSIONS)
        if self.random.random() < 0.2:
            message.annex = self.random.choice([b"", b"annex", self._bytes()])
        self._change(message)
        return message

    def _change(self, message: StoredMessage) -> None:
        message.state = self.random.choice([ACTIVE, ACTIVE, DEFERRED, SCHEDULED])
        message.delivery_count = self.random.choice([0, 0, 1, 7])
        message.enqueued_at = self._now
        message.expires_at = self.random.choice([None, self._now + self.random.randint(0, 50)])
        message.due_at = self.random.choice([None, self._now + self.random.randint(0, 50)])

    def _bytes(self) -> bytes:
        return self.random.randbytes(
            self.random.choice([0, 10, 100, 100, 500, 500, 3000] + [40_000] * (self.count % 9 == 0))
        )

    def _choose(self) -> tuple[int, StoredMessage] | None:
        id = self.random.choice(self.entities)
        messages = self.messages[id]
        if not messages:
            return None
        # Mostly an old message, because messages are settled mostly in order.
        numbers = sorted(messages)
        return id, messages[numbers[0] if self.random.random() < 0.7 else self.random.choice(numbers)]

    def _update(self, changes: Changes) -> None:
        if chosen := self._choose():
            id, message = chosen
            before = message.state
            self._change(message)
            changes.updates.append((id, _copy(message), before))

    def _rewrite(self, changes: Changes) -> None:
        if chosen := self._choose():
            id, message = chosen
            before, size_before = message.state, message.size
            self._change(message)
            message.payload = self._bytes()
            message.annex = self.random.choice([None, b"", b"new annex"])
            changes.rewrites.append((id, _copy(message), before, size_before))

    def _remove(self, changes: Changes) -> None:
        there = sum(len(self.messages[id]) for id in self.entities)
        for _ in range(self.random.choice([0, 1, 2, 4]) if there < 150 else 30):
            if chosen := self._choose():
                id, message = chosen
                changes.removals.append((id, self.messages[id].pop(message.sequence_number)))
        if self._gone and self.random.random() < 0.1:
            id = self.random.choice(self._gone)
            changes.removals += [(id, each) for each in self.messages[id].values()]
            self.messages[id] = {}

    def _change_run(self, changes: Changes) -> None:
        """Change the state of runs: mostly claims of active messages, and releases of claims."""
        if chosen := self._choose_run():
            id, run, before = chosen
            others = [ACTIVE, DEFERRED, SCHEDULED]
            after = self.random.choice([CLAIMED, CLAIMED, SCHEDULED] if before == ACTIVE else others)
            for number in range(run.first, run.last + 1):
                self.messages[id][number].state = after
            changes.run_updates.append((id, run, before, after))

    def _remove_run(self, changes: Changes) -> None:
        if chosen := self._choose_run():
            id, run, before = chosen
            for number in range(run.first, run.last + 1):
                del self.messages[id][number]
            changes.run_removals.append((id, run, before))

    def _choose_run(self) -> tuple[int, Run, int] | None:
        if not (chosen := self._choose()):
            return None
        id, message = chosen
        messages, state = self.messages[id], message.state
        first = last = message.sequence_number
        longest = self.random.choice([1, 5, 100])
        while last - first + 1 < longest and last + 1 in messages and messages[last + 1].state == state:
            last += 1
        return id, Run(first, last, sum(messages[number].size for number in range(first, last + 1))), state

    def _tell_others(self, changes: Changes) -> None:
        choices = [*self.entities, *self._gone[-1:], NOBODY]
        for _ in range(self._few()):
            claim = self.random.choice(choices), self.random.choice(CLAIMS)
            changes.claims[claim] = self.random.choice([None, b"", b"claim", self._bytes()])
        for _ in range(self._few()):
            state = self.random.choice([None, b"", b"state", self._bytes()])
            changes.session_states.append((self.random.choice(choices), self.random.choice(SESSIONS), state, self._now))
        for _ in range(self._few()):
            at = self._now - self.random.randint(0, 5)
            changes.seen.append((self.random.choice(choices), self.random.randbytes(16), at))
        if self.random.random() < 0.1:
            id, before = self.random.choice(choices), self._now - self.random.randint(0, 20)
            changes.forgotten.append((id, before))
            self.forgotten[id] = max(before, self.forgotten.get(id, 0))

    def _refused(self) -> Changes:
        """Return changes with one invalid message among valid ones."""
        id = self.random.choice(self.entities)
        fine = self._message(self._last[id] + 1, None)
        taken = [*self.messages[id], fine.sequence_number]
        owner, number = self.random.choice(
            [(NOBODY, 1), (id, self.random.choice(taken)), (self.random.choice(self._gone or [NOBODY]), 2**40)]
        )
        changes = Changes(appends=[(id, fine), (owner, self._message(number, None))])
        self.random.shuffle(changes.appends)
        if chosen := self._choose():
            changes.removals.append((chosen[0], _copy(chosen[1])))
        changes.session_states.append((id, "a", b"refused", self._now))
        changes.seen.append((id, bytes(16), self._now))
        return changes


def everything(driver: Driver, workload: Workload) -> dict[Any, Any]:
    """Read everything from a store that the workload may have changed."""
    found: dict[Any, Any] = {}
    now = workload._now
    for id in [CLOCK, *workload.entities, *workload._gone, NOBODY]:
        messages = driver.read(id, state=None, limit=100_000)
        found[id, "messages"] = [as_dict(each) for each in messages]
        for state in ACTIVE, DEFERRED, SCHEDULED, CLAIMED:
            found[id, state] = [as_dict(each) for each in driver.read(id, state=state, limit=100_000)]
            found[id, state, "runs"] = driver.runs(id, state=state)
            found[id, state, "some runs"] = (
                driver.runs(id, state=state, limit=7),
                driver.runs(id, state=state, max_bytes=2500),
                driver.runs(id, state=state, now=now, excluded=range(0, 5000, 7)),
                driver.runs(id, state=state, session_id="a", now=now + 10),
            )
        found[id, "some"] = driver.numbers(id, state=None, max_bytes=2500)
        found[id, "numbered"] = driver.numbered(id, *range(1, 5000, 3))
        found[id, "expired"] = driver.expired(id, now, 10), driver.expired(id, now + 100)
        found[id, "due"] = driver.due(id, now, 10), driver.due(id, now + 100)
        found[id, "counts"] = driver.session_counts(id)
        found[id, "sessions"] = driver.sessions(id), driver.sessions(id, updated_after=now - 50)
        for session in SESSIONS:
            found[id, session] = driver.state(id, session)
            found[id, session, "messages"] = driver.numbers(id, session_id=session, state=None)
        found[id, "seen"] = driver.seen(id, workload.forgotten.get(id, 0))
    return found


def live(folder: str, seed: int, calls: int) -> None:
    """Continue the workload after the last commit of the store, and die at this call that changes the disk.

    The number of each acknowledged change is written to standard output.
    """
    for (module, name), value in SMALL.items():
        setattr(module, name, value)
    _die_at(calls, random.Random(calls))
    driver = Driver(lambda call: DiskStore(Path(folder), call))
    workload = Workload(seed)
    committed = driver.entities[0].counters.last_sequence_number if driver.entities else 0
    while workload.count < committed:
        workload.next()
    answers: list[int] = []

    def done(committed: int, is_refused: bool, error: StoreError | None) -> None:
        assert (error is not None) is is_refused, error
        answers.append(committed)
        os.write(1, b"%d\n" % committed)

    for asked in range(1_000_000):
        changes, is_refused = workload.next()
        driver.store.commit(changes, partial(done, workload.count, is_refused))
        driver.wait(answers, asked - 8)


def fail(folder: str, seed: int, begin: int, end: int) -> None:
    """Commit a part of the workload on a disk with random failures, print the outcomes, and exit like a kill."""
    for (module, name), value in SMALL.items():
        setattr(module, name, value)
    driver = Driver(lambda call: DiskStore(Path(folder), call))
    randomness = random.Random(begin)
    chances = _fail_sometimes(randomness)
    workload = Workload(seed)
    steps = [workload.next()[0] for _ in range(end)][begin:]
    while steps:
        chances[0] = randomness.choice([0.0, 0.02, 0.2])
        count = randomness.randint(1, 12)
        group, steps = steps[:count], steps[count:]
        answers: list[StoreError | None] = []
        for changes in group:
            driver.store.commit(changes, answers.append)
        driver.wait(answers, len(group))
        for error in answers:
            print("failed" if error else "done")
    sys.stdout.flush()
    os._exit(9)


def _fail_sometimes(randomness: random.Random) -> list[float]:
    """Make calls that change the disk fail at random, before or after their effect.

    The caller may change the probability in the list that is returned.
    """
    chances = [0.0]

    def failing(function: Callable[..., Any], *arguments: Any) -> Any:
        if randomness.random() < chances[0]:
            if randomness.random() < 0.5:
                function(*arguments)
            raise OSError(randomness.choice([errno.EIO, errno.ENOSPC]), "simulated failure")
        return function(*arguments)

    # Except pwrite, which undoes a failed commit: if that fails too, a start may find the commit.
    for name in set(CALLS) - {"pwrite"}:
        setattr(os, name, partial(failing, getattr(os, name)))
    return chances


def _die_at(calls: int, randomness: random.Random) -> None:
    """Exit before this call, after it, or, if it writes, after a part of the bytes."""
    left = iter(range(calls - 1))

    def mortal(function: Callable[..., Any], *arguments: Any) -> Any:
        if next(left, None) is not None:
            return function(*arguments)
        try:
            how = randomness.choice(["before", "after", "halfway"])
            if how == "after":
                function(*arguments)
            elif how == "halfway" and function is write:
                descriptor, parts, offset = arguments
                whole = b"".join(parts)
                plain_write(descriptor, whole[: randomness.randrange(len(whole) + 1)], offset)
        finally:
            os._exit(9)

    write, plain_write = os.pwritev, os.pwrite
    for name in CALLS:
        setattr(os, name, partial(mortal, getattr(os, name)))


def _copy(of: StoredMessage) -> StoredMessage:
    return StoredMessage(**{name: getattr(of, name) for name in FIELDS})
