"""The generated parts of docs/benchmarks/peers.md and growth.md: tables and plots from the figures of runs.

The text between a pair of marks is replaced; the rest of each page is written by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tools.bench import growth
from tools.bench.peer_tables import (
    CEILING_HEADS,
    LATENCY_HEADS,
    PERCENTILES,
    PHASES,
    PROCESS_HEADS,
    RATE_HEADS,
    RATIO_HEADS,
    ceiling_rows,
    connections,
    groups,
    latencies,
    latency_rows,
    markdown,
    median_of,
    names,
    problems,
    process_rows,
    rate_rows,
    rates,
    ratio_rows,
    title,
)
from tools.bench.plots import Bars, curves, panels
from tools.bench.report import figure, megabytes

PLOTS: Final = "plots"
"""The folder of the plots, beside the pages."""
_ALONG: Final = {
    "messages": "messages in the queue",
    "entities": "queues of the broker; up to 1,000 of them are used in turn",
    "connections": "connections, which send in turn",
    "sessions": "sessions with messages in the queue",
}


def write(folder: Path, peers: Path | None, grown: Path | None) -> list[Path]:
    """Replace the generated parts of the pages for which there are figures; returns the written files."""
    texts: dict[Path, str] = {}
    plots: dict[Path, str] = {}
    outdated: list[Path] = []
    # Everything is generated before anything is written, so that a failure leaves all pages and plots unchanged.
    for name, source, make in (("peers", peers, _peers), ("growth", grown, _growth)):
        if source is not None:
            lines, drawn = make(json.loads(source.read_text()))
            page = folder / f"{name}.md"
            texts[page] = replaced(page.read_text(), name, lines)
            plots |= {folder / PLOTS / plot: drawing for plot, drawing in drawn.items()}
            outdated += (folder / PLOTS).glob(f"{name}-*.svg")
    for old in outdated:
        old.unlink()
    (folder / PLOTS).mkdir(exist_ok=True)
    for path, text in (texts | plots).items():
        path.write_text(text)
    return [*texts, *plots]


def replaced(text: str, name: str, lines: list[str]) -> str:
    """Replace the lines between the marks of this name; ValueError when the page has no such marks."""
    begin, end = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the page needs the lines '{begin}' and '{end}', once and in this order")
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return before + "\n".join([begin, "", *lines, "", end]) + after


# --- the peers ---


def _peers(data: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    lines = _about(data)
    plots: dict[str, str] = {}
    for queues, size in groups(data):
        name = f"peers-{size}-{queues}.svg"
        plots[name] = _rates_plot(data, queues, size)
        lines += ["", f"## {title(queues, size).capitalize()}", "", f"![Messages a second]({PLOTS}/{name})", ""]
        lines += markdown(RATE_HEADS, rate_rows(data, queues, size))
        ratios = ratio_rows(data, queues, size)
        if ratios:
            lines += ["", *markdown(RATIO_HEADS, ratios)]
    for rate in rates(data):
        name = f"peers-latency-{rate}.svg"
        plots[name] = _latency_plot(data, rate)
        lines += ["", f"## Latency in ms at {rate:,} messages a second", "", f"![Latency]({PLOTS}/{name})", ""]
        lines += markdown(LATENCY_HEADS, latency_rows(data, rate))
    lines += ["", "## Start-up and memory", "", *markdown(PROCESS_HEADS, process_rows(data))]
    lines += ["", "## The load client by itself", "", *markdown(CEILING_HEADS, ceiling_rows(data))]
    found = list(dict.fromkeys(problems(data)))
    if found:
        lines += ["", "## What is missing or was not finished", "", *(f"- {problem}" for problem in found)]
    return lines, plots


def _about(data: dict[str, Any]) -> list[str]:
    hardware, options = data["machine"], data["options"]
    rounds = max((cell["round"] for cell in data["cells"]), default=0) + 1
    lines = [
        f"Measured on {data['when']}: {hardware['cpus']} CPUs ({hardware['model']}) shared by load and broker, "
        f"{megabytes(hardware['memory_bytes'])} MB of memory, {hardware['system']}, {data['file_system']}, "
        f"Python {hardware['python']}. Medians of {rounds} {'round' if rounds == 1 else 'rounds'}, "
        f"{options['count']:,} messages in a cell, or as many as {megabytes(options['bytes'])} MB are. "
        f"Load client: Apache Qpid Proton's engine, `{data['load_client']}`.",
        "",
        "| broker | settings |",
        "| --- | --- |",
    ]
    for one in data["brokers"]:
        settings = "; ".join(f"{name}: {value}" for name, value in one["settings"].items())
        lines.append(f"| {one['name']} | {settings} |")
    return lines


def _rates_plot(data: dict[str, Any], queues: int, size: int) -> str:
    numbers = connections(data)

    def bars(phase: str) -> Bars:
        keys = {"queues": queues, "size": size, "phase": phase}
        return [
            (name, [median_of(data, "per_second", broker=name, connections=number, **keys) for number in numbers])
            for name in names(data)
        ]

    series = [f"{number} {'connection' if number == 1 else 'connections'}" for number in numbers]
    return panels(f"Messages a second, {title(queues, size)}", {phase: bars(phase) for phase in PHASES}, series, figure)


def _latency_plot(data: dict[str, Any], rate: int) -> str:
    found = {
        name: [value * 1000 for value in values if value is not None]
        for name, values in latencies(data, rate).items()
        if None not in values
    }
    of = {
        "send": [(name, values[:3]) for name, values in found.items()],
        "end to end": [(name, values[3:]) for name, values in found.items()],
    }
    return panels(f"Latency in ms at {rate:,} messages a second", of, PERCENTILES, lambda value: figure(value, 2))


# --- growth ---


def _growth(data: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    options = data["options"]
    lines = [
        f"Measured on {data['when']}: {data['machine']}, {data['file_system']}. Messages of {options['size']} bytes, "
        f"medians of {options['rounds']}."
    ]
    plots: dict[str, str] = {}
    for name, points in data["curves"].items():
        plot = f"growth-{name}.svg"
        plots[plot] = curves(
            f"The broker's CPU time for each message, µs, as {name} grow",
            {
                "send": [(point["at"], point["send_us"]) for point in points],
                "receive and complete": [(point["at"], point["receive_us"]) for point in points],
            },
            lambda value: figure(value, 0 if value == int(value) else 1),
            _ALONG[name],
        )
        lines += ["", f"## {name.capitalize()}", "", f"![Cost as {name} grow]({PLOTS}/{plot})", ""]
        lines += markdown(growth.HEADS, [growth.row(growth.Point(**point)) for point in points])
    return lines, plots
