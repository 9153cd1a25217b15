"""What the pages under Start and How-to print works as it is printed, in an environment in which nothing is set up.

Ports are chosen freely, so that tests can run side by side, and folders at the root of the file system are replaced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from pages import DOCS, README, block_with, blocks, commands
from rooms import Room
from toolchains import toolchain

START = DOCS / "start"
HOW_TO = DOCS / "how-to"
ANY_PORT = {"PEEKLOCK_PORT": "0"}

NOT_RUN = {
    "docker compose up --detach --wait": "there is no container engine; its command and health check are run",
    "make serve": "test_clean_room runs it as the README prints it",
    "pip install '.[postgres]'": "the nodes of tests/server/replication run with this extra",
    "export PEEKLOCK_STORE='postgresql://peeklock@db-1,db-2/peeklock?target_session_attrs=read-write'": (
        "it names two machines with PostgreSQL"
    ),
    "peeklock serve --config config.json --host 0.0.0.0 --node node-1 --advertise node-1.internal:5672": (
        "it requires PostgreSQL; tests/server/replication/test_nodes.py starts nodes on a real one"
    ),
    "pip install '.[spark]'": "test_clean_room runs it as the README prints it",
    "peeklock serve": "test_clean_room runs it as the README prints it",
    "peeklock send queue 'a lamp' 'a house' 'a car'": "test_clean_room runs it before the program for Spark",
}
"""Commands of these pages that are not run here, and why."""


class Guide:
    """A room in which commands of pages are run, and which ones were."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self.typed: set[str] = set()
        self.replaced: dict[str, str] = {}

    def run(self, page: Path, text: str, **variables: str) -> str:
        """Run the commands of the one block with this text; what the last one prints."""
        printed = [self.room.run(command, **variables) for command in self._commands(page, text)]
        return printed[-1]

    def command(self, page: Path, text: str) -> str:
        """The only command of the block with this text, which is going to be run."""
        (command,) = self._commands(page, text)
        return command

    def _commands(self, page: Path, text: str) -> Iterable[str]:
        (block,) = [block for language in ("sh", "console") for block in blocks(page, language) if text in block]
        for command in commands(block):
            self.typed.add(command)
            for old, new in self.replaced.items():
                command = command.replace(old, new)
            yield command


def port_of(connection_string: str) -> str:
    return connection_string.partition(";")[0].rpartition(":")[2]


def test_programs_of_the_start_pages_are_those_of_the_readme() -> None:
    """Which test_clean_room runs."""
    for page, text in (("laptop", "azure.servicebus"), ("spark", "spark")):
        assert blocks(START / f"{page}.md", "python") == [block_with(README, "python", text)]


def test_the_start_and_how_to_pages(tmp_path: Path) -> None:
    toolchain("curl")
    room = Room(tmp_path / "peeklock", checkout=True)
    room.make_environment()
    guide = Guide(room)
    start_in_a_container(guide)
    start_on_a_laptop(guide)
    migrate_from_the_emulator(guide)
    use_tls(guide)
    rotate_keys(guide)
    monitor_and_upgrade(guide)
    back_up(guide)
    run_pytest(guide)
    pages = [*START.glob("*.md"), *HOW_TO.glob("*.md")]
    printed = {
        command for page in pages for language in ("sh", "console") for block in blocks(page, language)
        for command in commands(block)
    }  # fmt: skip
    assert printed == guide.typed - back_up_commands() | NOT_RUN.keys()


def start_in_a_container(guide: Guide) -> None:
    page = START / "container.md"
    guide.run(page, "pip wheel")
    (compose,) = blocks(page, "yaml")
    service: dict[str, Any] = yaml.safe_load(compose)["services"]["peeklock"]
    shell, option, command = service["command"]
    assert (shell, option) == ("sh", "-c")
    command = command.replace("/wheels", f"{guide.room.folder}/wheels").replace("/data", f"{guide.room.folder}/data")
    # A container is a machine of its own; this one is shared.
    command = command.replace("--host 0.0.0.0", "--host 127.0.0.1")
    with guide.room.serving(command, **ANY_PORT) as connection_string:
        check = service["healthcheck"]["test"]
        assert check[:2] == ["CMD", "python3"]
        program = check[3].replace(":5672", f":{port_of(connection_string)}")
        guide.room.run(f'python3 -c "{program}"')
        guide.room.run("peeklock send queue Hello", PEEKLOCK_CONNECTION_STRING=connection_string)
    assert "127.0.0.1:5672:5672" in service["ports"]


def start_on_a_laptop(guide: Guide) -> None:
    with guide.room.serving("peeklock serve", **ANY_PORT) as connection_string:
        received = guide.run(START / "laptop.md", "queue create", PEEKLOCK_CONNECTION_STRING=connection_string)
    assert "one lamp" in received
    assert "one desk" in received


