"""The page of the flow report: one self-contained HTML file, made from the rows of the report's tables.

Text from messages is escaped, and a content security policy in the page forbids scripts and external resources.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any, Final

from peeklock.spark.pipelines.plots import COLOURS, Line, bars, lines, shortened
from peeklock.spark.pipelines.tables import Rows

ALL_OTHERS: Final = "all others"
SHOWN_ROWS: Final = 25
"""The most rows of a table on the page; its Parquet file has more."""
SHOWN_BARS: Final = 15
_LONGEST_CELL: Final = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of the page."""

    source: str
    made_at: datetime
    tables: Mapping[str, Rows]
    every: timedelta
    """The time span of one row of `rates` and `latency`."""
    rates: Rows = field(default_factory=list)
    """Columns entity, minute, messages, bytes; a row for each span."""
    latency: Rows = field(default_factory=list)
    """Columns minute and percentiles of seconds, over all entities; a row for each span."""


# --- formats of values


def number(value: Any) -> str:
    """Format a number as 1,234,567, and fractions with three digits."""
    if value is None:
        return ""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def size(octets: Any) -> str:
    """Format a number of bytes in B, KiB, MiB, GiB or TiB."""
    if octets is None:
        return ""
    value = float(octets)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{number(round(value, 1))} {unit}"
        value /= 1024
    return f"{number(round(value, 1))} TiB"


