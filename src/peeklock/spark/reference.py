"""Generate the tables of docs/spark.md from the options and the columns.

`python -m peeklock.spark.reference docs/spark.md` replaces the tables between their marks; a test compares the two.
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
    "body": "the body in bytes; for an amqp-value or amqp-sequence that is not binary, its text or JSON",
    "message_id": "the sender's id, by which duplicates are detected",
    "session_id": "the session id",
    "partition_key": "the key that selects the partition",
    "subject": "the subject (label)",
    "content_type": "the content type of the body",
    "correlation_id": "the id of the message that it answers",
    "reply_to": "the address for replies",
    "reply_to_session_id": "the session for replies",
    "to": "the destination that the sender set",
    "sequence_number": "the number that the entity assigned",
    "enqueued_sequence_number": "for a forwarded message or a subscription's copy: the number from the first entity",
    "enqueued_time": "when the entity accepted it",
    "scheduled_enqueue_time": "the time for which it is or was scheduled",
    "expires_at": "when its time to live ends",
    "delivery_count": "how often it was delivered without being settled",
    "state": "`active`, `deferred` or `scheduled`; `active` for a message that was claimed or received",
    "dead_letter_reason": "the reason for dead-lettering",
    "dead_letter_error_description": "the description of the reason",
    "dead_letter_source": "the entity that dead-lettered it, if dead letters are forwarded",
    "application_properties": "the application properties, without the two dead-letter properties above",
    "entity": "the entity that was read; for a write the target, if no option sets it",
}
"""The content of each column."""


def table() -> Iterator[tuple[str, str, str, str]]:
    """Yield name, uses, default, and description with rule of each option, for the documentation."""
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
        ("Column", "Type", "Written", "Content"),
        [
            (f"`{field.name}`", f"`{field.dataType.simpleString()}`", _written(field.name), MEANINGS[field.name])
            for field in SCHEMA.fields
        ],
    )


def options() -> str:
    return _table(
        ("Option", "For", "Default", "Effect"),
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
