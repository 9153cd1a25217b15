"""Deletes entities that were not used for a while (AutoDeleteOnIdle)."""

from __future__ import annotations

from collections.abc import Callable

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.entity import Entity


class Idleness:
    """One appointment for each entity, for the earliest time at which it may have to be deleted."""

    def __init__(self, agenda: Agenda, on_idle: Callable[[Entity], None]) -> None:
        self._agenda = agenda
        self._on_idle = on_idle
        self._appointments: dict[int, Appointment] = {}

    def watch(self, entity: Entity) -> None:
        """Delete the entity when it has been idle for the time in its current definition."""
        self.forget(entity)
        limit = entity.definition.auto_delete_on_idle_ms
        if limit is not None and not _forwards(entity):
            self._expect(entity, entity.used_at + limit)

    def forget(self, entity: Entity) -> None:
        appointment = self._appointments.pop(entity.id, None)
        if appointment is not None:
            appointment.cancel()

    def _expect(self, entity: Entity, monotonic: int) -> None:
        self._appointments[entity.id] = self._agenda.when_elapsed(monotonic, lambda: self._look(entity))

    def _look(self, entity: Entity) -> None:
        self._appointments.pop(entity.id, None)
        limit = entity.definition.auto_delete_on_idle_ms
        if limit is None:
            return
        now = self._agenda.monotonic()
        if entity.is_in_use:
            entity.used_at = now
        idle_at = entity.last_used_at + limit
        if idle_at <= now:
            self._expect(entity, now + limit)  # in case the deletion fails
            self._on_idle(entity)
        else:
            self._expect(entity, idle_at)


def _forwards(entity: Entity) -> bool:
    """Return whether the entity forwards. Then it is never idle, as if a receiver were attached."""
    return entity.definition.forward_to is not None
