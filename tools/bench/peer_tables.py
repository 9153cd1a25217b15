"""The figures of the comparison as rows, for the terminal and for the page."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tools.bench.report import NOTHING, figure, megabytes, milliseconds, print_table

PHASES: Final = ("send", "receive", "both")
RATE_HEADS: Final = ("broker", "connections", *(head for phase in PHASES for head in (f"{phase}/s", "MB/s", "µs")))
PERCENTILES: Final = ("p50", "p99", "p99.9")
LATENCY_HEADS: Final = ("broker", *(f"{way} {part}" for way in ("send", "end to end") for part in PERCENTILES))
PROCESS_HEADS: Final = ("broker", "start, s", "idle MB", "at the end MB", "highest MB")
RATIO_HEADS: Final = ("Peeklock compared with", "connections", *PHASES)
CEILING_HEADS: Final = ("bytes", "connections", "send/s", "µs", "receive/s", "µs")

Row = list[str]


def print_tables(data: dict[str, Any]) -> None:
    """Return all tables as text."""
    for queues, size in groups(data):
        print_table(title(queues, size), RATE_HEADS, rate_rows(data, queues, size))
        ratios = ratio_rows(data, queues, size)
        if ratios:
            print_table("Ratio of the medians, and the lowest and highest of a round", RATIO_HEADS, ratios)
    for rate in rates(data):
        print_table(f"Latency in ms at {rate:,} messages a second", LATENCY_HEADS, latency_rows(data, rate))
    print_table("Start-up and resident memory", PROCESS_HEADS, process_rows(data))
    print_table("The load client against a broker that keeps nothing", CEILING_HEADS, ceiling_rows(data))
    for problem in problems(data):
        print(problem)


def title(queues: int, size: int) -> str:
    of = "one queue" if queues == 1 else f"{queues} queues"
    return f"{size:,} bytes, {of}"


def names(data: dict[str, Any]) -> list[str]:
    """Return the brokers with their kinds of queues, in order."""
    return [f"{one['name']} {kind}".strip() for one in data["brokers"] for kind in one["kinds"]]


def groups(data: dict[str, Any]) -> list[tuple[int, int]]:
    """Return the numbers of queues and the sizes for which there are figures."""
    return sorted({(cell["queues"], cell["size"]) for cell in data["cells"]})


def rates(data: dict[str, Any]) -> list[int]:
    return sorted({row["rate"] for row in data["latency"]})


def connections(data: dict[str, Any]) -> list[int]:
    return sorted({cell["connections"] for cell in data["cells"]})


def per_round(data: dict[str, Any], what: str, **keys: Any) -> dict[int, float]:
    """Return the figure of each successful round of a cell; of an unfinished round the figure of its finished part."""
    return {
        cell["round"]: cell[what]
        for cell in data["cells"]
        if "failed" not in cell and cell.get(what) is not None and all(cell[key] == keys[key] for key in keys)
    }


def median_of(data: dict[str, Any], what: str, **keys: Any) -> float | None:
    values = per_round(data, what, **keys).values()
    return statistics.median(values) if values else None


def rate_rows(data: dict[str, Any], queues: int, size: int) -> list[Row]:
    rows = []
    for number in connections(data):
        for name in names(data):
            row = [name, str(number)]
            for phase in PHASES:
                keys = {"broker": name, "queues": queues, "size": size, "connections": number, "phase": phase}
                rate = median_of(data, "per_second", **keys)
                row += [
                    figure(rate),
                    megabytes(None if rate is None else rate * size, 1),
                    figure(median_of(data, "cpu_us", **keys), 1),
                ]
            if any(cell != NOTHING for cell in row[2:]):
                rows.append(row)
    return rows


def ratio_rows(data: dict[str, Any], queues: int, size: int) -> list[Row]:
    """Return the ratios of the first Peeklock's rates to those of each other broker."""
    ours = [name for name in names(data) if name.startswith("Peeklock")]
    others = [name for name in names(data) if name not in ours]
    rows: list[Row] = []
    if not ours:
        return rows
    for number in connections(data):
        for name in others:
            row = [name, str(number)]
            for phase in PHASES:
                keys = {"queues": queues, "size": size, "connections": number, "phase": phase}
                mine = per_round(data, "per_second", broker=ours[0], **keys)
                theirs = per_round(data, "per_second", broker=name, **keys)
                row.append(_ratio(mine, theirs))
            if any(cell != NOTHING for cell in row[2:]):
                rows.append(row)
    return rows


def _ratio(mine: dict[int, float], theirs: dict[int, float]) -> str:
    both = sorted(set(mine) & set(theirs))
    if not both:
        return NOTHING
    each = [mine[number] / theirs[number] for number in both]
    whole = statistics.median(mine[n] for n in both) / statistics.median(theirs[n] for n in both)
    if len(each) == 1:
        return figure(whole, 2)
    return f"{figure(whole, 2)} ({figure(min(each), 2)} – {figure(max(each), 2)})"


def latencies(data: dict[str, Any], rate: int) -> dict[str, list[float | None]]:
    """Return the seconds of each broker, in the order of the columns; None where no round finished."""
    medians: dict[str, list[float | None]] = {}
    for name in names(data):
        tried = [row for row in data["latency"] if (row["broker"], row["rate"]) == (name, rate)]
        done = [row for row in tried if row["complete"]]
        if tried:
            medians[name] = [
                statistics.median(row[way][part] for row in done) if done else None
                for way in ("send", "end_to_end")
                for part in PERCENTILES
            ]
    return medians


def latency_rows(data: dict[str, Any], rate: int) -> list[Row]:
    return [[name, *map(milliseconds, values)] for name, values in latencies(data, rate).items()]


def process_rows(data: dict[str, Any]) -> list[Row]:
    return [
        [
            one["name"],
            figure(statistics.median(one["starts"]), 2),
            *(megabytes(one[what]) for what in ("idle_bytes", "bytes", "highest_bytes")),
        ]
        for one in data["brokers"]
    ]


def ceiling_rows(data: dict[str, Any]) -> list[Row]:
    return [
        [
            f"{row['size']:,}",
            str(row["connections"]),
            *(
                text
                for side in ("send", "receive")
                for text in (figure(row[side]["per_second"]), figure(row[side]["client_us"], 2))
            ),
        ]
        for row in data["ceiling"]
    ]


def problems(data: dict[str, Any]) -> Iterator[str]:
    """Return notes on missing brokers, and on failed and unfinished cells."""
    for name, reason in data["missing"].items():
        yield f"{name} was left out: {_in_short(reason)}."
    for cell in [*data["cells"], *data["latency"]]:
        if not cell["complete"]:
            paced = "rate" in cell
            what = f"at {cell['rate']:,} a second" if paced else _called(cell)
            late = "not all was accepted in its time" + ("" if paced else "; the rate is that of what was done")
            why = cell.get("failed") or late
            yield f"{cell['broker']}, {what}, round {cell['round'] + 1}: {_in_short(why)}."


def _in_short(reason: str) -> str:
    """Shorten a reason to one line, with file names instead of this machine's paths."""
    return re.sub(r"(?:/[\w.+@-]+)+/([\w.+@-]+)", r"\1", " ".join(reason.split())).rstrip(".")[:300]


def _called(cell: dict[str, Any]) -> str:
    return f"{cell['phase']}, {title(cell['queues'], cell['size'])}, {cell['connections']} connections"


def markdown(heads: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return a table in Markdown."""
    return [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows)]
