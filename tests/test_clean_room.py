"""What the README and the pages print works on a fresh clone with nothing set up, as it is printed but for the port.

The port is chosen freely, so that tests can run side by side: the broker gets it by PEEKLOCK_PORT, and clients with the
connection string.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyarrow.parquet import ParquetFile

from pages import DOCS, README, block_with, commands
from peeklock.client import connect, parse_endpoint
from peeklock.server.broker import Options
from rooms import Room
from toolchains import toolchain

FREE_PORT = {"PEEKLOCK_PORT": "0"}


def at(connection_string: str, program: str) -> str:
    """The program, with another port."""
    address = f"127.0.0.1:{Options().port}"
    assert program.count(address) == 1
    return program.replace(address, re.findall(r"127\.0\.0\.1:\d+", connection_string)[0])


def printed(command: str, page: Path = README) -> str:
    """A command, which the page must print."""
    assert f"`{command}`" in page.read_text() or f"$ {command}\n" in page.read_text(), f"{page.name}: {command}"
    return command


def test_the_readme_by_make_and_the_pages_for_a_terminal(tmp_path: Path) -> None:
    room = Room(tmp_path / "peeklock", ".venv", checkout=True)
    with room.serving(printed("make serve"), **FREE_PORT) as connection_string:
        room.run(printed("pip install azure-servicebus"))
        program = block_with(README, "python", "azure.servicebus")
        assert len([line for line in program.splitlines() if line]) <= 10
        assert room.run_program(at(connection_string, program)) == "Hello\n"
        typed = commands(block_with(README, "console", "peeklock topic create"))
        there = {"PEEKLOCK_CONNECTION_STRING": connection_string}
        assert "a house" in [room.run(command, **there) for command in typed][-1]
        page = DOCS / "configuration.md"
        export, serve = commands(block_with(page, "console", "config export"))
        room.run(export, **there)
        with room.serving(serve.replace("--port 5673", "--port 0")) as copy:
            assert "orders" in room.run("peeklock topic list", PEEKLOCK_CONNECTION_STRING=copy)
    page = DOCS / "features" / "listening.md"
    assert room.run(printed("peeklock certificate", page)) == f"{room.folder}/peeklock-data/tls/authority.pem\n"
    page = DOCS / "features" / "command-line.md"
    (serve,) = commands(block_with(page, "console", "peeklock serve"))
    with room.serving(serve, **FREE_PORT) as connection_string:
        there = {"PEEKLOCK_CONNECTION_STRING": connection_string}
        said = [room.run(command, **there) for command in commands(block_with(page, "sh", "queue create"))]
        page = DOCS / "features" / "rest.md"
        toolchain("curl")
        address = f"http://localhost:{parse_endpoint(connection_string).port}"
        typed = [line.replace("http://localhost:5672", address) for line in commands(block_with(page, "sh", "curl"))]
        answers = [room.run(command, **there) for command in typed]
    assert "NoCustomer" in said[4], "the dead letters are listed"
    assert "Hello" in answers[2]
    assert 'Priority: "High"' in answers[2]
    assert (answers[3], answers[4]) == ("two", "")


@pytest.mark.spark
def test_the_readme_by_pip_with_spark(tmp_path: Path) -> None:
    toolchain("java")
    room = Room(tmp_path / "peeklock", checkout=True)
    room.make_environment()
    room.run(printed("pip install ."))
    room.run(printed("pip install '.[spark]'"))
    program = block_with(README, "python", "spark")
    assert len([line for line in program.splitlines() if line]) == 6
    bodies = [b"a lamp", b"a house", b"a car"]
    (send,) = commands(block_with(DOCS / "start" / "spark.md", "sh", "peeklock send"))
    with room.serving(printed("peeklock serve"), **FREE_PORT) as address:
        room.run(send, PEEKLOCK_CONNECTION_STRING=address)
        room.run_program(at(address, program))
        with connect(address) as connection:
            assert connection.management("queue").peek() == []
        typed = commands(block_with(DOCS / "pipelines.md", "sh", "pipeline capture"))
        assert typed[0] == "pip install '.[spark]'"
        room.run("peeklock send queue first second --subject created", PEEKLOCK_CONNECTION_STRING=address)
        for command in typed[1:]:
            room.run(command, PEEKLOCK_CONNECTION_STRING=address)
    # Rows of a file have one order, the files of several tasks none.
    assert sorted(bodies_in(room.folder / "lake" / "messages")) == sorted(bodies)
    # What was compacted is kept for a while beside what came of it.
    assert set(bodies_in(room.folder / "captured")) == {b"first", b"second"}


def bodies_in(folder: Path) -> list[bytes]:
    """The bodies of all Parquet files below, read without Spark."""
    files = sorted(folder.rglob("*.parquet"))
    return [body for file in files for body in ParquetFile(file).read(["body"])["body"].to_pylist()]
