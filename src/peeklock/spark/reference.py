"""The tables of docs/spark.md, made from the options and the columns.

`python -m peeklock.spark.reference docs/spark.md` writes them anew between their marks; a test compares the two.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

from peeklock.spark.options import USES, Option, Options
from peeklock.spark.outgoing import WRITABLE
from peeklock.spark.rows import SCHEMA

_MARKED: Final = re.compile(r"(<!-- made: (\w+) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)

MEANINGS: Final[Mapping[str, str]] = {
    "body": "the bytes of the message; of a value or sequence that is no binary, its text or JSON",
    "message_id": "the sender's id, by which duplicates are detected",
    "session_id": "the session it belongs to",
    "partition_key": "what the partition is chosen by",
    "subject": "the subject (label)",
    "content_type": "the type of the body",
    "correlation_id": "the id of what it answers",
    "reply_to": "where answers go",
    "reply_to_session_id": "the session that answers go to",
    "to": "the address it was sent to",
    "sequence_number": "the number that the entity gave it",
    "enqueued_sequence_number": "of a forwarded message and of a copy of a topic: the number that it was first given",
    "enqueued_time": "when the entity took it",
    "scheduled_enqueue_time": "when it is, or was, due",
    "expires_at": "when its time to live is over",
    "delivery_count": "how often it was given out in vain",
    "state": "`active`, `deferred` or `scheduled`; of a message that was taken, `active`",
    "dead_letter_reason": "why it is a dead letter",
    "dead_letter_error_description": "the same, at length",
    "dead_letter_source": "which entity it is a dead letter of, where dead letters are forwarded",
    "application_properties": "the sender's own properties, without the two of dead letters above",
    "entity": "the address that was read; written, where the row goes when no option says it",
}
"""What a column holds."""


def table() -> Iterator[tuple[str, str, str, str]]:
    """For the documentation: name, uses, default, and what it is with its rule."""
    for each in fields(Options):
        option: Option | None = each.metadata.get("option")
        if option is None:
            continue
        default = option.default_text or ("none" if each.default is None else _worded(each.default))
        uses = "all" if option.uses == USES else ", ".join(option.uses)
        yield option.name, uses, default, f"{option.doc} Must be {option.rule}."


def _worded(default: object) -> str:
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def page(text: str) -> str:
    """Return the page with newly generated tables."""
    return _MARKED.sub(lambda match: f"{match[1]}{TABLES[match[2]]()}\n{match[4]}", text)


def columns() -> str:
    return _table(
        ("Column", "Type", "Written", "What it holds"),
        [
            (f"`{field.name}`", f"`{field.dataType.simpleString()}`", _written(field.name), MEANINGS[field.name])
            for field in SCHEMA.fields
        ],
    )


def options() -> str:
    return _table(
        ("Option", "For", "Default", "What it does"),
        [(f"`{name}`", uses, default, doc) for name, uses, default, doc in table()],
    )


def _written(column: str) -> str:
    kinds = WRITABLE.get(column)
    if kinds is None:
        return "no"
    return "yes" if len(kinds) == 1 else "as " + " or ".join(kind.typeName() for kind in kinds)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Escape text outside code that would be read as HTML."""
    parts = text.replace("|", "\\|").split("`")
    parts[::2] = [part.replace("<", "&lt;").replace(">", "&gt;") for part in parts[::2]]
    return "`".join(parts)


TABLES: Final[Mapping[str, Callable[[], str]]] = {"columns": columns, "options": options}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
