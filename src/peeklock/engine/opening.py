"""The open performative (2.7.1): makes our open, and checks the limits in the peer's open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import MIN_MAX_FRAME_SIZE
from peeklock.amqp.performatives import Open
from peeklock.engine.errors import CloseConnection
from peeklock.engine.idleness import MIN_IDLE_TIME_OUT_MS
from peeklock.limits.amqp import CHANNEL_MAX, IDLE_TIME_OUT_MS, MAX_FRAME_SIZE

ESTABLISHMENT_FAILED: Final = "amqp:connection-establishment-failed"
"""A property of an open, which announces that a close with the reason follows."""
_USUAL_FRAME_SIZE: Final = 65536


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values that one side sends in its open."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = MAX_FRAME_SIZE
    channel_max: int = CHANNEL_MAX
    idle_time_out_ms: int | None = IDLE_TIME_OUT_MS
    offered_capabilities: tuple[str, ...] = ()
    properties: dict[Any, Any] | None = None


def make_open(settings: Settings, capabilities: Sequence[str], remote: Open | None, *, refused: bool) -> Open:
    """Make our open. `remote` is the peer's open, if it arrived first. `refused` announces that a close follows."""
    properties = dict(settings.properties or {})
    if refused:
        properties[ESTABLISHMENT_FAILED] = True
    return Open(
        container_id=settings.container_id,
        hostname=settings.hostname,
        max_frame_size=_offered_frame_size(settings.max_frame_size, remote),
        channel_max=settings.channel_max,
        idle_time_out=settings.idle_time_out_ms,
        offered_capabilities=list(capabilities) or None,
        properties=properties,
    )


def _offered_frame_size(ours: int, remote: Open | None) -> int:
    """Return the max-frame-size to offer.

    uamqp, on which older SDKs are based, cannot send larger frames than it accepts. So the answer to an open offers at
    most the max-frame-size of that open, or the usual size if that is larger.
    """
    if remote is None:
        return ours
    return min(ours, max(remote.max_frame_size, _USUAL_FRAME_SIZE))


def check_open(remote: Open) -> None:
    """Raise CloseConnection if the peer's open has a limit that is too low."""
    if remote.max_frame_size < MIN_MAX_FRAME_SIZE:
        raise CloseConnection(
            Condition.INVALID_FIELD, f"max-frame-size {remote.max_frame_size} is below {MIN_MAX_FRAME_SIZE}"
        )
    if remote.idle_time_out and remote.idle_time_out < MIN_IDLE_TIME_OUT_MS:
        raise CloseConnection(
            Condition.NOT_ALLOWED, f"an idle-time-out of {remote.idle_time_out} ms is below {MIN_IDLE_TIME_OUT_MS}"
        )
