"""Parts of the comparison that need no broker: fetching, figures, tables, plots and the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[1]
MARKS = "Before.\n\n<!-- generated: {0} -->\nold\n<!-- end: {0} -->\n\nAfter.\n"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def module(name: str) -> Any:
    return import_module(f"tools.bench.{name}")


def cell(broker: str, phase: str, number: int, rate: float, **others: Any) -> dict[str, Any]:
    about = {"broker": broker, "phase": phase, "round": number, "connections": 1, "queues": 1, "size": 1024}
    return {**about, "complete": True, "per_second": rate, "cpu_us": 10.0, **others}


def figures() -> dict[str, Any]:
    """Of two brokers, in two rounds."""
    latency = {"p50": 0.001, "p99": 0.002, "p99.9": 0.0125, "most": 0.02}
    brokers = [("Peeklock 1", [""], 0.5), ("Other 2", ["classic", "quorum"], 5.0)]
    return {
        "format": 1,
        "when": "2026-01-02",
        "machine": {"cpus": 2, "model": "a CPU", "memory_bytes": 8e9, "system": "Linux", "python": "3.11"},
        "file_system": "ext4",
        "load_client": "client==1",
        "options": {"count": 1000, "bytes": 1_000_000},
        "missing": {"Third": "/some/where/program failed:\n no /usr/lib/thing"},
        "brokers": [
            {
                "name": name,
                "kinds": kinds,
                "settings": {"store": "a file"},
                "starts": [start, start * 3, start * 2],
                "idle_bytes": 50_000_000,
                "bytes": 60_000_000,
                "highest_bytes": 70_000_000,
            }
            for name, kinds, start in brokers
        ],
        "cells": [
            *(
                cell("Peeklock 1", phase, n, 30_000 + 10_000 * n)
                for phase in ("send", "receive", "both")
                for n in (0, 1)
            ),
            *(cell("Other 2 classic", phase, n, 10_000) for phase in ("send", "receive") for n in (0, 1)),
            cell("Other 2 classic", "both", 0, 5_000, complete=False),
            {**cell("Other 2 quorum", "send", 0, 0), "complete": False, "failed": "gone"},
        ],
        "latency": [
            {
                "broker": "Peeklock 1",
                "round": 0,
                "rate": 1000,
                "complete": True,
                "send": latency,
                "end_to_end": latency,
            },
            {"broker": "Other 2 classic", "round": 0, "rate": 1000, "complete": False, "failed": "too slow"},
        ],
        "ceiling": [
            {
                "size": 1024,
                "connections": 1,
                "send": {"per_second": 400_000, "client_us": 1.5},
                "receive": {"per_second": 500_000, "client_us": 0.5},
            }
        ],
    }


# --- tables ---


def test_rates_are_medians_of_the_rounds_and_a_failed_cell_has_none() -> None:
    rows = module("peer_tables").rate_rows(figures(), 1, 1024)
    assert rows == [
        ["Peeklock 1", "1", *["35,000", "35.8", "10.0"] * 3],
        ["Other 2 classic", "1", *["10,000", "10.2", "10.0"] * 2, "5,000", "5.1", "10.0"],
    ]


def test_a_broker_has_a_row_although_sending_failed() -> None:
    data = figures()
    data["cells"].append(cell("Other 2 quorum", "receive", 0, 2_000))
    assert module("peer_tables").rate_rows(data, 1, 1024)[-1] == [
        *["Other 2 quorum", "1"],
        *["-"] * 3,
        *["2,000", "2.0", "10.0"],
        *["-"] * 3,
    ]


def test_ratios_have_the_lowest_and_the_highest_round() -> None:
    rows = module("peer_tables").ratio_rows(figures(), 1, 1024)
    assert rows == [["Other 2 classic", "1", *["3.50 (3.00 – 4.00)"] * 2, "6.00"]]


def test_without_peeklock_there_are_no_ratios() -> None:
    data = figures()
    data["brokers"] = data["brokers"][1:]
    assert module("peer_tables").ratio_rows(data, 1, 1024) == []


def test_latency_is_in_milliseconds_and_missing_where_it_failed() -> None:
    assert module("peer_tables").latency_rows(figures(), 1000) == [
        ["Peeklock 1", *["1.00", "2.00", "12.50"] * 2],
        ["Other 2 classic", *["-"] * 6],
    ]


def test_missing_programs_are_named_without_the_folders_of_this_machine() -> None:
    problems = list(module("peer_tables").problems(figures()))
    assert problems[0] == "Third was left out: program failed: no thing."
    assert "Other 2 quorum, send, 1,024 bytes, one queue, 1 connections, round 1: gone." in problems
    assert any("both" in each and "not all was accepted in its time" in each for each in problems)
    assert "Other 2 classic, at 1,000 a second, round 1: too slow." in problems
    assert len(problems) == 4


# --- the pages ---


def test_pages_have_tables_and_plots_between_their_marks_and_keep_the_rest(tmp_path: Path) -> None:
    results, grown = tmp_path / "peers.json", tmp_path / "growth.json"
    for name in ("peers", "growth"):
        (tmp_path / f"{name}.md").write_text(MARKS.format(name))
    results.write_text(json.dumps(figures()))
    point = {"at": 1, "send_us": 9.0, "send_rate": 100.0, "receive_us": 8.0, "receive_rate": 90.0}
    points = [{**point, "resident_bytes": 1e6, "ready_seconds": None}, {**point, "at": 1000, "resident_bytes": 2e6}]
    about = {"when": "2026-01-02", "machine": "a machine", "file_system": "ext4", "options": {"size": 9, "rounds": 1}}
    grown.write_text(json.dumps({**about, "curves": {"sessions": points}}))
    written = module("page").write(tmp_path, results, grown)
    texts = {name: (tmp_path / f"{name}.md").read_text() for name in ("peers", "growth")}
    for name, text in texts.items():
        assert text.startswith(f"Before.\n\n<!-- generated: {name} -->\n")
        assert text.endswith(f"<!-- end: {name} -->\n\nAfter.\n")
        assert "old" not in text
    assert "| Other 2 classic | 1 | 3.50 (3.00 – 4.00) |" in texts["peers"]
    assert "| 1,000 | 9.0 | 100 | 8.0 | 90 | 2 | - |" in texts["growth"]
    plots = {path.relative_to(tmp_path).as_posix() for path in written[2:]}
    assert plots == {"plots/peers-1024-1.svg", "plots/peers-latency-1000.svg", "plots/growth-sessions.svg"}
    for plot in plots:
        assert f"]({plot})" in texts[Path(plot).name.partition("-")[0]]
        assert ElementTree.parse(tmp_path / plot).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_page_that_is_written_again_is_the_same(tmp_path: Path) -> None:
    page, results = tmp_path / "peers.md", tmp_path / "peers.json"
    page.write_text(MARKS.format("peers"))
    results.write_text(json.dumps(figures()))
    module("page").write(tmp_path, results, None)
    once = page.read_text()
    module("page").write(tmp_path, results, None)
    assert page.read_text() == once


@pytest.mark.parametrize("text", ["", "<!-- end: peers --><!-- generated: peers -->", MARKS.format("peers") * 2])
def test_a_page_without_its_marks_is_refused_and_left_as_it_is(tmp_path: Path, text: str) -> None:
    page, results = tmp_path / "peers.md", tmp_path / "peers.json"
    page.write_text(text)
    results.write_text(json.dumps(figures()))
    plot = tmp_path / "plots" / "peers-old.svg"
    plot.parent.mkdir()
    plot.write_text("of before")
    with pytest.raises(ValueError, match="the page needs the lines '<!-- generated: peers -->'"):
        module("page").write(tmp_path, results, None)
    assert page.read_text() == text
    assert list(plot.parent.iterdir()) == [plot]


def test_the_pages_of_this_project_have_the_marks() -> None:
    for name in ("peers", "growth"):
        text = (ROOT / f"docs/benchmarks/{name}.md").read_text()
        assert "nothing of before" in module("page").replaced(text, name, ["nothing of before"])


def test_the_overview_has_the_rates_of_the_comparison() -> None:
    """Of 1 KiB and one queue, rounded to thousands."""
    pages = ROOT / "docs"
    of_all = (pages / "benchmarks" / "peers.md").read_text()
    cells = of_all.partition("\n## 1,024 bytes, one queue\n")[2].partition("\n## ")[0]
    measured = {}
    for name, connections, send, receive in re.findall(
        r"^\| ([^|]+) \| (\d+) \| ([\d,]+) \| [^|]+ \| [^|]+ \| ([\d,]+) \|", cells, re.MULTILINE
    ):
        rates = [f"{round(int(rate.replace(',', '')), -3):,}" for rate in (send, receive)]
        measured[name] = [*measured.get(name, []), *(rates if connections in ("1", "16") else [])]
    names = {"Peeklock, compiled": "Peeklock 0.1.0 compiled", "Peeklock, as Python": "Peeklock 0.1.0"}
    rows = re.findall(r"^\| (\*\*.+|Artemis.+|RabbitMQ.+) \|$", (pages / "benchmarks.md").read_text(), re.MULTILINE)
    assert len(rows) == 5
    for row in rows:
        name, *rates = (cell.strip("* ") for cell in row.split("|"))
        plain = re.sub(r",| queue.*", "", names.get(name, name))
        (found,) = [key for key in measured if key == plain or (name not in names and key.startswith(plain))]
        assert rates == measured[found]


def test_plots_escape_their_texts() -> None:
    plots = module("plots")
    drawn = plots.panels("a < b", {"<x>": [("n & m", [1.0, None])]}, ["s>", "t"], lambda value: f"<{value}>")
    texts = [element.text for element in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["a < b", "s>", "t", "<x>", "n & m", "<1.0>"]


# --- fetching ---


def test_what_was_made_once_is_not_made_again_and_what_was_half_made_is(tmp_path: Path) -> None:
    packages = module("packages")
    made = []

    def make(folder: Path) -> None:
        assert list(folder.iterdir()) == []
        (folder / "part").touch()
        made.append(folder)
        if len(made) == 1:
            raise packages.Unavailable("the line is cut")

    with pytest.raises(packages.Unavailable):
        packages.once(tmp_path / "thing", make)
    for _ in range(2):
        assert packages.once(tmp_path / "thing", make) == tmp_path / "thing"
    assert len(made) == 2
    (tmp_path / "thing").rename(tmp_path / "moved")
    packages.once(tmp_path / "moved", make)
    assert len(made) == 3


def test_a_program_that_is_not_there_or_fails_is_named() -> None:
    packages = module("packages")
    with pytest.raises(packages.Unavailable, match="no-such-program is not on the path"):
        packages.run(["no-such-program"], seconds=5)
    with pytest.raises(packages.Unavailable, match="failed: E: no such package here"):
        packages.run([sys.executable, "-c", "print('more'); exit('E: no such package here')"], seconds=60)


def test_an_unavailable_broker_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    brokers, packages = module("peer_brokers"), module("packages")
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    monkeypatch.setattr(module("debian").platform, "freedesktop_os_release", lambda: {"ID": "other"})
    places = brokers.Places(cache=tmp_path / "cache", data=tmp_path)
    with ExitStack() as started:
        running, missing = brokers.start_all(("rabbitmq", "rabbitmq4", "artemis"), places, 1, started)
    assert running == []
    assert missing == {
        "RabbitMQ of this Debian": "this system is not Debian; Debian's packages are required",
        "RabbitMQ 4": "this system is not Debian; Debian's packages are required",
        "ActiveMQ Artemis": "it requires Java",
    }
    assert capsys.readouterr().out.count("not available") == 3


def test_a_folder_that_is_given_and_has_no_broker_is_named(tmp_path: Path) -> None:
    brokers = module("peer_brokers")
    (tmp_path / "data").mkdir()
    places = brokers.Places(cache=tmp_path, data=tmp_path / "data", rabbitmq=tmp_path, artemis=tmp_path)
    with ExitStack() as started:
        _, missing = brokers.start_all(("rabbitmq", "artemis"), places, 1, started)
    assert missing["RabbitMQ of this Debian"] == f"there is no rabbitmq-server in {tmp_path}"
    assert missing["ActiveMQ Artemis"] == f"there is no bin/artemis in {tmp_path}"


def test_without_a_compiler_the_comparison_names_the_requirement(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "tools.bench",
        "peers",
        "--cache",
        str(tmp_path / "cache"),
        "--folder",
        str(tmp_path),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (1, "bench: the load client requires a C compiler\n")


def test_sources_of_apt_are_those_of_the_other_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debian = module("debian")
    there, made = tmp_path / "apt", tmp_path / "made"
    (there / "sources.list.d").mkdir(parents=True)
    made.mkdir()
    (there / "sources.list.d/debian.sources").write_text("URIs: mirror\nSuites: old old-updates old-security\n")
    (there / "sources.list.d/other.sources").write_text("URIs: elsewhere\nSuites: any\n")
    monkeypatch.setattr(debian, "_SOURCES", there)
    debian._write_sources(made, "old", "new")
    (written,) = made.iterdir()
    assert written.read_text().split() == ["URIs:", "mirror", "Suites:", "new", "new-security"]
    with pytest.raises(module("packages").Unavailable, match="apt has no sources of young"):
        debian._write_sources(made, "young", "new")


def test_programs_of_another_release_are_started_through_its_loader(tmp_path: Path) -> None:
    debian = module("debian")
    libraries = tmp_path / "usr/lib/some-linux-gnu"
    programs = tmp_path / "usr/lib/erlang/bin"
    libraries.mkdir(parents=True)
    programs.mkdir(parents=True)
    (libraries / "ld-linux-some.so.2").write_text('#!/bin/sh\necho "$@"\n')
    (libraries / "ld-linux-some.so.2").chmod(0o755)
    (programs / "epmd").write_bytes(b"\x7fELF...")
    (programs / "erl").write_text("#!/bin/sh\nROOTDIR=/usr/lib/erlang\n")
    debian._move_home(tmp_path)
    said = subprocess.run([str(programs / "epmd"), "-d"], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["--argv0", str(programs / "epmd"), "--library-path", str(libraries), f"{programs}/epmd.elf", "-d"]
    assert (programs / "erl").read_text() == f"#!/bin/sh\nROOTDIR={tmp_path}/usr/lib/erlang\n"


# --- runs ---


def test_a_run_goes_on_with_the_figures_that_are_there(tmp_path: Path) -> None:
    peers = module("peers")
    file = tmp_path / "deep" / "peers.json"
    first = peers.Results(file, peers.Options(), tmp_path, goes_on=False)
    first.add("cells", cell("Peeklock 1", "send", 0, 5.0))
    again = peers.Results(file, peers.Options(), tmp_path, goes_on=True)
    assert again.has("cells", broker="Peeklock 1", phase="send", round=0)
    assert not again.has("cells", broker="Peeklock 1", phase="send", round=1)
    anew = peers.Results(file, peers.Options(), tmp_path, goes_on=False)
    assert anew.data["cells"] == []


def test_what_an_earlier_run_sent_is_sent_again_before_it_is_received(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers, proton = module("peers"), module("proton")
    measured: list[tuple[str, ...]] = []

    def apply(program: Path, access: Any, loads: list[Any], before: Callable[[], None] = lambda: None) -> list[Any]:
        before()
        # What drains a queue takes less than it asks for, and ends.
        measured.append(tuple("drain" if load.quiet else load.side for load in loads))
        return [proton.Done(load.count, 0, 0.0, 1.0, 0.5, {}) for load in loads]

    monkeypatch.setattr(peers, "apply", apply)
    broker = SimpleNamespace(cpu_seconds=lambda: 1.0, resident_bytes=lambda: 1)
    about = {"connections": 1, "queues": 1, "size": 1024}
    expected = {
        (): [("send",), ("receive",), ("send", "receive")],
        ("send",): [("drain",), ("send",), ("receive",), ("send", "receive")],
        ("send", "receive"): [("send", "receive")],
        ("send", "receive", "both"): [],
    }
    for there, works in expected.items():
        results = peers.Results(tmp_path / "peers.json", peers.Options(), tmp_path, goes_on=False)
        for phase in there:
            results.add("cells", cell("Peeklock 1", phase, 0, 5.0, **about))
        measured.clear()
        measuring = peers._Measuring(tmp_path, peers.Options(), results)
        measuring._cell(peers.Cell(**about), broker, "Peeklock 1", None, 0)
        assert measured == works
        assert [row["phase"] for row in results.data["cells"]] == ["send", "receive", "both"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("import sys; sys.exit('no such port')", "no such port"),
        ("import sys; print('ready', flush=True); sys.exit('link closed')", "link closed"),
        ("print('ready', flush=True); input()", "the load client did not answer in time"),
    ],
)
def test_a_load_client_that_ends_early_is_a_failure_of_its_load(tmp_path: Path, words: str, complaint: str) -> None:
    proton = module("proton")
    program = tmp_path / "load"
    pid = tmp_path / "pid"
    program.write_text(f"#!{sys.executable}\nimport os; open({str(pid)!r}, 'w').write(str(os.getpid()))\n{words}\n")
    program.chmod(0o755)
    load = proton.Load(side="send", count=1, size=8)

    def wait_until_it_has_ended() -> None:
        if "sys.exit" in words:
            os.waitid(os.P_PID, int(pid.read_text()), os.WEXITED | os.WNOWAIT)

    with pytest.raises(module("load").LoadFailed, match=f"send at q: {complaint}"):
        proton.apply(program, proton.Access(port=1, address="q"), [load], wait_until_it_has_ended)


def test_a_sink_that_does_not_start_is_a_failure_of_the_load(tmp_path: Path) -> None:
    proton = module("proton")
    with pytest.raises(module("load").LoadFailed, match="sink did not start"), proton.Sink(Path("/bin/false"), 8):
        pass


def test_figures_of_another_kind_are_not_gone_on_with(tmp_path: Path) -> None:
    peers = module("peers")
    file = tmp_path / "peers.json"
    file.write_text("{}")
    with pytest.raises(ValueError, match="has figures of another kind"):
        peers.Results(file, peers.Options(), tmp_path, goes_on=True)


def test_large_messages_are_fewer() -> None:
    options = module("peers").Options()
    assert options.messages(100) == options.messages(1024) == options.count
    assert options.messages(65_536) * 65_536 <= options.bytes
    assert replace(options, bytes=1).messages(1024) == 1


def test_the_load_is_given_what_the_broker_needs() -> None:
    proton = module("proton")
    access = proton.Access(port=7, address="q", user="u", password="p", confirmed=True)
    words = proton.Load(side="receive", count=5, size=65_536, connections=4, queues=100).arguments(access)
    assert {"--port=7", "--user=u", "--password=p", "--confirmed", "--credit=10", "--window=243"} <= set(words)
    words = proton.Load(side="send", count=5, size=100).arguments(replace(access, user=None))
    assert not {"--confirmed", "--user=u"} & set(words)
    assert {"--window=2000", "--credit=1000"} <= set(words)
