"""Packed reads keep no messages in memory after the answer."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from broker.test_claiming_messages import letters
from broker.world import World
from peeklock.broker.annex import DURABLE, Annex
from peeklock.broker.errors import BrokerError
from peeklock.broker.heads import head
from peeklock.broker.packed import STRETCH, pack
from peeklock.store.base import CLAIMED, DEFERRED, Body, StoredMessage


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


@pytest.mark.parametrize("are_copies", [False, True])
def test_each_message_of_a_page_is_as_it_is_peeked(are_copies: bool) -> None:
    body = Body(7, b"body" * 100)
    kinds: list[dict[str, Any]] = [
        {},
        {"delivery_count": 3},
        {"delivery_count": 300},
        {"state": DEFERRED},
        {"state": CLAIMED},
        {"expires_at": 99_000},
        {"annex": DURABLE},
        {"annex": Annex(priority=4).encode()},
        {"body": body},
    ]
    # Each kind behind each, and behind itself: what is kept from one head must not get into the next.
    order = [kind for first in kinds for second in kinds for kind in (first, second, second)]
    messages = [StoredMessage(number, b"bare", 90_000 + number, **kind) for number, kind in enumerate(order, 1)]
    expected = [head(each, None, None, True, are_copies) + each.content for each in messages]
    assert pack(messages, are_copies) == b"".join(len(each).to_bytes(4) + each for each in expected)
