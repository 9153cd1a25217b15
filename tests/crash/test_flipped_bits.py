"""One bit of a data folder is flipped after a kill: nothing changes, or the start is refused, or damage is reported.

`make flips` tries two thousand bits; docs/chaos.md has more on it.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator

import pytest

from peeklock.store.base import ACTIVE, CLAIMED, DEFERRED, SCHEDULED
from tools.chaos.flips import Contents, Specimen, Verdict, compare, new_folder
from tools.chaos.reading import Inconsistent

FLIPS = 50
SERVED = 10
"""One of so many flips is tested on a whole broker."""
SEED = 1


@pytest.fixture(scope="module")
def specimen() -> Iterator[Specimen]:
    folder = new_folder(SEED)
    yield Specimen(folder, SEED)
    shutil.rmtree(folder)


def test_a_flipped_bit_changes_nothing_or_is_refused_or_reported(specimen: Specimen) -> None:
    verdicts = Counter(specimen.flip(f"{SEED}:{at}", serve=at % SERVED == 0)[0] for at in range(FLIPS))
    assert verdicts.keys() == set(Verdict), "each of the three is tried"


def test_the_folder_has_every_kind_of_content(specimen: Specimen) -> None:
    states = Counter(values["state"] for values in specimen.contents.messages.values())
    assert sum(states.values()) > 400
    assert set(states) == {ACTIVE, DEFERRED, SCHEDULED, CLAIMED}
    assert {path for path, _ in specimen.contents.messages} >= {"plain/$DeadLetterQueue", "news/subscriptions/first"}
    assert any(values["session_id"] for values in specimen.contents.messages.values())
    claims = [key for key in specimen.contents.found if isinstance(key, tuple) and key[1] == "claim"]
    assert {entity for entity, *_ in claims} == {"claimed", "claimed-sessions"}
    assert len(claims) > 10
    assert {file.name for file in specimen.data.iterdir()} >= {
        "peeklock.db",
        "peeklock.db-wal",
        "peeklock.sums",
        "synced",
    }


# --- the comparison ---


def contents(*, damaged: tuple[int, ...] = (), **messages: str) -> Contents:
    numbered = {("q", number): {"id": id, "content": text} for number, (id, text) in enumerate(messages.items(), 1)}
    found = Contents(found={"q": "queue"}, messages=numbered, counters={"q": len(numbered)})
    for number in damaged:
        del found.messages["q", number]
        found.damaged.add(("q", number))
    return found


WHOLE = contents(a="x", b="y")


def test_equal_contents_are_unchanged() -> None:
    assert compare(WHOLE, contents(a="x", b="y")) is Verdict.UNCHANGED


def test_one_message_may_be_reported() -> None:
    assert compare(WHOLE, contents(a="x", b="y", damaged=(2,))) is Verdict.REPORTED


@pytest.mark.parametrize(
    "found",
    [
        contents(a="x"),
        contents(a="x", b="z"),
        contents(a="x", b="y", c="z"),
        contents(a="x", b="y", damaged=(1, 2)),
        Contents(found={}, messages=WHOLE.messages, counters=WHOLE.counters),
        Contents(found=WHOLE.found, messages=WHOLE.messages, counters={"q": 3}),
        Contents(found=WHOLE.found, messages=WHOLE.messages, counters=WHOLE.counters, damaged={("q", 1)}),
    ],
)
def test_any_other_difference_is_inconsistent(found: Contents) -> None:
    with pytest.raises(Inconsistent):
        compare(WHOLE, found)
