"""Lock tokens: nobody can guess one from those that were given before."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest

from broker.world import Receiver, World
from peeklock.broker.errors import MessageLockLost
from peeklock.broker.lock_tags import DRAWN, TAG_BYTES, LockTags


def test_tags_have_sixteen_bytes_and_none_is_given_twice() -> None:
    tags = LockTags()
    given = [tags.next() for _ in range(3 * DRAWN + 1)]
    assert {len(tag) for tag in given} == {TAG_BYTES}
    assert len(set(given)) == len(given)


def test_no_byte_of_a_tag_is_a_counter_or_stays_the_same() -> None:
    tags = LockTags()
    given = [tags.next() for _ in range(4 * DRAWN)]
    for position in range(TAG_BYTES):
        found = [tag[position] for tag in given]
        assert len(set(found)) > 200
        steps = {(after - before) % 256 for before, after in pairwise(found)}
        assert len(steps) > 200


def test_a_tag_is_its_lock_token_in_both_byte_orders() -> None:
    tags = LockTags()
    for tag in (tags.next() for _ in range(DRAWN)):
        assert UUID(bytes_le=tag) == UUID(bytes=tag)


def test_two_processes_give_different_tags() -> None:
    first, second = LockTags(), LockTags()
    assert not {first.next() for _ in range(DRAWN)} & {second.next() for _ in range(DRAWN)}


def test_locks_are_found_by_their_tags_and_each_of_them_once() -> None:
    world = World()
    world.send("a", "b")
    receiver = Receiver(world, world.queue())
    a, b = receiver.locks
    assert world.queue().find_locks([b.tag, a.tag, b.tag]) == [b, a]
    for unknown in (a.message.sequence_number.to_bytes(16), a.tag[:-1] + bytes((a.tag[-1] ^ 1,)), b"", a.tag + b"x"):
        with pytest.raises(MessageLockLost):
            world.queue().find_locks([a.tag, unknown])


def test_a_tag_is_forgotten_with_its_lock() -> None:
    world = World()
    world.send("a", "b", "c", "d")
    queue = world.queue()
    completed, released, abandoned, lost = Receiver(world, queue).locks
    world.settle(queue.complete, completed)
    queue.release(released)
    world.settle(queue.abandon, abandoned)
    world.advance(queue.definition.lock_duration_ms)
    for lock in (completed, released, abandoned, lost):
        with pytest.raises(MessageLockLost):
            queue.find_locks([lock.tag])
    assert queue._locks_by_tag.keys() == {lock.tag for lock in queue._locks.values()}
