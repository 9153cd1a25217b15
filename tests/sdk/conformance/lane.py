"""Run scenarios of one SDK, one after the other, in a process that has the standard ports for itself.

    python -m conformance.lane SDK ADDRESS AUTHORITY COMMAND

Standard input has the names of scenarios, standard output a line of JSON for each. AUTHORITY is the file with the
certificate that clients trust, COMMAND that of the SDK's program, as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

from conformance.program import Program, ProgramFailed, SdkError
from conformance.sdks import Command
from conformance.steps import Steps, load
from conformance.world import World
from tools.suites.standard_ports import raise_loopback


class Lane:
    def __init__(self, sdk: str, address: str, authority: Path, command: Command) -> None:
        self._sdk = sdk
        self._address = address
        self._authority = authority
        self._command = command
        self._program: Program | None = None

    def run(self, steps: Steps) -> str | None:
        """Run a scenario and return why it failed, or None."""
        if self._program is None:
            self._program = Program(self._command)
        program = self._program
        reason: str | None = None
        with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
            world = World(self._sdk, program, self._address, self._authority, Path(folder))
            try:
                steps(world)
            except ProgramFailed as failure:
                reason = str(failure)
                self._end()
            except Exception as failure:
                reason = _words(failure)
            try:
                if self._program is not None:
                    program.call("reset")
            except SdkError as failure:
                reason = reason or f"something failed beside the steps: {failure}"
            except ProgramFailed as failure:
                reason = reason or str(failure)
                self._end()
            world.stop()
        return reason

    def _end(self) -> None:
        """Stop the program, so that the next scenario gets a new one."""
        if self._program is not None:
            self._program.stop()
            self._program = None

    def close(self) -> None:
        self._end()


def _words(failure: Exception) -> str:
    """Return the error and the step at which it was raised."""
    places = [frame for frame in traceback.extract_tb(failure.__traceback__) if "/steps/" in frame.filename]
    where = f" (steps/{Path(places[-1].filename).name}:{places[-1].lineno}: {places[-1].line})" if places else ""
    what = str(failure) if isinstance(failure, AssertionError) else f"{type(failure).__name__}: {failure}"
    told = failure if isinstance(failure, SdkError) else failure.__cause__
    trace = f"\n{told.trace}" if isinstance(told, SdkError) and told.trace else ""
    return f"{what}{where}{trace}"


def main() -> None:
    sdk, address, authority, command = sys.argv[1:]
    if address == "127.0.0.1":
        raise_loopback()
    lane = Lane(sdk, address, Path(authority), Command(**json.loads(command)))
    known = load()
    for line in sys.stdin:
        name = line.strip()
        start = time.monotonic()
        try:
            reason = lane.run(known[name])
        except Exception:
            reason = traceback.format_exc()
        print(json.dumps({"reason": reason, "seconds": time.monotonic() - start}), flush=True)
    lane.close()


if __name__ == "__main__":
    main()
