"""Administration and SIGKILL: confirmed changes survive, and unconfirmed ones are done entirely or not at all.

Entities and rules are created, changed and deleted one after the other by one process while another is killed. The
seed is printed, and can be given in CRASH_SEED to try one again.
"""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

from peeklock.client import ClientError, Message, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import FilterKind, Kind, Rule
from raw_client import eventually
from serving import ServedBroker

KILLS = 12
MOST = 25
"""The most steps between two kills."""


class Worker:
    """Makes changes until the broker is killed, and records those that were confirmed."""

    def __init__(self, connection_string: str, turn: int) -> None:
        self._connection_string = connection_string
        self._turn = turn
        self.confirmed: list[str] = []
        """Names of confirmed steps. The step after the last one may have been done or not."""
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        try:
            with AdministrationClient.from_connection_string(self._connection_string) as administration:
                for serial in range(1000):
                    self._step(administration, f"{self._turn}-{serial}")
        except ClientError:
            pass  # the broker was killed

    def _step(self, administration: AdministrationClient, name: str) -> None:
        topic, queue = f"t{name}", f"q{name}"
        administration.create(Kind.TOPIC, topic)
        self.confirmed.append(f"topic {name}")
        administration.create(Kind.SUBSCRIPTION, "s", topic=topic)
        self.confirmed.append(f"subscription {name}")
        administration.create_rule(topic, "s", Rule(name="r", filter=FilterKind.SQL, expression=f"n = '{name}'"))
        self.confirmed.append(f"rule {name}")
        administration.delete_rule(topic, "s", "$Default")
        self.confirmed.append(f"default {name}")
        administration.create(Kind.QUEUE, queue, {"MaxDeliveryCount": 3})
        self.confirmed.append(f"queue {name}")
        administration.update(Kind.QUEUE, queue, {"MaxDeliveryCount": 7})
        self.confirmed.append(f"update {name}")
        administration.delete(Kind.QUEUE, queue)
        self.confirmed.append(f"delete {name}")


def check(connection_string: str, confirmed: list[str]) -> None:
    """Check that confirmed changes hold, and that the next step was done entirely or not at all."""
    done = set(confirmed)
    names = sorted({step.partition(" ")[2] for step in confirmed})
    with AdministrationClient.from_connection_string(connection_string) as administration:
        for name in names:
            topic, queue = f"t{name}", f"q{name}"
            assert administration.exists(Kind.TOPIC, topic)
            if f"subscription {name}" in done:
                rules = {rule.name: rule for rule in administration.rules(topic, "s")}
                if f"rule {name}" in done:
                    assert rules["r"].expression == f"n = '{name}'"
                if f"default {name}" in done:
                    assert list(rules) == ["r"]
                elif f"rule {name}" not in done:
                    assert "$Default" in rules
            if f"delete {name}" in done:
                assert not administration.exists(Kind.QUEUE, queue)
            elif f"update {name}" in done:
                there = administration.exists(Kind.QUEUE, queue)
                assert not there or administration.get(Kind.QUEUE, queue).settings["MaxDeliveryCount"] == 7
            elif f"queue {name}" in done:
                assert administration.get(Kind.QUEUE, queue).settings["MaxDeliveryCount"] in (3, 7)


def count(connection_string: str, name: str) -> int:
    """Return how many of two messages, one of them with the name, match the rule of a topic."""
    with connect(connection_string, sasl="plain") as connection:
        sender = connection.sender(f"t{name}")
        for value in (name, "another"):
            sender.send(Message(application_properties={"n": value}, data=[b"x"]))
        return len(connection.receiver(f"t{name}/Subscriptions/s", mode="receive-and-delete").receive(5, timeout=1))


def test_confirmed_administration_survives_a_kill(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRASH_SEED") or random.randrange(2**32))
    print(f"CRASH_SEED={seed}")
    chance = random.Random(seed)
    broker = ServedBroker(tmp_path)
    steps = 0
    for turn in range(KILLS):
        worker = Worker(broker.connection_string, turn)
        enough = chance.randrange(MOST)
        eventually(lambda worker=worker, enough=enough: len(worker.confirmed) >= enough)  # type: ignore[misc]
        broker.kill()
        worker.join()
        broker.start()
        check(broker.connection_string, worker.confirmed)
        finished = [step for step in worker.confirmed if step.startswith("default ")]
        if finished:
            assert count(broker.connection_string, finished[-1].partition(" ")[2]) == 1
        steps += len(worker.confirmed)
    print(f"{steps} changes were confirmed")
    assert steps > KILLS
    assert broker.stop() == 0
    assert "Traceback" not in broker.log
