"""Run one job in a process that has the standard ports for itself.

    python -m tools.suites.lane JOB ADDRESS

JOB is a file with the job as JSON. The lane starts a broker with no data for the job and stops it afterwards.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tools.bench.processes import StartFailed
from tools.suites.broker import Broker
from tools.suites.job import ENDED_LATE, Job
from tools.suites.standard_ports import raise_loopback

NAMESPACE_ADDRESS: Final = "127.0.1.1"
"""The broker's address in a network namespace. Some tests require that nothing listens at 127.0.0.1."""


def run(job: Job, address: str) -> int:
    """Return the exit code of the job's command, or ENDED_LATE."""
    with tempfile.TemporaryDirectory(prefix="peeklock-suites-") as folder, job.log.open("wb") as log:
        broker = Broker(address, Path(folder))
        try:
            with ExitStack() as brokers:
                brokers.enter_context(broker)
                environment = {**os.environ, **broker.environment(), **job.environment}
                if job.premium:
                    environment |= brokers.enter_context(broker.premium()).premium_environment()
                process = subprocess.Popen(
                    job.command,
                    cwd=job.folder,
                    env={**environment, "SUITES_REPORT": str(job.report)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    return process.wait(job.seconds)
                except subprocess.TimeoutExpired:
                    return ENDED_LATE
                finally:
                    # Kill the command and its children: they share a session.
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        finally:
            job.broker_log.write_bytes(broker.log.read_bytes() if broker.log.exists() else b"")


def main() -> int:
    file, address = sys.argv[1:]
    if address == "127.0.0.1":
        raise_loopback()
        address = NAMESPACE_ADDRESS
    try:
        return run(Job.load(Path(file).read_text()), address)
    except StartFailed as failure:
        print(failure, file=sys.stderr)
        return 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the broker, too
    sys.exit(main())
