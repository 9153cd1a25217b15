"""azure-servicebus 0.21 for Python, which uses HTTP only: the oldest client of Service Bus that can be installed.

Version 0.50 contains the same client beside a client for AMQP (`test_uamqp`).
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from serving import ServedBroker
from toolchains import python_with

PROGRAM = Path(__file__).parent / "old" / "http_client.py"


def test_the_http_only_sdk_administers_sends_and_receives(served: ServedBroker) -> None:
    python = python_with("old-http-client", "azure-servicebus==0.21.1")
    ended = subprocess.run(
        [python, PROGRAM, str(served.port), str(served.authority)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + served.log
    assert json.loads(ended.stdout) == {
        "queues": ["Orders/New", "queue", "session-queue"],
        "topics": ["News", "topic"],
        "subscriptions": ["Mine"],
        "rules": ["Large"],
        "queue": ["Orders/New", 5],
        "subscription": "Mine",
        "body": "one",
        "label": "l",
        "properties": True,
        "count": 2,
        "empty": None,
        "batch": ["first", "second"],
        "copy": "5",
    }
