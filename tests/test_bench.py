"""The benchmarks run and print their tables; how fast anything is, is not tested."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from serving import ServedBroker
from toolchains import toolchain

ROOT = Path(__file__).parents[1]
SECONDS = 120
SPARK_SECONDS = 600
"""On a machine that does other things as well."""
TINY = ["--count", "300", "--rounds", "1", "--connections", "1,2", "--latency-count", "20"]


def start_bench(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.bench", *arguments, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "HOME": str(folder)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def bench(folder: Path, *arguments: str, seconds: int = SECONDS) -> tuple[int, str, str]:
    process = start_bench(folder, *arguments)
    try:
        output, errors = process.communicate(timeout=seconds)
    finally:
        process.kill()
    return process.returncode, output, errors


def cells(output: str, start: str) -> list[list[str]]:
    """The rows of the tables that start like this, in words."""
    return [line.removeprefix(start).split() for line in output.splitlines() if line.startswith(start)]


def processes_with(text: str) -> list[str]:
    """Command lines of this machine's processes that mention a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if text in command:
            found.append(command)
    return found


@pytest.mark.parametrize("store", [[], ["--memory"]], ids=["sqlite", "memory"])
def test_throughput_prints_its_tables_and_writes_every_round(tmp_path: Path, store: list[str]) -> None:
    report = tmp_path / "report.json"
    code, output, errors = bench(tmp_path, "throughput", *TINY, *store, "--no-peer", "--json", str(report))
    assert (code, errors) == (0, "")
    for title in ("Throughput (µs", "Latency in milliseconds", "Resident memory in MB"):
        assert title in output
    one, two, latency, memory = cells(output, "Peeklock 0.1.0" + (", memory" if store else ""))
    assert (one[0], two[0]) == ("1", "2")
    assert (len(one), len(latency), len(memory)) == (7, 4, 2)
    (written,) = json.loads(report.read_text())
    assert [len(entry["send"]) for entry in written["rounds"]] == [1, 1]
    assert all(entry["receive"][0]["per_second"] > 0 for entry in written["rounds"])
    assert len(written["latency_seconds"][0]["end_to_end"]) == 20


def test_throughput_compares_with_a_broker_that_runs_already(tmp_path: Path, served: ServedBroker) -> None:
    url = f"amqp://RootManageSharedAccessKey:SAS_KEY_VALUE@127.0.0.1:{served.port}"
    code, output, errors = bench(tmp_path, "throughput", *TINY, "--peer", url, "--peer-address", "queue")
    assert (code, errors) == (0, "")
    assert "compared: ratio of the medians" in output
    ratios = [row for row in cells(output, "peer queue") if len(row) == 5]
    assert [row[0] for row in ratios] == ["1", "2"]
    assert all(float(figure) > 0 for row in ratios for figure in row)


def test_a_peer_on_another_machine_is_refused(tmp_path: Path) -> None:
    code, _, errors = bench(tmp_path, "throughput", *TINY, "--peer", "amqp://192.0.2.1:5672")
    assert code == 1
    assert "the peer must be on this machine" in errors
    assert "192.0.2.1" in errors


def test_a_folder_without_rabbitmq_is_refused(tmp_path: Path) -> None:
    code, _, errors = bench(tmp_path, "throughput", *TINY, "--rabbitmq", str(tmp_path))
    assert code == 1
    assert f"there is no rabbitmq-server in {tmp_path}" in errors


def test_backlog_prints_memory_restart_and_ratio(tmp_path: Path) -> None:
    code, output, errors = bench(tmp_path, "backlog", "--count", "600", "--rounds", "1")
    assert (code, errors) == (0, "")
    for row in (
        "start to ready after a stop",
        "start to ready after a kill",
        "ratio: backlog to short queue, while the backlog exists",
    ):
        ((value, _),) = cells(output, row)
        assert float(value) > 0


