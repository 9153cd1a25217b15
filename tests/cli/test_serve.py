"""Tests of `peeklock serve` as a process: output, signals, exit code."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusQuotaExceededError

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Accepted
from raw_client import HOST, RawClient, body_of, dial, dial_tls, eventually, get, health
from serving import SOURCE, ServedBroker

ROOT = Path(__file__).parents[2]
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO |WARN |ERROR) [a-z.]+ .+")
CONFIG = """
{
  // The emulator's file, with comments.
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          { "Name": "%s", "Properties": { "LockDuration": "PT1M" /* a minute */ } },
        ]
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_STATE_HOME": str(folder / "state")}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends without a signal."""
    return subprocess.run(
        [sys.executable, "-m", "peeklock", *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refusal(folder: Path, *arguments: str) -> str:
    """Return the error message of a broker that does not start."""
    ended = run(folder, "serve", "--port", "0", *arguments)
    assert ended.returncode == 2, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("peeklock: ")
    return line.removeprefix("peeklock: ")


Serve = Callable[..., ServedBroker]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[ServedBroker] = []

    def start(*arguments: str, **options: Any) -> ServedBroker:
        broker = ServedBroker(tmp_path, *arguments, **options)
        started.append(broker)
        return broker

    yield start
    for broker in started:
        if broker.process.poll() is None:
            broker.kill()


def config(folder: Path, queue: str) -> str:
    path = folder / f"{queue}.json"
    path.write_text(CONFIG % queue)
    return str(path)


# --- output ---


def test_standard_output_is_the_connection_string_and_nothing_else(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "peeklock", "serve", "--port", "0", "--log-level", "debug"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    form = (
        r"Endpoint=sb://127\.0\.0\.1:(\d+);SharedAccessKeyName=RootManageSharedAccessKey;"
        r"SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;\n"
    )
    match = re.fullmatch(form, line)
    assert match, line
    # Ready means ready: what connects now is served.
    client = RawClient.opened(int(match[1]))
    client.send(client.sender(), b"hello")
    process.send_signal(signal.SIGTERM)
    client.closed_with()
    rest, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == ""
    assert log
    for each in log.splitlines():
        assert LOG_LINE.fullmatch(each), each
    # By default the data is in the current folder.
    assert (tmp_path / "peeklock-data" / "peeklock.db").exists()


def test_bodies_tokens_and_keys_are_not_logged(serve: Serve) -> None:
    broker = serve("--log-level", "debug")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("queue") as sender:
            sender.send_messages(ServiceBusMessage("MARKER-BODY", application_properties={"name": "MARKER-VALUE"}))
            sender.send_messages([ServiceBusMessage("MARKER-ONE"), ServiceBusMessage("MARKER-TWO")])
        with client.get_queue_receiver("queue", max_wait_time=5) as receiver:
            (message, *_) = receiver.receive_messages()
            receiver.dead_letter_message(message, reason="MARKER-REASON")
    wrong = broker.connection_string.replace("SAS_KEY_VALUE", "MARKER-KEY")
    with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client:
        sender = client.get_queue_sender("queue")
        with pytest.raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("MARKER-BODY"))
    RawClient(dial(broker.port), key="MARKER-KEY").closed_with()
    raw = RawClient.opened(broker.port)
    raw.refusal(raw.sender(), b"MARKER" * 100_000)
    raw.stream.sendall(b"MARKER MARKER MARKER")
    raw.closed_with()
    assert get(broker.port, "/orders?sig=MARKER", Authorization="SharedAccessSignature sig=MARKER")[0] == 401
    assert broker.stop() == 0
    assert "<- Transfer" in broker.log
    assert "-> Disposition" in broker.log
    assert "<- SaslInit" in broker.log
    assert "MARKER" not in broker.log
    assert "sig=" not in broker.log
    assert "SAS_KEY_VALUE" not in broker.log
    assert "Traceback" not in broker.log


# --- what it is told ---


def test_queues_missing_in_the_config_file_stay_in_the_store(serve: Serve, tmp_path: Path) -> None:
    first = serve("--config", config(tmp_path, "orders"))
    client = RawClient.opened(first.port)
    client.send(client.sender("orders"), b"kept")
    with pytest.raises(AssertionError, match=Condition.NOT_FOUND):
        client.sender("invoices")
    assert first.stop() == 0
    second = serve("--config", config(tmp_path, "invoices"))
    client = RawClient.opened(second.port)
    client.send(client.sender("invoices"), b"new")
    client.receiver("ORDERS")
    assert body_of(client.receive(1)[0]) == b"kept"


def test_further_ports_speak_everything(serve: Serve) -> None:
    broker = serve("--tls-port", "0", "--admin-port", "0")
    ports = [int(port) for port in re.findall(r"listening host=127\.0\.0\.1 port=(\d+)", broker.log)]
    assert len(ports) == 3
    assert ports[0] == broker.port
    for port in ports:
        assert health(port)[0] == 200
        client = RawClient(dial_tls(port, broker.authority))
        client.open()
        client.send(client.sender(), b"hello")


def test_a_broker_in_memory_leaves_no_data(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "peeklock", "serve", "--port", "0", "--memory"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline().split(";")[0].rsplit(":", 1)[1])
    authority = tmp_path / "state" / "peeklock" / "tls" / "authority.pem"
    client = RawClient(dial_tls(port, authority))
    client.open()
    client.send(client.sender(), b"forgotten")
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert not list(tmp_path.rglob("*.db"))


def test_the_profile_sets_the_limits(serve: Serve) -> None:
    broker = serve("--profile", "premium")
    client = RawClient.opened(broker.port)
    client.send(client.sender(), bytes(1_000_000))


def test_an_address_other_than_loopback_requires_its_own_key(tmp_path: Path) -> None:
    assert "--insecure-default-key" in refusal(tmp_path, "--host", "0.0.0.0")


def test_the_well_known_key_can_be_allowed_on_other_addresses(serve: Serve) -> None:
    broker = serve("--host", "0.0.0.0", "--insecure-default-key")
    assert broker.connection_string.startswith("Endpoint=sb://127.0.0.1:")
    assert health(broker.port)[0] == 200


# --- what it refuses ---


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        sentence = refusal(tmp_path, "--port", str(port))
    assert sentence == f"cannot listen on 127.0.0.1 port {port}: Address already in use"


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file/data cannot be created: Not a directory" in refusal(tmp_path, "--data", "file/data")


def test_a_folder_that_a_running_broker_uses_is_refused(serve: Serve, tmp_path: Path) -> None:
    broker = serve()
    sentence = refusal(tmp_path, "--data", str(broker.data))
    assert sentence == f"The data folder {broker.data} is in use by process {broker.process.pid}."
    assert health(broker.port)[0] == 200


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "config.json:1"),
        ('{\n "UserConfig": {\n  "Namespaces": 5 } }', "config.json:3: UserConfig.Namespaces"),
        (CONFIG % "no spaces allowed", "config.json:9: UserConfig.Namespaces[0].Queues[0].Name"),
    ],
)
def test_a_config_file_with_a_mistake_is_refused_with_its_place(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "config.json").write_text(text)
    sentence = refusal(tmp_path, "--config", "config.json")
    assert complaint.replace("UserConfig.", "") in sentence.replace("UserConfig.", "")