def migrate_from_the_emulator(guide: Guide) -> None:
    page = HOW_TO / "migrate-from-the-emulator.md"
    (config,) = blocks(page, "json")
    (guide.room.folder / "Config.json").write_text(config)
    guide.run(page, "config check")
    serve = guide.command(page, "serve --emulator")
    with guide.room.serving(serve, **ANY_PORT, PEEKLOCK_ADMIN_PORT="0") as connection_string:
        assert "orders" in guide.room.run("peeklock queue list", PEEKLOCK_CONNECTION_STRING=connection_string)


def use_tls(guide: Guide) -> None:
    page = HOW_TO / "use-tls.md"
    with guide.room.serving(guide.command(page, "peeklock serve --require-tls"), **ANY_PORT) as connection_string:
        (there,) = re.findall(r"='(Endpoint=.+)'$", guide.command(page, "export"), re.MULTILINE)
        there = there.replace(":5672", f":{port_of(connection_string)}")
        assert "Hello over TLS" in guide.run(page, "Hello over TLS", PEEKLOCK_CONNECTION_STRING=there)
    tls = guide.room.folder / "peeklock-data" / "tls"
    guide.replaced = {"/etc/peeklock/bus.pem": f"{tls}/server.pem", "/etc/peeklock/bus.key": f"{tls}/server-key.pem"}
    with guide.room.serving(guide.command(page, "--tls-cert"), **ANY_PORT):
        guide.run(page, "kill -HUP")


def rotate_keys(guide: Guide) -> None:
    page = HOW_TO / "rotate-keys.md"
    (config,) = blocks(page, "json")
    before = json.loads(config)
    (rule,) = before["UserConfig"]["Namespaces"][0]["AuthorizationRules"]
    new_key = rule.pop("SecondaryKey")
    file = guide.room.folder / "config.json"
    file.write_text(json.dumps(before))
    with guide.room.serving(guide.command(page, "serve --config"), **ANY_PORT) as connection_string:
        file.write_text(config)
        guide.run(page, "kill -HUP")
        assert f"SharedAccessKey={new_key}" in page.read_text()
        for key in (new_key, rule["PrimaryKey"]):
            there = f"{connection_string.partition(';')[0]};SharedAccessKeyName={rule['Name']};SharedAccessKey={key}"
            send = "until peeklock send orders Hello; do :; done"  # the file is being read
            guide.room.run(send, PEEKLOCK_CONNECTION_STRING=f"{there};UseDevelopmentEmulator=true")


def monitor_and_upgrade(guide: Guide) -> None:
    monitor, upgrade = HOW_TO / "monitor.md", HOW_TO / "upgrade.md"
    data = guide.room.folder / "peeklock-data"
    with guide.room.serving("peeklock serve", **ANY_PORT) as connection_string:
        guide.replaced = {":5672": f":{port_of(connection_string)}"}
        assert json.loads(guide.run(monitor, "/health"))["status"] == "healthy"
        there = {"PEEKLOCK_CONNECTION_STRING": connection_string}
        metrics = [guide.run(monitor, text, **there) for text in ("curl http://localhost:5672/metrics", "token")]
        assert all("peeklock_messages" in page for page in metrics)
        guide.run(upgrade, "store backup")
    guide.run(upgrade, "pip install --upgrade")
    with guide.room.serving("peeklock serve", **ANY_PORT) as connection_string:
        guide.replaced = {":5672": f":{port_of(connection_string)}"}
        guide.run(upgrade, "/health")
    guide.run(upgrade, "store restore")
    assert len(list(data.parent.glob("peeklock-data*"))) == 2, "the folder that was there is kept"


BACKUP = DOCS / "features" / "backup.md"


def back_up(guide: Guide) -> None:
    (guide.room.folder / "backups").mkdir()
    guide.replaced = {
        "/backups": f"{guide.room.folder}/backups",
        " restore ": " restore --force ",  # there is a folder to be moved aside
        " repair ": " repair --yes ",  # there is no terminal to be asked
    }
    guide.run(BACKUP, "peeklock store backup")


def back_up_commands() -> set[str]:
    return set(commands(block_with(BACKUP, "sh", "peeklock store backup")))


def run_pytest(guide: Guide) -> None:
    page = HOW_TO / "test-with-pytest.md"
    guide.run(page, "pip install pytest")
    folder = guide.room.folder / "orders"
    folder.mkdir()
    for name, program in zip(("conftest.py", "test_orders.py"), blocks(page, "python"), strict=True):
        assert f"`{name}`" in page.read_text()
        (folder / name).write_text(program)
    printed = guide.room.run(f"cd orders && {guide.command(page, 'pytest' + chr(10))}")
    assert "1 passed" in printed


@pytest.mark.parametrize("page", [*START.glob("*.md"), *HOW_TO.glob("*.md")], ids=lambda page: page.stem)
def test_metrics_that_a_page_names_are_those_of_monitoring(page: Path) -> None:
    known = set(re.findall(r"peeklock_[a-z_]+", (DOCS / "features" / "monitoring.md").read_text()))
    named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"peeklock_[a-z_]+", page.read_text())}
    assert named <= known
