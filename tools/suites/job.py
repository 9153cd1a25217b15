"""A command of a suite that runs beside a broker of its own, and how its outcomes are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tools.suites.outcome import Outcome

ENDED_LATE: Final = 124
"""The exit code of a job whose time ran out."""


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    command: Sequence[str]
    folder: Path
    """Where the command runs."""
    output: Path
    """A folder for what it prints and reports."""
    seconds: float
    """It is ended after that."""
    ends_with: Sequence[int] = field(default_factory=lambda: [0, 1])
    """Exit codes of a command that has run all its tests."""
    premium: bool = False
    """It needs a second broker, with the premium profile."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to that of this process and to the broker's."""

    @property
    def log(self) -> Path:
        """What the command printed."""
        return self.output / "log.txt"

    @property
    def lane_log(self) -> Path:
        """What the lane printed: why it could not run the command."""
        return self.output / "lane.log"

    @property
    def ended(self) -> Path:
        """Has the exit code, when the job has ended."""
        return self.output / "ended"

    @property
    def broker_log(self) -> Path:
        return self.output / "broker.log"

    @property
    def report(self) -> Path:
        """Outcomes, one JSON object a line, if the command writes such."""
        return self.output / "report.jsonl"

    def dump(self) -> str:
        paths = {"folder": str(self.folder), "output": str(self.output)}
        return json.dumps({**asdict(self), **paths})

    @classmethod
    def load(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**{**fields, "folder": Path(fields["folder"]), "output": Path(fields["output"])})


Reader = Callable[[Job], list[Outcome]]
"""Reads the outcomes of a job that has ended."""


def read_report(job: Job) -> list[Outcome]:
    """For commands that write `report`."""
    lines = job.report.read_text().splitlines() if job.report.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return list({each.test: each for each in outcomes}.values())
