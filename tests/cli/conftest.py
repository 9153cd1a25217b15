"""Fixtures: a broker for the tests of a module, and the commands that they run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commands import Commands
from serving import ServedBroker


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    broker = ServedBroker(tmp_path_factory.mktemp("broker"))
    yield broker
    broker.stop()


@pytest.fixture
def commands(shared_broker: ServedBroker) -> Commands:
    return Commands(shared_broker)
