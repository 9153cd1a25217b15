"""Encode the rows of a task as runs of messages: many rows together if all are valid, else one by one.

This module checks what a row requires: an id that stays the same at every attempt, an entity, and the limits of the
service. `encoding` and `outgoing` are the two ways of encoding, `grouping` groups the messages, and `stamping` makes
ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql.types import StructType

from peeklock.amqp.errors import EncodeError
from peeklock.amqp.message import Message, Properties
from peeklock.limits.broker import MAX_ID_LENGTH
from peeklock.spark.encoding import encode, pieces
from peeklock.spark.grouping import runs_of_batch
from peeklock.spark.outgoing import Outgoing, messages_of
from peeklock.spark.parcels import Parcel, Run, runs_of
from peeklock.spark.stamping import Stamps

_FEW: Final = 256
"""The most rows that are encoded one by one because one of them is unusual. Larger batches are halved first."""
_TEXTS: Final = attrgetter(
    "to", "subject", "reply_to", "correlation_id", "content_type", "group_id", "reply_to_group_id"
)
"""The texts in the properties of a message, without the id."""


class Piece(NamedTuple):
    """Rows that are encoded together."""

    batch: pa.RecordBatch
    rows_before: int
    """Rows of the task before these."""


Refuse = Callable[[Piece, int, str], None]
"""Called with a row that cannot be a message, and the reason."""


class Packing:
    """Encodes the rows of one task, and counts the bytes in `payload_bytes`."""

    def __init__(
        self,
        schema: StructType,
        stamps: Stamps,
        refuse: Refuse,
        *,
        entity: str | None,
        typed_json: bool,
    ) -> None:
        """`entity` is the destination of all rows; if it is None, the column `entity` has it for each row."""
        self._schema = schema
        self._stamps = stamps
        self._refuse = refuse
        self._entity = entity
        self._typed_json = typed_json
        self.payload_bytes = 0

    def runs(self, piece: Piece) -> Iterator[Iterable[Run]]:
        """Yield the messages in parts of bounded size, to be sent in this order. The runs of a part have no order."""
        at = piece.rows_before
        for batch in pieces(piece.batch):
            part = Piece(batch, at)
            at += batch.num_rows
            runs = self.together(part)
            if runs is not None:
                yield runs
            elif batch.num_rows <= _FEW:
                yield runs_of(self.one_by_one(part))
            else:
                half = batch.num_rows // 2
                yield from self.runs(Piece(batch.slice(0, half), part.rows_before))
                yield from self.runs(Piece(batch.slice(half), part.rows_before + half))

    def together(self, piece: Piece) -> Iterator[Run] | None:
        """Encode the rows together; None if a row must be encoded alone."""
        encoded = encode(piece.batch, self._schema, self._stamps, entity=self._entity, typed_json=self._typed_json)
        if encoded is None:
            return None
        self.payload_bytes += encoded.payload_bytes
        return runs_of_batch(piece.batch, encoded, self._entity, piece.rows_before, piece)

    def one_by_one(self, piece: Piece) -> Iterator[Parcel]:
        """Encode row by row, and leave out refused rows."""
        for outgoing in messages_of(piece.batch, self._schema, typed_json=self._typed_json):
            entity = self._entity or outgoing.entity
            problem = outgoing.problem or _problem(outgoing, entity)
            if problem is None:
                assert outgoing.message is not None
                assert entity is not None
                try:
                    yield self._parcel(outgoing, outgoing.message, entity, piece)
                    continue
                except EncodeError as error:
                    problem = error.description
            self._refuse(piece, outgoing.row, problem)

    def _parcel(self, outgoing: Outgoing, message: Message, entity: str, piece: Piece) -> Parcel:
        properties = message.properties or Properties()
        annotations = b""
        if message.message_annotations:
            annotations = Message(message_annotations=message.message_annotations).encode()
        content = Message(application_properties=message.application_properties, data=message.data).encode()
        if properties.message_id is None:
            texts = repr(_TEXTS(properties)).encode()  # faster than encoding them twice
            properties.message_id = self._stamps.stamp(entity.encode(), annotations, texts, content)
        payload = annotations + properties.encode() + content
        self.payload_bytes += len(payload)
        return Parcel(
            piece.rows_before + outgoing.row,
            entity,
            str(properties.message_id),
            payload,
            outgoing.session_id,
            outgoing.partition_key,
            piece,
        )


def _problem(outgoing: Outgoing, entity: str | None) -> str | None:
    """Return the reason why the service would refuse or misread the message; None without one."""
    if not entity:
        return "neither the options nor the column 'entity' name an entity"
    properties = outgoing.message.properties if outgoing.message is not None else None
    message_id = None if properties is None else properties.message_id
    texts = (
        ("message_id", message_id),
        ("session_id", outgoing.session_id),
        ("partition_key", outgoing.partition_key),
        ("reply_to_session_id", None if properties is None else properties.reply_to_group_id),
    )
    for name, text in texts:
        if isinstance(text, str) and len(text) > MAX_ID_LENGTH:
            return f"the {name} has {len(text)} characters; at most {MAX_ID_LENGTH} are allowed"
    session_id, partition_key = outgoing.session_id, outgoing.partition_key
    if session_id is not None and partition_key is not None and session_id != partition_key:
        return f"the partition_key '{partition_key}' must be equal to the session_id '{session_id}'"
    return None
