"""Lock tokens: they cannot be guessed from earlier ones."""

from __future__ import annotations

from itertools import combinations, pairwise
from uuid import UUID

import pytest

from broker.world import Receiver, World
from peeklock.broker.errors import MessageLockLost
from peeklock.broker.lock_tags import DRAWN, TAG_BYTES, LockTags
from peeklock.broker.locks import KEPT_FOR, Lock, TagIndex
from peeklock.store.base import StoredMessage


def test_tags_have_sixteen_bytes_and_none_is_given_twice() -> None:
    tags = LockTags()
    given = [tags.next()[0] for _ in range(3 * DRAWN + 1)]
    assert {len(tag) for tag in given} == {TAG_BYTES}
    assert len(set(given)) == len(given)


def test_no_byte_of_a_tag_is_a_counter_or_stays_the_same() -> None:
    tags = LockTags()
    given = [tags.next()[0] for _ in range(4 * DRAWN)]
    for position in range(TAG_BYTES):
        found = [tag[position] for tag in given]
        assert len(set(found)) > 200
        steps = {(after - before) % 256 for before, after in pairwise(found)}
        assert len(steps) > 200


def test_no_byte_of_a_tag_follows_from_another() -> None:
    tags = LockTags()
    given = [tags.next()[0] for _ in range(4 * DRAWN)]
    for one, other in combinations(range(TAG_BYTES), 2):
        assert len({tag[one] ^ tag[other] for tag in given}) > 200


def test_a_tag_is_its_lock_token_with_the_first_groups_reversed() -> None:
    tags = LockTags()
    for tag, token in (tags.next() for _ in range(DRAWN)):
        assert UUID(bytes_le=tag) == UUID(bytes=token)


def test_two_processes_give_different_tags() -> None:
    first, second = LockTags(), LockTags()
    assert not {first.next() for _ in range(DRAWN)} & {second.next() for _ in range(DRAWN)}


def test_locks_are_found_by_their_tags_and_each_of_them_once() -> None:
    world = World()
    world.send("a", "b")
    receiver = Receiver(world, world.queue())
    a, b = receiver.locks
    assert world.queue().locks.find([b.tag, a.tag, b.tag]) == [b, a]
    for unknown in (a.message.sequence_number.to_bytes(16), a.tag[:-1] + bytes((a.tag[-1] ^ 1,)), b"", a.tag + b"x"):
        with pytest.raises(MessageLockLost):
            world.queue().locks.find([a.tag, unknown])


def test_a_tag_is_forgotten_with_its_lock() -> None:
    world = World()
    world.send("a", "b", "c", "d")
    queue = world.queue()
    completed, released, abandoned, lost = Receiver(world, queue).locks
    world.settle(queue.settlements.complete, completed)
    queue.settlements.release(released)
    world.settle(queue.settlements.abandon, abandoned)
    world.advance(queue.definition.lock_duration_ms)
    for lock in (completed, released, abandoned, lost):
        with pytest.raises(MessageLockLost):
            queue.locks.find([lock.tag])


def test_locks_are_found_by_their_tags_even_if_requests_are_rare() -> None:
    world = World()
    queue = world.queue()
    held: list[Lock] = []
    for asks in (0, 1, 0, 0, 3):
        for _ in range(asks):
            for lock in held:
                assert queue.locks.find([lock.tag]) == [lock]
        world.send(*map(str, range(2 * KEPT_FOR)))
        receiver = Receiver(world, queue, credit=2 * KEPT_FOR)
        world.settle(queue.settlements.complete_all, receiver.locks[1:])
        held.append(receiver.locks[0])
        queue.leave(receiver)
        with pytest.raises(MessageLockLost):
            queue.locks.find([receiver.locks[1].tag])
    assert queue.locks.find([lock.tag for lock in held]) == held


def test_the_index_by_tag_is_dropped_when_no_request_uses_it() -> None:
    locks: dict[int, Lock] = {}
    index = TagIndex(locks)

    def lend(number: int) -> Lock:
        message = StoredMessage(number, b"", 0)
        lock = locks[number] = Lock(message, number.to_bytes(16), number.to_bytes(16), 0, 0)
        if index.is_kept:
            index.add(lock)
        return lock

    first = lend(1)
    assert not index.is_kept
    assert index.find(first.tag) is first
    for number in range(2, KEPT_FOR + 6):
        assert index.is_kept
        lend(number)
    assert index.is_kept
    lend(KEPT_FOR + 6)
    assert not index.is_kept
    assert index.find((KEPT_FOR + 6).to_bytes(16)) is locks[KEPT_FOR + 6]
