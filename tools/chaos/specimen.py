"""A data folder with something of everything, left by a broker that was killed: what damage is tried on.

A part of it is in the index, a part in SQLite's log and a part only in the log. Everything that it holds was
acknowledged.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Final
from uuid import UUID

from peeklock.amqp.types import Int, Timestamp
from tools.chaos import claiming
from tools.chaos.broker import BrokerProcess
from tools.chaos.client import Client, Taken
from tools.chaos.entities import (
    CLAIMED,
    CLAIMED_SESSIONS,
    ORDERS,
    PLAIN,
    RECEIVED_FROM,
    SCHEDULED,
    SESSIONS,
    TOPIC,
    UNIQUE,
    WITH_CLAIMS,
    address,
    copies,
    dead_letters,
)
from tools.chaos.history import Claim, Delivery, Gesture, History, Outcome, Send, Settlement, now

_TIMES: Final = 3
"""What is done is done before an orderly stop, before the index was asked something, and again before the kill."""
_AN_HOUR: Final = 3_600_000
_SESSIONS: Final = ("s1", "s2", "s3")
ALL_SESSIONS: Final = {"last-updated-time": Timestamp(253_402_300_800_000), "skip": Int(0), "top": Int(100)}


def make(folder: Path, seed: int) -> dict[str, Counter[str]]:
    """Make `folder/data`; how often each id is there, by entity."""
    history = History(folder / "history.jsonl")
    broker = BrokerProcess(folder, history)
    try:
        broker.start()
        for turn in range(_TIMES):
            client = Client(f"client-{turn}", address(broker.port), history)
            chance = Random(f"{seed}:{turn}")
            _fill(client, chance)
            if turn == 0:
                _fill_index(client)
                client.drop()
                assert broker.stop() == 0
                broker.start()
            elif turn == 1:
                # Whoever asks for the sessions waits until the index knows all.
                client.management(SESSIONS).request("get-message-sessions", ALL_SESSIONS)
        _write_log(client, chance)
        broker.kill()
        client.drop()
    finally:
        broker.close()
        history.close()
    return _expected(history)


def _fill(client: Client, chance: Random) -> None:
    for _ in range(12):
        client.send(PLAIN, chance.choice((1, 2, 5)))
        client.send(SESSIONS, chance.choice((1, 3)), session=chance.choice(_SESSIONS))
        client.send(TOPIC, chance.choice((1, 2)))
        client.send(UNIQUE, key=f"key-{chance.randrange(1000)}")
    client.schedule(SCHEDULED, 5, int(now()) + _AN_HOUR)
    client.send(SCHEDULED, 2, due=int(now()) + 2 * _AN_HOUR)
    for gesture, amount in ((Gesture.COMPLETE, 4), (Gesture.DEFER, 4), (Gesture.DEAD_LETTER, 4), (Gesture.ABANDON, 3)):
        _settle(client, client.receive(PLAIN, amount, 5.0), gesture)
    for path in copies(TOPIC):
        _settle(client, client.receive(path, 3, 5.0), Gesture.COMPLETE)
        _settle(client, client.receive(path, 1, 5.0), Gesture.DEAD_LETTER)
    for session in chance.sample(_SESSIONS, 2):
        held = client.accept(SESSIONS, session, 5.0)
        _settle(client, client.receive_of(held, 2, 5.0), Gesture.COMPLETE)
        client.call_session(held, "set", client.new_id() * chance.choice((1, 50)))
        held.receiver.close()
    client.send(CLAIMED, 12)
    for number in range(5):  # what a claim has of a session keeps other claims away from it
        client.send(CLAIMED_SESSIONS, 2, session=f"{client.name}-{number}")
    for entity in WITH_CLAIMS:
        whole, shortened = (_claim(client, chance, entity) for _ in range(2))
        assert claiming.read(client, entity, whole.id, whole.numbers)
        first, second, *_ = claiming.read(client, entity, shortened.id, shortened.numbers)
        for each, gesture in ((first, Gesture.COMPLETE), (second, Gesture.RELEASE)):
            numbers = (each.number, each.number)
            ended = claiming.end(client, entity, shortened.name, shortened.id, gesture, [each], numbers)
            assert ended.outcome is Outcome.OK


def _claim(client: Client, chance: Random, entity: str) -> Claim:
    """Set aside some messages, or whole sessions, which nobody ends."""
    owner, id = (UUID(int=chance.getrandbits(128)) for _ in range(2))
    claim = claiming.claim(client, entity, f"{client.name}-{id}", owner, id, 4, 0)
    assert claim.numbers
    return claim


def _fill_index(client: Client) -> None:
    """With what is not touched later: most of the other pages will be in SQLite's log."""
    for number in range(10):
        client.send(ORDERS, 12)
        client.send(SESSIONS, session=f"index-{number}")
        held = client.accept(SESSIONS, f"index-{number}", 5.0)
        client.call_session(held, "set", f"{number}" * 15_000)
        held.receiver.close()


def _write_log(client: Client, chance: Random) -> None:
    """After the claim, which may ask the index what waits, nothing here asks it."""
    _claim(client, chance, CLAIMED)
    taken = client.receive(PLAIN, 6, 5.0)
    for _ in range(15):
        client.send(PLAIN, 2)
        client.send(SESSIONS, session=_SESSIONS[0])
        client.send(TOPIC, 2)
    _settle(client, taken[:2], Gesture.COMPLETE)
    _settle(client, taken[2:4], Gesture.DEAD_LETTER)
    _settle(client, taken[4:], Gesture.DEFER)


def _settle(client: Client, taken: list[Taken], gesture: Gesture) -> None:
    for each in taken:
        assert client.settle(each, gesture).outcome is Outcome.OK


def _expected(history: History) -> dict[str, Counter[str]]:
    found = {place: Counter[str]() for path in RECEIVED_FROM for place in (path, dead_letters(path))}
    taken: dict[str, Delivery] = {}
    keys: set[str | None] = set()
    for record in history.records:
        match record:
            case Send():
                assert record.outcome is Outcome.OK
                if record.key is not None and record.key in keys:
                    continue  # it was detected as a duplicate
                keys.add(record.key)
                for path in copies(record.entity):
                    found[path].update(record.ids)
            case Settlement():
                delivery = taken[record.delivery]
                if record.gesture in (Gesture.COMPLETE, Gesture.DEAD_LETTER):
                    found[delivery.entity] -= Counter([delivery.id])
                if record.gesture is Gesture.DEAD_LETTER:
                    found[dead_letters(delivery.entity)].update([delivery.id])
            case Delivery():
                taken[record.name] = record
    return {path: ids for path, ids in found.items() if ids}
