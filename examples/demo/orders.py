"""The orders of an invented shop: the sender that customers use, and the receiver that processes orders.

Some orders cannot be processed, for causes that the triage can find: a release of the app that omits the currency, gift
cards without an amount, and a closed warehouse. `__main__` runs the sender and the receiver.
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from peeklock.client import Connection, Message, Properties, ReceivedMessage, Receiver

TOPIC: Final = "orders"
FULFILMENT: Final = "orders/Subscriptions/fulfilment"
LAKE: Final = "orders/Subscriptions/lake"
MOST_DELIVERIES: Final = 3

BAD_RELEASE: Final = "4.2.0"
CLOSED_WAREHOUSE: Final = "Porto"
_RELEASES: Final = ("4.0.3", "4.1.0", "4.1.1", BAD_RELEASE)
_WAREHOUSES: Final = ("Gdansk", "Lyon", "Malmo", CLOSED_WAREHOUSE)
_REGIONS: Final = ("north", "east", "south", "west")
_GOODS: Final = ("lamp", "desk", "chair", "shelf", "rug", "clock", "gift card")
_SLICES_PER_SECOND: Final = 10
_WAIT: Final = 0.5
"""Seconds to wait for an order."""


# --- sending


def make_orders(count: int, seed: int = 7) -> Iterator[Message]:
    """Make orders, the same ones for the same seed. A few occur twice, with the same message id."""
    chance = random.Random(seed)
    for number in range(1, count + 1):
        order = _order(chance, number)
        yield order
        if chance.random() < 0.01:
            yield order


def _order(chance: random.Random, number: int) -> Message:
    release = chance.choices(_RELEASES, (3, 5, 8, 2))[0]
    # A few customers place most of the orders.
    customer = f"customer-{min(int(chance.paretovariate(0.6)), 400):03}"
    goods = [chance.choice(_GOODS) for _ in range(min(int(chance.paretovariate(1.2)), 40))]
    lines = [{"article": article, "count": chance.randint(1, 4), "price": chance.randint(5, 400)} for article in goods]
    for line in lines:
        if line["article"] == "gift card" and chance.random() < 0.2:
            line["price"] = 0
    body: dict[str, Any] = {"order": number, "customer": customer, "currency": "EUR", "lines": lines}
    if release == BAD_RELEASE and chance.random() < 0.7:
        del body["currency"]
    return Message(
        properties=Properties(
            message_id=f"order-{number:06}",
            group_id=customer,
            subject="gift" if all(each == "gift card" for each in goods) else "order",
            content_type="application/json",
        ),
        application_properties={
            "region": chance.choice(_REGIONS),
            "release": release,
            "warehouse": chance.choices(_WAREHOUSES, (4, 4, 4, 1))[0],
            "lines": len(lines),
        },
        data=[json.dumps(body).encode()],
    )


def send_orders(connection: Connection, count: int, seconds: float) -> int:
    """Send orders at a varying rate, and return the number of messages, duplicates included."""
    sender = connection.sender(TOPIC)
    orders = list(make_orders(count))
    slices = max(1, round(seconds * _SLICES_PER_SECOND))
    waves = [1.2 + math.sin(4 * math.pi * number / slices) for number in range(slices)]
    sent, started, so_far = 0, time.monotonic(), 0.0
    for number, wave in enumerate(waves):
        so_far += wave
        upto = round(len(orders) * so_far / sum(waves))
        sent += sender.send_all(orders[sent:upto])
        time.sleep(max(0.0, started + seconds * (number + 1) / slices - time.monotonic()))
    return sent


# --- processing


def fulfil(connection: Connection, all_sent: threading.Event) -> dict[str, int]:
    """Process orders until all were sent and settled, and count them by result."""
    ends = {"completed": 0, "dead-lettered": 0, "abandoned": 0}
    with connection.receiver(FULFILMENT, credit=100) as receiver:
        while True:
            done = all_sent.is_set()
            orders = receiver.receive(100, timeout=_WAIT)
            if not orders and done:
                break
            for order in orders:
                ends[_work_on(receiver, order)] += 1
        receiver.confirm()
    return ends


def _work_on(receiver: Receiver, received: ReceivedMessage) -> str:
    message = received.message
    order = json.loads(message.data[0])
    if (message.application_properties or {})["warehouse"] == CLOSED_WAREHOUSE:
        receiver.modify(received)  # abandoned; the broker dead-letters it after the maximum of deliveries
        return "abandoned"
    problem = _problem(order)
    if problem is None:
        receiver.accept(received)
        return "completed"
    reason, description = problem
    info = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
    receiver.reject(received, "com.microsoft:dead-letter", info=info)
    return "dead-lettered"


def _problem(order: dict[str, Any]) -> tuple[str, str] | None:
    if "currency" not in order:
        return "NoCurrency", f"order {order['order']} has no currency"
    for position, line in enumerate(order["lines"], 1):
        if line["price"] <= 0:
            return "NoAmount", f"line {position} of order {order['order']} costs nothing: {line['article']}"
    return None
