"""The offset of a claiming stream: the sequence numbers that a micro-batch has claimed.

This module has values only; `claims` and `broker_claims` make and settle them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self
from uuid import UUID

from peeklock.spark import ranges
from peeklock.spark.pages import PARTITION_BITS
from peeklock.spark.ranges import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The limits of a claim."""

    messages: int | None = None
    size: int | None = None
    """Bytes; a claim always has at least one message."""
    ends: Mapping[int, int] | None = None
    """The last sequence number that may be claimed, by its partition."""

    @property
    def through(self) -> int | None:
        """The highest number that may be claimed from an entity without partitions; 0 for none."""
        return None if self.ends is None else max(self.ends.values(), default=0)

    def allows(self, number: int) -> bool:
        return self.ends is None or number <= self.ends.get(number >> PARTITION_BITS, -1)


@dataclass(slots=True)
class Claim:
    """The messages claimed for one micro-batch."""

    parts: dict[str | None, Ranges] = field(default_factory=dict)
    """Sequence numbers by session id; None for messages without a session."""
    size: int = 0
    count: int = 0
    ids: tuple[str, ...] = ()
    """Ids of the claims, if the broker stores them."""

    def add(self, session_id: str | None, number: int, size: int) -> None:
        part = self.parts.setdefault(session_id, [])
        if part and number == part[-1][1] + 1:
            part[-1][1] = number
        else:
            part.append([number, number])
        self.size += size
        self.count += 1

    @property
    def numbers(self) -> dict[str | None, list[int]]:
        return {id: list(ranges.numbers(part)) for id, part in self.parts.items()}

    def joined(self, other: Claim) -> Claim:
        parts = {id: ranges.join(self.parts.get(id, []), other.parts.get(id, [])) for id in self.parts | other.parts}
        return Claim(parts, self.size + other.size, self.count + other.count, self.ids + other.ids)

    def room(self, limit: Limit) -> Limit:
        """Return the part of the limit that this claim leaves."""
        return replace(
            limit,
            messages=None if limit.messages is None else limit.messages - self.count,
            size=None if limit.size is None else limit.size - self.size,
        )

    def has_room(self, limit: Limit) -> bool:
        return (limit.messages is None or self.count < limit.messages) and (
            limit.size is None or self.size < limit.size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """The messages that one micro-batch has claimed; Spark stores it as JSON."""

    entity: str
    claim: str
    batch: int = 0
    size: int = 0
    """The size of its messages in bytes."""
    claimed: Ranges = field(default_factory=list)
    sessions: Mapping[str, Ranges] = field(default_factory=dict)
    """Numbers by session, for an entity with sessions; `claimed` is then empty."""
    ids: tuple[str, ...] = ()
    """Ids of claims that the broker stores. Without ids, the messages are deferred."""
    removing: tuple[str, ...] = ()
    """Claims of earlier, durable batches whose removal was not confirmed when this offset was made."""
    owner: str = ""
    """The id of the query, which marks the messages that it defers; empty if the user has named the claims."""

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Parse an offset from JSON. Raises ValueError if it is not an offset."""
        try:
            return cls(
                entity=str(value["entity"]),
                claim=str(value["claim"]),
                batch=int(value["batch"]),
                size=int(value["bytes"]),
                claimed=ranges.check(value.get("claimed", [])),
                sessions={str(id): ranges.check(each) for id, each in value.get("sessions", {}).items()},
                ids=tuple(str(UUID(id)) for id in value.get("claimIds", ())),
                removing=tuple(str(UUID(id)) for id in value.get("removing", ())),
                owner=str(value.get("owner", "")),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{value!r} is not an offset of a claiming stream: {error!r}") from None

    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = {
            "entity": self.entity,
            "claim": self.claim,
            "batch": self.batch,
            "bytes": self.size,
            "claimed": self.claimed,
        }
        if self.sessions:
            value["sessions"] = dict(self.sessions)
        if self.ids:
            value["claimIds"] = list(self.ids)
        if self.removing:
            value["removing"] = list(self.removing)
        if self.owner:
            value["owner"] = self.owner
        return value

    def following(self, claim: Claim, removing: tuple[str, ...] = (), owner: str = "") -> Offset:
        """Return the offset of the next batch, which has this claim."""
        by_session = {id: ranges.join(part) for id, part in claim.parts.items()}
        claimed = by_session.pop(None, [])
        sessions = {id: each for id, each in by_session.items() if id is not None}
        return Offset(
            entity=self.entity,
            claim=self.claim,
            batch=self.batch + 1,
            size=claim.size,
            claimed=claimed,
            sessions=sessions,
            ids=claim.ids,
            removing=removing,
            owner=owner or self.owner,
        )

    @property
    def count(self) -> int:
        return ranges.count(self.claimed) + sum(map(ranges.count, self.sessions.values()))

    def parts(self) -> Iterator[tuple[str | None, Ranges]]:
        if self.claimed:
            yield None, self.claimed
        yield from self.sessions.items()
