"""azure-servicebus 7.8 for Python, the last version on uamqp, a client in C that other old SDKs use, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from serving import ServedBroker
from toolchains import python_with

PROGRAM = Path(__file__).parent / "old" / "uamqp_client.py"


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="uamqp has no wheel for this Python")
def test_a_client_on_uamqp_sends_large_messages_settles_and_has_sessions(served: ServedBroker) -> None:
    python = python_with("uamqp-client", "azure-servicebus==7.8.3", "uamqp==1.6.11")
    ended = subprocess.run(
        [python, PROGRAM, str(served.port), str(served.authority)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + served.log
    assert json.loads(ended.stdout) == {
        "peeked": 3,
        "sizes": [5, 70_000, 200_000],
        "numbers": [None] * 3,
        "deleted": [200_000, "because"],
        "state": "state",
        "session": ["a", "b"],
    }
