"""Options of a node that cannot work: one sentence on standard error says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peeklock.server.replication.settings import NodeSettings, parse_address
from store.postgres_server import make_server

SOURCE = Path(__file__).parents[3] / "src"
NOWHERE = "host=127.0.0.1 port=1"
WITHOUT_PSYCOPG = "import sys; sys.modules['psycopg'] = None; from peeklock.cli.main import main; main()"


def run(*arguments: str, program: tuple[str, ...] = ("-m", "peeklock")) -> tuple[int, str]:
    """Run the command, which must fail or end by itself. Return its exit code and what it printed."""
    ended = subprocess.run(
        [sys.executable, *program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--store", NOWHERE, "--memory"], "--store and --memory exclude each other"),
        (["--store", NOWHERE, "--data", "data"], "--store and --data exclude each other"),
        (["--node", "one"], "--node requires --store"),
        (["--lease-seconds", "3"], "--lease-seconds requires --store"),
        (["--store", NOWHERE, "--schema", "Not one"], "The schema 'Not one' must have"),
        (["--store", NOWHERE, "--advertise", "host"], "--advertise must be HOST:PORT"),
        (["--store", NOWHERE, "--lease-seconds", "0.5"], "--lease-seconds must be 1 or more, not 0.5"),
        (["--store", NOWHERE], "PostgreSQL cannot be reached"),
    ],
)
def test_serve_names_the_mistake(arguments: list[str], error: str) -> None:
    code, printed = run("serve", "--port", "0", *arguments)
    assert code == 2
    assert error in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("arguments", [["serve", "--port", "0", "--store", NOWHERE], ["store", "init", NOWHERE]])
def test_without_the_extra_the_command_says_how_to_install_it(arguments: list[str]) -> None:
    code, printed = run(*arguments, program=("-c", WITHOUT_PSYCOPG))
    assert code == 2
    assert "pip install 'peeklock[postgres]'" in printed


def test_a_server_without_a_synchronous_standby_is_refused_and_init_creates_the_tables_once() -> None:
    with make_server() as server:
        code, printed = run("serve", "--port", "0", "--store", server.url)
        assert code == 2
        assert "no synchronous standby" in printed
        assert "were created" in run("store", "init", server.url, "--schema", "orders")[1]
        assert "has its tables already" in run("store", "init", server.url, "--schema", "orders")[1]
        assert server.query("SELECT version FROM orders.version") == [(1,)]


def test_the_default_address_for_other_nodes_is_never_a_wildcard() -> None:
    settings = NodeSettings(url="")
    assert settings.address("10.0.0.7", 5672) == "10.0.0.7:5672"
    assert settings.address("::1", 5672) == "[::1]:5672"
    for wildcard in ("", "0.0.0.0", "::"):
        assert not settings.address(wildcard, 5672).startswith(wildcard or ":")
    assert NodeSettings(url="", advertise="peeklock-0:1234").address("0.0.0.0", 5672) == "peeklock-0:1234"


def test_an_address_of_ipv6_is_in_brackets() -> None:
    assert parse_address("[::1]:5672") == ("::1", 5672)
    assert parse_address("peeklock-0.peeklock:5672") == ("peeklock-0.peeklock", 5672)


def test_two_processes_of_the_same_name_are_different_owners() -> None:
    assert NodeSettings(url="", name="one").owner != NodeSettings(url="", name="one").owner
