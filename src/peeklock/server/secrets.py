"""Files that hold keys: a warning is logged when other users can read them."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Final

from peeklock.entities.authorization import DEFAULT_KEY
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.logs import event

log = logging.getLogger(__name__)

_READERS: Final = stat.S_IRGRP | stat.S_IROTH


def warn_of_readers(path: Path, holds: str) -> None:
    """Warn when users other than the owner can read a file with a secret. A missing file is reported elsewhere."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & _READERS:
        event(
            log,
            logging.WARNING,
            f"a file with {holds} can be read by other users; run chmod 600 on it",
            file=path,
            mode=f"{mode:04o}",
        )


def has_keys(namespace: NamespaceDefinition) -> bool:
    """Return whether a definition has a secret key: any key except the well-known one."""
    rules = [*namespace.authorization_rules]
    for queue in namespace.queues:
        rules += queue.authorization_rules
    for topic in namespace.topics:
        rules += topic.authorization_rules
    return any(key != DEFAULT_KEY for rule in rules for key in rule.keys)
