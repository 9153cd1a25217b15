"""A store whose disk hangs on request."""

from __future__ import annotations

from broker.world import FlakyStore


class HeldStore(FlakyStore):
    """Commits wait from `hold` until `let_go`; all of it on the broker's thread."""

    def hold(self) -> None:
        self.held = []

    def step(self) -> None:
        """Let the disk finish the pending operations, and hang again."""
        held, self.held = self.held or [], []
        for commit in held:
            commit()

    def let_go(self) -> None:
        held, self.held = self.held or [], None
        for commit in held:
            commit()
