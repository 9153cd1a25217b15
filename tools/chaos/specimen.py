"""A data folder with every kind of content, left by a killed broker, for tests of damaged files.

A part of its content is in the index, a part in SQLite's log and a part only in the store's log. Everything in it was
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
from tools.chaos.history import Claim, Delivery, Disposition, History, Outcome, Send, Settlement, now

_TIMES: Final = 3
"""The operations are done three times: before a clean stop, before a query of the index, and before the kill."""
_AN_HOUR: Final = 3_600_000
_SESSIONS: Final = ("s1", "s2", "s3")
ALL_SESSIONS: Final = {"last-updated-time": Timestamp(253_402_300_800_000), "skip": Int(0), "top": Int(100)}


def make(folder: Path, seed: int) -> dict[str, Counter[str]]:
    """Create `folder/data`. Returns, by entity, how many messages have each id."""
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
                # This request waits until the index has everything.
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
    for disposition, amount in (
        (Disposition.COMPLETE, 4),
        (Disposition.DEFER, 4),
        (Disposition.DEAD_LETTER, 4),
        (Disposition.ABANDON, 3),
    ):
        _settle(client, client.receive(PLAIN, amount, 5.0), disposition)
    for path in copies(TOPIC):
        _settle(client, client.receive(path, 3, 5.0), Disposition.COMPLETE)
        _settle(client, client.receive(path, 1, 5.0), Disposition.DEAD_LETTER)
    for session in chance.sample(_SESSIONS, 2):
        held = client.accept(SESSIONS, session, 5.0)
        _settle(client, client.receive_of(held, 2, 5.0), Disposition.COMPLETE)
        client.call_session(held, "set", client.new_id() * chance.choice((1, 50)))
        held.receiver.close()
    client.send(CLAIMED, 12)
    for number in range(5):  # several sessions: a claim of a session excludes other claims
        client.send(CLAIMED_SESSIONS, 2, session=f"{client.name}-{number}")
    for entity in WITH_CLAIMS:
        whole, shortened = (_claim(client, chance, entity) for _ in range(2))
        assert claiming.read(client, entity, whole.id, whole.numbers)
        first, second, *_ = claiming.read(client, entity, shortened.id, shortened.numbers)
        for each, disposition in ((first, Disposition.COMPLETE), (second, Disposition.RELEASE)):
            numbers = (each.number, each.number)
            ended = claiming.end(client, entity, shortened.name, shortened.id, disposition, [each], numbers)
            assert ended.outcome is Outcome.OK


def _claim(client: Client, chance: Random, entity: str) -> Claim:
    """Claim some messages, or whole sessions, without ending the claim."""
    owner, id = (UUID(int=chance.getrandbits(128)) for _ in range(2))
    claim = claiming.claim(client, entity, f"{client.name}-{id}", owner, id, 4, 0)
    assert claim.numbers
    return claim


def _fill_index(client: Client) -> None:
    """Add content that does not change later, so that it stays in the index; later pages are in SQLite's log."""
    for number in range(10):
        client.send(ORDERS, 12)
        client.send(SESSIONS, session=f"index-{number}")
        held = client.accept(SESSIONS, f"index-{number}", 5.0)
        client.call_session(held, "set", f"{number}" * 15_000)
        held.receiver.close()


def _write_log(client: Client, chance: Random) -> None:
    """Add content that stays in the log: after the claim, which may query the index, nothing here queries it."""
    _claim(client, chance, CLAIMED)
    taken = client.receive(PLAIN, 6, 5.0)
    for _ in range(15):
        client.send(PLAIN, 2)
        client.send(SESSIONS, session=_SESSIONS[0])
        client.send(TOPIC, 2)
    _settle(client, taken[:2], Disposition.COMPLETE)
    _settle(client, taken[2:4], Disposition.DEAD_LETTER)
    _settle(client, taken[4:], Disposition.DEFER)


def _settle(client: Client, taken: list[Taken], disposition: Disposition) -> None:
    for each in taken:
        assert client.settle(each, disposition).outcome is Outcome.OK


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
                if record.disposition in (Disposition.COMPLETE, Disposition.DEAD_LETTER):
                    found[delivery.entity] -= Counter([delivery.id])
                if record.disposition is Disposition.DEAD_LETTER:
                    found[dead_letters(delivery.entity)].update([delivery.id])
            case Delivery():
                taken[record.name] = record
    return {path: ids for path, ids in found.items() if ids}
