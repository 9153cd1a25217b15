"""The notebooks for platforms: every name of ours in them exists, and their cells do here what they say.

A cell of Python is run as it stands. What only the platform has is replaced: its secrets, its storage, Delta's package.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import typer
from pyspark.sql import SparkSession
from test_pipeline_dead_letters import dead_letter, send

from commands import Commands
from peeklock.cli.main import compose
from peeklock.client import connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.spark.options import OPTIONS
from serving import ServedBroker

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "notebooks"
NOTEBOOKS = sorted(path.name for path in FOLDER.iterdir())
OF_SPARK = {"checkpointLocation", "path"}
"""Options that are not ours."""
STORAGE = re.compile(r'(?<=")(/Volumes|s3://bus-lake|Files|Tables)(?=[/"])')
COMMAND = re.compile(r"^(?:! *|%sh +)?(peeklock .*)$", re.MULTILINE)
WHEEL = re.compile(r"peeklock-[\w.-]+\.whl")


class Notebook(NamedTuple):
    text: list[str]
    """Cells for readers, and for the platform."""
    code: list[str]


def notebook(name: str) -> Notebook:
    source = (FOLDER / name).read_text(encoding="utf-8")
    if name.endswith(".ipynb"):
        made = json.loads(source)
        assert (made["nbformat"], len({cell["id"] for cell in made["cells"]})) == (4, len(made["cells"]))
        assert all(cell["outputs"] == [] for cell in made["cells"] if cell["cell_type"] == "code")
        cells = [(cell["cell_type"] == "code", "".join(cell["source"])) for cell in made["cells"]]
    else:
        head, _, rest = source.partition("\n")
        assert head == "# Databricks notebook source"
        parts = [part.strip() for part in rest.split("\n# COMMAND ----------\n")]
        cells = [
            (not part.startswith("# MAGIC"), re.sub(r"^# MAGIC ?", "", part, flags=re.MULTILINE)) for part in parts
        ]
    is_python = [is_code and not text.startswith("%") for is_code, text in cells]
    return Notebook(
        [text for (_, text), python in zip(cells, is_python, strict=True) if not python],
        [text for (_, text), python in zip(cells, is_python, strict=True) if python],
    )


def trees(name: str) -> Iterator[ast.AST]:
    for cell in notebook(name).code:
        yield from ast.walk(ast.parse(cell))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_option_of_a_notebook_exists(name: str) -> None:
    given: list[str] = []
    for node in trees(name):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "option":
            given.append(ast.literal_eval(node.args[0]))
        if isinstance(node, ast.Dict):
            given += [key.value for key in node.keys if isinstance(key, ast.Constant)]
    assert {"connectionString", "queue", "maxMessagesPerTrigger"} <= set(given)
    known = {option.name for option in OPTIONS.values()} | OF_SPARK
    assert set(given) <= known


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_function_that_a_notebook_imports_exists_and_accepts_its_arguments(name: str) -> None:
    ours: dict[str, Any] = {}
    called = 0
    for node in trees(name):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("peeklock"):
            module = importlib.import_module(str(node.module))
            for each in node.names:
                found = getattr(module, each.name, None) or importlib.import_module(f"{node.module}.{each.name}")
                ours[each.name] = found
    for node in trees(name):
        if isinstance(node, ast.Call) and (function := _function(node.func, ours)) is not None:
            arguments = [None] * len(node.args)
            inspect.signature(function).bind(*arguments, **{str(word.arg): None for word in node.keywords})
            called += 1
    assert called >= 4


def _function(called: ast.expr, ours: dict[str, Any]) -> Any:
    if isinstance(called, ast.Name):
        return ours.get(called.id)
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in ours:
        return getattr(ours[called.value.id], called.attr)
    return None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_command_of_a_notebook_is_one_and_has_the_flags(name: str) -> None:
    for text in notebook(name).text:
        for line in COMMAND.findall(text):
            command: Any = typer.main.get_command(compose(None))
            words = shlex.split(line)[1:]
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            flags = {flag for each in command.params for flag in each.opts}
            assert {word.split("=")[0] for word in words if word.startswith("--")} <= flags, line


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_installs_the_wheel_of_this_version(name: str) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    named = WHEEL.findall("\n".join(notebook(name).text))
    assert set(named) == {f"peeklock-{version}-py3-none-any.whl"}


def platform(connection_string: str) -> dict[str, Any]:
    """What a platform has and this machine cannot have: each place of secrets knows one."""

    def secret(*_: str, **__: str) -> str:
        return connection_string

    secrets = SimpleNamespace(get_secret_value=lambda SecretId: {"SecretString": connection_string})
    return {
        "dbutils": SimpleNamespace(
            secrets=SimpleNamespace(get=secret), library=SimpleNamespace(restartPython=lambda: None)
        ),
        "notebookutils": SimpleNamespace(credentials=SimpleNamespace(getSecret=secret)),
        "boto3": SimpleNamespace(client=lambda name: {"secretsmanager": secrets}[name]),
    }


@pytest.fixture
def orders(bus: ServedBroker) -> Iterator[Commands]:
    commands = Commands(bus)
    with AdministrationClient.from_connection_string(bus.connection_string) as administration:
        administration.create(Kind.QUEUE, "orders")
        yield commands
        administration.delete(Kind.QUEUE, "orders")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_the_cells_of_a_notebook_work_on_a_local_spark(
    spark: SparkSession,
    orders: Commands,
    bus: ServedBroker,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    dead_letter(orders, "orders", *[("north", "Bad", "no customer")] * 3)
    send(orders, "orders", "north", "south")
    names = {"spark": spark, **platform(bus.connection_string)}
    shown: dict[str, Any] = {}
    for cell in notebook(name).code:
        text = STORAGE.sub(lambda place: f"{tmp_path}/{place[1].replace('/', '-')}", cell)
        text = text.replace('format("delta")', 'format("parquet")').replace("import boto3\n", "")
        *statements, last = ast.parse(text).body
        exec(compile(ast.Module(statements, []), name, "exec"), names)  # noqa: S102
        if isinstance(last, ast.Expr):
            shown[text] = eval(compile(ast.Expression(last.value), name, "eval"), names)  # noqa: S307
        else:
            exec(compile(ast.Module([last], []), name, "exec"), names)  # noqa: S102
    assert [value for value in shown.values() if value is not None] == [2], "what was captured is counted"
    assert {row.dead_letter_reason: row["messages"] for row in names["tables"]["by_reason"].collect()} == {"Bad": 3}
    assert "Bad" in capsys.readouterr().out
    with connect(bus.connection_string) as connection:
        left = connection.management("orders").peek()
    assert sorted(message.body for message in left) == [b"order 0", b"order 1", b"order 2"]