def test_a_config_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert "nowhere.json" in refusal(tmp_path, "--config", "nowhere.json")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--profile", "nope"), ("--profile", "nope", "standard", "premium")),
        (("--log-level", "loud"), ("--log-level", "loud", "debug")),
        (("--port", "70000"), ("--port", "65535")),
        (("--port", "http"), ("--port",)),
        (("--nonsense",), ("--nonsense",)),
        (("--memory", "--data", "there"), ("--memory", "--data")),
        (("--tls-cert", "a.pem"), ("--tls-cert", "--tls-key")),
        (("--tls-key", "a.pem"), ("--tls-cert", "--tls-key")),
        (("--tls-cert", "a.pem", "--tls-key", "b.pem"), ("a.pem", "cannot be read")),
        (("--host", "a..b", "--insecure-default-key"), ("a..b",)),
    ],
)
def test_an_argument_that_makes_no_sense_is_refused(
    tmp_path: Path, arguments: tuple[str, ...], named: tuple[str, ...]
) -> None:
    sentence = refusal(tmp_path, *arguments)
    for each in named:
        assert each in sentence


def test_without_a_command_there_is_help(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert ended.returncode == 0
    assert "serve" in ended.stdout
    assert "certificate" in ended.stdout


def test_an_unknown_command_is_refused(tmp_path: Path) -> None:
    ended = run(tmp_path, "swerve")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "swerve" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_version_is_printed(tmp_path: Path) -> None:
    ended = run(tmp_path, "version")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*( compiled)?\n", ended.stdout)


# --- stopping ---


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_messages_accepted_before_a_signal_are_there_after_the_next_start(serve: Serve, number: signal.Signals) -> None:
    broker = serve()
    client = RawClient.opened(broker.port)
    link = client.sender()
    accepted: list[bytes] = []
    enough = threading.Event()

    def send_on() -> None:
        try:
            for serial in range(1_000_000):
                posted = {body: client.post(link, body) for body in (b"%d-%d" % (serial, at) for at in range(20))}
                for body, delivery in posted.items():
                    assert isinstance(client.outcome(delivery), Accepted)
                    accepted.append(body)
                if len(accepted) > 500:
                    enough.set()
        except ConnectionError:
            pass

    sending = threading.Thread(target=send_on)
    sending.start()
    assert enough.wait(20)
    broker.process.send_signal(number)
    assert broker.process.wait(timeout=10) == 0
    sending.join(timeout=20)
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.CONNECTION_FORCED
    broker.start()
    again = RawClient.opened(broker.port)
    again.receiver(credit=len(accepted))
    found = [body_of(delivery) for delivery in again.receive(len(accepted))]
    assert found == accepted
    assert "Traceback" not in broker.log


def test_a_silent_client_does_not_delay_the_stop(serve: Serve) -> None:
    broker = serve()
    silent = [dial(broker.port), RawClient.opened(broker.port).stream, dial_tls(broker.port, broker.authority)]
    broker.process.terminate()
    assert broker.process.wait(timeout=10) == 0
    assert all(stream is not None for stream in silent)


def test_a_second_signal_changes_nothing(serve: Serve) -> None:
    broker = serve()
    client = RawClient.opened(broker.port)
    broker.process.send_signal(signal.SIGINT)
    broker.process.send_signal(signal.SIGINT)
    broker.process.send_signal(signal.SIGTERM)
    assert client.closed_with() is not None
    assert broker.process.wait(timeout=10) == 0
    assert "Traceback" not in broker.log


def test_a_broker_that_was_started_to_ignore_ctrl_c_ignores_it(tmp_path: Path) -> None:
    # As a shell script starts its background commands: a Ctrl-C that ends the script leaves them running.
    script = f"{shlex.quote(sys.executable)} -m peeklock serve --memory --port 0 & echo $!; wait $!"
    with subprocess.Popen(
        ["sh", "-c", script], env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as shell:
        assert shell.stdout is not None
        process = int(shell.stdout.readline())
        try:
            port = int(shell.stdout.readline().split(";")[0].rsplit(":", 1)[1])
            os.kill(process, signal.SIGINT)
            client = RawClient.opened(port)
            assert isinstance(client.outcome(client.post(client.sender(), b"still there")), Accepted)
        finally:
            os.kill(process, signal.SIGTERM)
        assert client.closed_with() is not None
        assert shell.wait(timeout=10) == 0


def test_the_tests_of_ctrl_c_pass_when_they_are_started_in_the_background(tmp_path: Path) -> None:
    tests = " ".join(
        f"tests/cli/{test}"
        for test in (
            "test_send.py::test_messages_sent_before_an_interrupt_stay",
            "test_serve.py::test_a_second_signal_changes_nothing",
        )
    )
    script = f"{shlex.quote(sys.executable)} -m pytest -q -p no:cacheprovider {tests} & wait $!"
    ended = subprocess.run(
        ["sh", "-c", script],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout


# --- a full disk ---


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Mount a file system of 32 MiB for the data folder; call it to change the size."""
    folder = tmp_path / "data"
    folder.mkdir()

    def mount(*options: str) -> subprocess.CompletedProcess[str]:
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", str(folder)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    if shutil.which("mount") is None or mount("size=32m").returncode:
        pytest.skip("a small file system can be mounted by root on Linux only")
    yield lambda megabytes: mount("remount", f"size={megabytes}m").check_returncode()
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_refuses_only_sends_until_there_is_room(small_disk: Callable[[int], None], serve: Serve) -> None:
    broker = serve("--disk-free-low", "0")
    with (
        ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0) as client,
        client.get_queue_sender("queue") as sender,
        client.get_queue_receiver("queue", max_wait_time=5) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("early"))
        (early,) = receiver.receive_messages()
        sent = 1

        def fill() -> None:
            nonlocal sent
            for _ in range(400):
                sender.send_messages(ServiceBusMessage(bytes(100_000)))
                sent += 1

        with pytest.raises(ServiceBusQuotaExceededError):
            fill()
        assert sent > 5
        code, status, message = health(broker.port)
        assert (code, status) == (503, "unhealthy")
        assert "no free space" in message
        # What was sent before is still handed out, and completing it makes no room but needs little.
        receiver.complete_message(early)
        raw = RawClient.opened(broker.port)
        assert raw.refusal(raw.sender(), bytes(200_000)).condition == Condition.RESOURCE_LIMIT_EXCEEDED
        assert health(broker.port)[0] == 503
        small_disk(128)
        eventually(lambda: health(broker.port)[0] == 200)
        sender.send_messages(ServiceBusMessage("late"))
        bodies: list[str] = []
        while len(bodies) < sent:
            for received in receiver.receive_messages(max_message_count=sent):
                receiver.complete_message(received)
                bodies.append(str(received))
        assert bodies.count("late") == 1
        assert "early" not in bodies
    assert "the store refused changes" in broker.log
    assert "the store accepts messages again" in broker.log
    assert broker.stop() == 0
