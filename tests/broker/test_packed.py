"""Packed reads: what is left in memory when they are answered."""

from __future__ import annotations

import gc

from broker.test_claiming_messages import letters
from broker.world import World
from peeklock.broker.errors import BrokerError
from peeklock.broker.packed import STRETCH
from peeklock.store.base import StoredMessage


def test_messages_are_freed_with_the_answer_and_not_by_the_garbage_collector() -> None:
    world = World()
    world.send(*letters(3 * STRETCH))
    found: list[int] = []

    def done(messages: list[StoredMessage] | BrokerError, last: int) -> None:
        assert isinstance(messages, list)
        found.extend(message.sequence_number for message in messages)

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        # One long span is read as a range, the short ones together as numbers.
        world.queue().read_packed([(1, STRETCH), (STRETCH + 2, STRETCH + 2), (STRETCH + 4, STRETCH + 4)], 1 << 20, done)
        world.run()
        gc.collect()
        left = [each for each in gc.garbage if isinstance(each, StoredMessage)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found == [*range(1, STRETCH + 1), STRETCH + 2, STRETCH + 4]
    assert left == []
