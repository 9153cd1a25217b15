"""The signals that stop a long-running command."""

from __future__ import annotations

import signal


def stopping_signals() -> list[signal.Signals]:
    """Return the signals to handle: SIGTERM and SIGINT, except signals that the process was started to ignore.

    A shell script starts its background commands with SIGINT ignored, so that a Ctrl-C for the script leaves them
    running.
    """
    return [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not signal.SIG_IGN]