def duration(seconds: Any) -> str:
    """Format a duration in ms, s, min, h or days."""
    if seconds is None:
        return ""
    value = abs(float(seconds))
    sign = "-" if seconds < 0 else ""
    for unit, length, below in (("ms", 0.001, 1), ("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if value < below:
            return f"{sign}{value / length:.3g} {unit}"
    return f"{sign}{value / 86400:.3g} days"


def share(value: Any) -> str:
    """Format a fraction as a percentage."""
    return "" if value is None else f"{100 * value:.1f} %"


def moment(value: datetime | None) -> str:
    """Format a time in UTC."""
    return "" if value is None else f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def text(value: Any) -> str:
    """Format a text, shortened if it is long."""
    return "" if value is None else shortened(str(value), _LONGEST_CELL)


def yes_or_no(value: Any) -> str:
    """Format a boolean."""
    return "" if value is None else "yes" if value else "no"


Show = Callable[[Any], str]
Columns = Mapping[str, tuple[str, Show]]
"""The heading and the format of each column that is shown."""

_ENTITY: Final = ("Entity", text)
_MESSAGES: Final = ("Messages", number)
ENTITIES: Final[Columns] = {
    "entity": _ENTITY,
    "messages": _MESSAGES,
    "bytes": ("Size", size),
    "first": ("First", moment),
    "last": ("Last", moment),
    "sessions": ("Sessions", number),
    "most_deliveries": ("Most deliveries", number),
    "repeated_ids": ("Repeated ids", number),
    "captured_again": ("Captured again", number),
}
LATENCY: Final[Columns] = {
    "entity": _ENTITY,
    "messages": _MESSAGES,
    "least_seconds": ("Least", duration),
    "p50_seconds": ("50 %", duration),
    "p90_seconds": ("90 %", duration),
    "p95_seconds": ("95 %", duration),
    "p99_seconds": ("99 %", duration),
    "most_seconds": ("Most", duration),
}
SIZES: Final[Columns] = {
    name.replace("seconds", "bytes"): (heading, size if show is duration else show)
    for name, (heading, show) in LATENCY.items()
}
DELIVERIES: Final[Columns] = {
    "entity": _ENTITY,
    "delivery_count": ("Deliveries before", number),
    "messages": _MESSAGES,
    "share": ("Share", share),
}
SKEW: Final[Columns] = {
    "entity": _ENTITY,
    "sessions": ("Sessions", number),
    "messages": _MESSAGES,
    "mean": ("Mean", number),
    "median": ("Median", number),
    "largest": ("Largest", number),
    "skew": ("Largest / mean", number),
    "largest_share": ("Share of the largest", share),
}
DUPLICATES: Final[Columns] = {
    "entity": _ENTITY,
    "message_id": ("Message id", text),
    "times": ("Times", number),
    "alike": ("Same body", yes_or_no),
    "first": ("First", moment),
    "last": ("Last", moment),
}
PROPERTIES: Final[Columns] = {
    "entity": _ENTITY,
    "name": ("Property", text),
    "messages": _MESSAGES,
    "share": ("Share", share),
    "values": ("Values", number),
    "most_frequent": ("Most frequent", text),
    "most_frequent_share": ("Its share", share),
}
_ON_THE_LEFT: Final = (text, moment, yes_or_no)

_STYLE: Final = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:62rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.4rem 0 .4rem;border-bottom:1px solid #ddd}
p.about{color:#555;margin:.2rem 0 1.2rem}p.none{color:#777}p.more{color:#777;font-size:.85rem;margin:.2rem 0}
dl{display:flex;flex-wrap:wrap;gap:.8rem;margin:0}
dl div{background:#f4f6f8;border-radius:6px;padding:.5rem .9rem}
dt{color:#555;font-size:.8rem}dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
div.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem;margin:.6rem 0}
th,td{padding:.2rem .7rem;text-align:left;border-bottom:1px solid #eee;vertical-align:top;overflow-wrap:anywhere}
th{color:#555;font-weight:600;overflow-wrap:normal}
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
svg{width:100%;height:auto;margin:.3rem 0}svg text{font:11px system-ui,sans-serif;fill:#444}
svg .grid{stroke:#e4e4e4}svg .tick{stroke:#999}
p.legend{margin:.4rem 0 0;font-size:.85rem}p.legend span{margin-right:1.2rem}
p.legend i{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
"""
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"


def render(report: Report) -> str:
    """Make the page."""
    tables = report.tables
    per = report.every.total_seconds()
    sections = [
        _section(
            "Entities",
            "Times are in UTC. A repeated id is the message id of an earlier message. Messages that were captured "
            "again count once in the tables below.",
            _table(ENTITIES, tables["entities"]),
        ),
        _section(
            "Rate",
            f"Messages per second, by enqueued time; a point for each {duration(per)}.",
            lines(_by_entity(report, "messages"), lambda value: number(value), "messages per second"),
        ),
        _section(
            "Throughput",
            "Bytes of bodies per second, by enqueued time.",
            lines(_by_entity(report, "bytes"), size, "bytes per second"),
        ),
        _section(
            "From enqueued to captured",
            "The time from enqueued to captured. The plot has all entities by captured time, the table each entity.",
            lines(_percentiles(report.latency), duration, "time from enqueued to captured"),
            _table(LATENCY, tables["latency"]),
        ),
        _section("Size", "Bytes of bodies.", _table(SIZES, tables["sizes"])),
        _section(
            "Deliveries",
            "How often messages had been delivered before they were captured. More than 0 means that a receiver "
            "abandoned or released the message, or that its lock expired.",
            bars(_deliveries(tables["deliveries"]), number, "messages by deliveries before"),
            _table(DELIVERIES, tables["deliveries"]),
        ),
        _section(
            "Sessions",
            "One receiver at a time processes a session, so a session that is much larger than the others determines "
            "the total time.",
            _table(SKEW, tables["session_skew"]),
            bars(_sessions(tables["sessions"]), number, "messages of the largest sessions"),
        ),
        _section(
            "Duplicates",
            "Message ids that an entity received more than once.",
            _table(DUPLICATES, tables["duplicates"]),
        ),
        _section(
            "Properties",
            "The application properties that are on most messages.",
            _table(PROPERTIES, tables["properties"]),
        ),
    ]
    about = f"Source: {report.source}. Created {moment(report.made_at)} UTC."
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Flow report</title><style>{_STYLE}</style></head>\n<body><h1>Flow report</h1>"
        f'<p class="about">{escape(about)}</p>{_overview(tables["entities"])}\n{"".join(sections)}</body></html>\n'
    )


def _overview(entities: Rows) -> str:
    messages = sum(row["messages"] for row in entities)
    first = min((row["first"] for row in entities if row["first"]), default=None)
    last = max((row["last"] for row in entities if row["last"]), default=None)
    facts = {
        "Messages": number(messages),
        "Size": size(sum(row["bytes"] or 0 for row in entities)),
        "Entities": number(len(entities)),
        "Period": duration((last - first).total_seconds()) if first and last else "none",
        "Repeated ids": number(sum(row["repeated_ids"] for row in entities)),
        "Captured again": number(sum(row["captured_again"] for row in entities)),
    }
    tiles = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    return f"<dl>{''.join(tiles)}</dl>"


def _section(title: str, about: str, *parts: str) -> str:
    return f'<h2>{escape(title)}</h2><p class="about">{escape(about)}</p>{"".join(parts)}\n'


def _table(columns: Columns, rows: Rows) -> str:
    if not rows:
        return '<p class="none">None.</p>'

    def cells(tag: str, values: Iterable[str]) -> str:
        kinds = ("" if show in _ON_THE_LEFT else ' class="n"' for _, show in columns.values())
        pairs = zip(values, kinds, strict=True)
        return f"<tr>{''.join(f'<{tag}{kind}>{escape(value)}</{tag}>' for value, kind in pairs)}</tr>"

    head = cells("th", (heading for heading, _ in columns.values()))
    body = "".join(cells("td", (show(row[name]) for name, (_, show) in columns.items())) for row in rows[:SHOWN_ROWS])
    more = len(rows) - SHOWN_ROWS
    rest = f'<p class="more">… and {more} more in the table.</p>' if more > 0 else ""
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>{rest}'


def _by_entity(report: Report, column: str) -> dict[str, Line]:
    """Values per second of the busiest entities and of all others together, with 0 for spans without messages."""
    named = [row["entity"] for row in report.tables["entities"]]
    alone = set(named if len(named) <= len(COLOURS) else named[: len(COLOURS) - 1])
    found: dict[str, dict[datetime, float]] = defaultdict(lambda: defaultdict(float))
    for row in report.rates:
        if row["minute"] is not None:
            entity = row["entity"] if row["entity"] in alone else ALL_OTHERS
            found[entity][row["minute"]] += (row[column] or 0) / report.every.total_seconds()
    moments = [at for values in found.values() for at in values]
    if not moments:
        return {}
    first, last = min(moments), max(moments)
    grid = [first + report.every * step for step in range((last - first) // report.every + 1)]
    order = [name for name in (*named, ALL_OTHERS) if name in found]
    return {str(name): [(at, found[name].get(at, 0.0)) for at in grid] for name in order}


def _percentiles(rows: Rows) -> dict[str, Line]:
    return {
        heading: [(row["minute"], row[name]) for row in rows]
        for name, (heading, _) in LATENCY.items()
        if name in ("p50_seconds", "p95_seconds", "p99_seconds")
    }


def _deliveries(rows: Rows) -> Sequence[tuple[str, float]]:
    total: dict[int, int] = defaultdict(int)
    for row in rows:
        total[row["delivery_count"] or 0] += row["messages"]
    return [(str(count), total[count]) for count in sorted(total)][:SHOWN_BARS]


def _sessions(rows: Rows) -> Sequence[tuple[str, float]]:
    largest = sorted(rows, key=lambda row: -row["messages"])[:SHOWN_BARS]
    several = len({row["entity"] for row in rows}) > 1
    return [
        (f"{row['session_id']} ({row['entity']})" if several else row["session_id"], row["messages"]) for row in largest
    ]
