"""A command of a suite that runs with a separate broker, and how its outcomes are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from tools.suites.outcome import Outcome

ENDED_LATE: Final = 124
"""The exit code of a job that did not end in time."""


@dataclass(frozen=True, kw_only=True)
class Job:
    name: str
    command: Sequence[str]
    folder: Path
    """The working directory of the command."""
    output: Path
    """The folder for its output and report."""
    seconds: float
    """The command is killed after this time."""
    ends_with: Sequence[int] = field(default_factory=lambda: [0, 1])
    """Exit codes of a command that ran all its tests."""
    premium: bool = False
    """It requires a second broker, with the premium profile."""
    environment: dict[str, str] = field(default_factory=dict)
    """Added to the variables of this process and of the broker."""

    @property
    def log(self) -> Path:
        """The output of the command."""
        return self.output / "log.txt"

    @property
    def lane_log(self) -> Path:
        """The output of the lane: why it could not run the command."""
        return self.output / "lane.log"

    @property
    def ended(self) -> Path:
        """Contains the exit code after the job has ended."""
        return self.output / "ended"

    @property
    def broker_log(self) -> Path:
        return self.output / "broker.log"

    @property
    def report(self) -> Path:
        """Outcomes, one JSON object per line, if the command writes them."""
        return self.output / "report.jsonl"

    def dump(self) -> str:
        paths = {"folder": str(self.folder), "output": str(self.output)}
        return json.dumps({**asdict(self), **paths})

    @classmethod
    def load(cls, text: str) -> Job:
        fields = json.loads(text)
        return cls(**{**fields, "folder": Path(fields["folder"]), "output": Path(fields["output"])})


Reader = Callable[[Job], list[Outcome]]
"""Reads the outcomes of an ended job."""


def read_report(job: Job) -> list[Outcome]:
    """Read the outcomes of a command that writes `report`."""
    lines = job.report.read_text().splitlines() if job.report.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return list({each.test: each for each in outcomes}.values())
