"""How large a batch may be, by what the peer said when the link was attached."""

from __future__ import annotations

from typing import Any, cast

import pytest

from peeklock.amqp.performatives import Attach
from peeklock.amqp.types import Symbol, ULong
from peeklock.client import Sender, batch_limit
from peeklock.client.batches import BATCH_FORMAT, envelope, pack

BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
KIB = 1024


class Attached:
    """What `batch_limit` looks at."""

    def __init__(self, max_message_size: int, properties: dict[Any, Any] | None) -> None:
        self.max_message_size = max_message_size
        self.remote = Attach(name="link", handle=0, role=True, properties=properties)


@pytest.mark.parametrize(
    ("largest_message", "properties", "limit"),
    [
        (0, None, 256 * KIB),
        (256 * KIB, None, 256 * KIB),
        (100 * KIB * KIB, None, KIB * KIB),
        (100 * KIB * KIB, {BATCH_SIZE: ULong(64 * KIB)}, 64 * KIB),
        (0, {BATCH_SIZE: ULong(64 * KIB)}, 64 * KIB),
        (32 * KIB, {BATCH_SIZE: ULong(64 * KIB)}, 32 * KIB),
        (32 * KIB, {BATCH_SIZE: "many"}, 32 * KIB),
    ],
)
def test_a_batch_keeps_to_the_smallest_limit(
    largest_message: int, properties: dict[Any, Any] | None, limit: int
) -> None:
    assert batch_limit(cast(Sender, Attached(largest_message, properties))) == limit


def test_one_message_goes_as_it_is_and_several_behind_an_envelope() -> None:
    head = envelope("id", "session", "key")
    assert pack([b"one"], head) == (b"one", 0, 1)
    batch = pack([b"one", b"two"], head)
    assert batch.payload.startswith(head)
    assert (batch.message_format, batch.messages) == (BATCH_FORMAT, 2)