def test_topics_prints_each_number_of_subscriptions_compared_with_a_queue(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    arguments = ["--count", "60", "--rounds", "1", "--subscriptions", "1,3", "--json", str(report)]
    code, output, errors = bench(tmp_path, "topics", *arguments)
    assert (code, errors) == (0, "")
    ((number, rate, *_),) = cells(output, "plain queue")
    assert (number, float(rate.replace(",", "")) > 0) == ("1", True)
    for filters in ("SQL", "correlation"):
        rows = cells(output, filters)
        assert [row[0] for row in rows] == ["1", "3"]
        assert all(float(figure.replace(",", "")) > 0 for row in rows for figure in (row[1], row[3], row[4], row[6]))
    (written,) = json.loads(report.read_text())
    assert [len(entry["one"]) for entry in written["rounds"]] == [1] * 5


def test_claims_prints_the_cost_of_each_step(tmp_path: Path) -> None:
    arguments = ["--count", "2500", "--batch-size", "1000", "--rounds", "1"]
    code, output, errors = bench(tmp_path, "claims", *arguments)
    assert (code, errors) == (0, "")
    for step in ("claim  ", "read packed", "remove", "all  "):
        ((took,),) = cells(output, step)
        assert float(took) >= 0
    assert "Claimed, read and removed" in output


def test_rows_prints_the_cost_of_decoding_compared_with_the_codec(tmp_path: Path) -> None:
    code, output, errors = bench(tmp_path, "rows", "--count", "50", "--rounds", "1", "--size", "10")
    assert (code, errors) == (0, "")
    assert "Decoding, Python" in output
    for columns in ("the codec, one by one", "all columns", "all columns, json", "body and number"):
        took, ratio = cells(output, f"{columns}  ")[0]
        assert (float(took) > 0, float(ratio) > 0) == (True, True)


@pytest.mark.spark
def test_spark_prints_every_mode_compared_with_the_plain_client(tmp_path: Path) -> None:
    toolchain("java")
    report = tmp_path / "report.json"
    arguments = ["--count", "40", "--rounds", "1", "--sizes", "100", "--tasks", "2", "--json", str(report)]
    code, output, errors = bench(tmp_path, "spark", *arguments, seconds=SPARK_SECONDS)
    assert code == 0, errors
    for row in (
        "read compared with peek",
        "claim compared with receive and complete",
        "claim compared with the same operations",
        "receiveAndDelete compared with receive and delete",
        "write compared with send  ",
        "write compared with send in batches",
        "write-ids compared with send in batches",
    ):
        ((size, tasks, plain, spark, *_),) = cells(output, row)
        assert (size, tasks) == ("100", "2")
        assert float(plain.replace(",", "")) > 0
        assert float(spark.replace(",", "")) > 0
    (written,) = json.loads(report.read_text())
    assert [entry["count"] for entry in written["rounds"]] == [40] * 5
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.spark
def test_spark_peers_prints_every_kind_of_work_and_its_cost(tmp_path: Path) -> None:
    toolchain("java")
    report = tmp_path / "report.json"
    arguments = ["--count", "60", "--batches", "40", "--rounds", "1", "--no-peer", "--json", str(report)]
    code, output, errors = bench(tmp_path, "spark-peers", *arguments, seconds=SPARK_SECONDS)
    assert code == 0, errors
    for work, batch in (("batch read", "all"), ("claim stream", "40"), ("capture", "40")):
        ((size, rate, _, _, *cpu),) = cells(output, f"Peeklock 0.1.0: {work}")
        assert size == batch
        assert float(rate.replace(",", "")) > 0
        assert len(cpu) == 3
    (written,) = json.loads(report.read_text())
    assert all(entry["jvm"] and entry["python"][0] > 0 for entry in written["rounds"])
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.spark
def test_capture_prints_the_stages_that_make_the_whole(tmp_path: Path) -> None:
    toolchain("java")
    report = tmp_path / "report.json"
    arguments = ["--count", "60", "--batch-size", "30", "--json", str(report)]
    code, output, errors = bench(tmp_path, "capture", *arguments, seconds=SPARK_SECONDS)
    assert code == 0, errors
    assert "Capture of 60 messages in 2 micro-batches" in output
    (written,) = json.loads(report.read_text())
    figures = written["figures"]
    assert sum(figures["stages"].values()) == pytest.approx(figures["capturing"])
    claims = {"BrokerClaims.next", "BrokerClaims.settle"}
    assert set(figures["clocks"]) == {*claims, "Lake.add_batch", "Lake.write", "LocalFiles.move"}
    assert figures["spark_ms"]["addBatch"] > 0
    assert [len(cells(output, f"{name} ")) for name in figures["stages"]] == [1] * len(figures["stages"])
    assert figures["files"] > figures["files_compacted"] > 0
    assert set(figures["memory"]) >= {"broker", "driver's JVM", "driver's Python", "stream's Python", "task workers"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.spark
@pytest.mark.parametrize("sink", ["noop", "capture"])
def test_batches_prints_the_memory_over_the_micro_batches(tmp_path: Path, sink: str) -> None:
    toolchain("java")
    report = tmp_path / "report.json"
    arguments = ["--batches", "4", "--messages", "2", "--sink", sink, "--json", str(report)]
    code, output, errors = bench(tmp_path, "batches", *arguments, seconds=SPARK_SECONDS)
    assert code == 0, errors
    (written,) = json.loads(report.read_text())
    samples = written["samples"]
    assert samples[-1]["batches"] == 4
    for row in ("driver's JVM, heap after a collection", "driver's Python, resident", "stream's Python, resident"):
        ((*figures, _),) = cells(output, row)
        assert all(float(each) > 0 for each in figures)
        assert all(sample["memory"][row] > 0 for sample in samples)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_the_growth_of_memory_is_that_of_the_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    batches = import_module("tools.bench.batches")
    samples = [batches.Sample(at, 0.0, {"heap": 10 * min(at, 50) + 2 * at}) for at in range(0, 101, 10)]
    assert batches.growth(samples, "heap") == pytest.approx(2000)
    assert batches.growth(samples, "other") is None


def test_growth_prints_a_curve_for_each_thing_that_grows(tmp_path: Path) -> None:
    results = tmp_path / "results" / "growth.json"
    sizes = ["--messages", "10,200", "--entities", "1,3", "--connections", "1,3", "--sessions", "1,4"]
    code, output, errors = bench(
        tmp_path, "growth", *sizes, "--sample", "80", "--rounds", "1", "--results", str(results)
    )
    assert (code, errors) == (0, "")
    written = json.loads(results.read_text())
    for curve, places in {"messages": [10, 200], "entities": [1, 3], "connections": [1, 3], "sessions": [1, 4]}.items():
        assert f"Cost of a message as {curve} grow" in output
        points = written["curves"][curve]
        assert [point["at"] for point in points] == places
        assert all(point["send_rate"] > 0 and point["receive_rate"] > 0 for point in points)
        assert all(point["resident_bytes"] > 0 for point in points)
    assert all(point["ready_seconds"] > 0 for point in written["curves"]["entities"])
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_growth_reports_a_limit_of_connections(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(ROOT)
    growth = import_module("tools.bench.growth")
    monkeypatch.setattr(growth.resource, "getrlimit", lambda _: (300, 300))
    monkeypatch.setattr(growth.resource, "setrlimit", lambda *_: None)
    assert growth._allowed_connections(50) == 50
    assert capsys.readouterr().out == ""
    assert growth._allowed_connections(500) == 100
    assert "100 connections instead of 500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["throughput", "--count", "0"], "must be from 1 to"),
        (["throughput", "--connections", "1,99"], "must be from 1 to 64, not 99"),
        (["backlog", "--size", "1000000"], "must be from 8 to"),
        (["topics", "--subscriptions", "1,5000"], "must be from 1 to 2000, not 5000"),
        (["spark", "--tasks", "99"], "must be from 1 to 16, not 99"),
        (["spark", "--modes", "read,guess"], "must be of read, claim, receiveAndDelete, write, "),
        (["spark-peers", "--cores", "99"], "must be from 1 to 16, not 99"),
        (["capture", "--batch-size", "0"], "must be from 1 to"),
        (["batches", "--batches", "2"], "must be from 4 to"),
        (["batches", "--sink", "files"], "invalid choice: 'files'"),
        (
            ["peers", "--brokers", "peeklock,kafka"],
            "must be of peeklock, peeklock-interpreted, rabbitmq, rabbitmq4, artemis, not kafka",
        ),
        (["peers", "--queues", "7"], "must be of 1, 100, not 7"),
        (["peers", "--sizes", "4"], "must be from 8 to"),
        (["growth", "--connections", "1,6000"], "must be from 1 to 5000, not 6000"),
        (["growth", "--curves", "messages,time"], "must be of messages, entities, connections, sessions, not time"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path: Path, arguments: list[str], words: str) -> None:
    code, _, errors = bench(tmp_path, *arguments)
    assert code == 2
    assert words in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_ends_all_that_it_started(tmp_path: Path, number: signal.Signals) -> None:
    process = start_bench(tmp_path, "backlog", "--count", "4000000")
    try:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
        process.send_signal(number)
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors == "bench: stopped\n"
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


@pytest.mark.spark
def test_a_run_with_spark_that_is_stopped_ends_all_that_it_started(tmp_path: Path) -> None:
    toolchain("java")
    arguments = ["--batches", "100000", "--messages", "1", "--time-limit", str(SPARK_SECONDS)]
    process = start_bench(tmp_path, "batches", *arguments)
    try:
        while not any(tmp_path.glob("*/checkpoint/commits/0")):
            assert process.poll() is None, "it ended before the first micro-batch"
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SPARK_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.endswith("bench: stopped\n")
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


def test_a_run_ends_at_its_time_limit(tmp_path: Path) -> None:
    code, _, errors = bench(tmp_path, "--time-limit", "1")
    assert (code, errors) == (130, "bench: the time limit is reached\n")
    assert list(tmp_path.iterdir()) == []
    assert processes_with(str(tmp_path)) == []


def test_the_benchmarks_use_the_client_and_the_pipelines_and_nothing_else_of_peeklock() -> None:
    used = set()
    # What measures the decoder alone has no broker, and makes itself what one would send.
    of_rows = {"peeklock.broker.heads", "peeklock.store.base"}
    for path in (ROOT / "tools" / "bench").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "peeklock":
                if path.name != "rows.py" or node.module not in of_rows:
                    used.add(node.module)
            elif isinstance(node, ast.Import):
                used.update(alias.name for alias in node.names if alias.name.split(".")[0] == "peeklock")
    others = {name for name in used if not str(name).startswith(("peeklock.spark.", "peeklock.client."))}
    assert others == {"peeklock", "peeklock.client"}


@pytest.mark.parametrize("before", [True, False])
def test_options_are_the_same_before_the_command_and_behind_it(tmp_path: Path, before: bool) -> None:
    options = ["--compiled", str(tmp_path / "nothing")]
    arguments = [*options, "throughput"] if before else ["throughput", *options]
    code, _, errors = bench(tmp_path, *arguments)
    assert code == 1
    assert f"there is no compiled peeklock in {tmp_path / 'nothing'}" in errors
