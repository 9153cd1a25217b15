from __future__ import annotations

from collections.abc import Iterator

import pytest

from client.engine_server import EngineServer


@pytest.fixture
def server() -> Iterator[EngineServer]:
    with EngineServer() as running:
        yield running
