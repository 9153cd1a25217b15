"""Files with keys in them: who else can read them is told, once for each file and start."""

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
    """Warn when users beside the owner can read a file that holds a secret. A missing file is told elsewhere."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if mode & _READERS:
        event(
            log,
            logging.WARNING,
            f"a file with {holds} can be read by other users; chmod 600 makes it yours alone",
            file=path,
            mode=f"{mode:04o}",
        )


def has_keys(namespace: NamespaceDefinition) -> bool:
    """Whether a definition has a key that is a secret."""
    rules = [*namespace.authorization_rules]
    for queue in namespace.queues:
        rules += queue.authorization_rules
    for topic in namespace.topics:
        rules += topic.authorization_rules
    return any(key != DEFAULT_KEY for rule in rules for key in rule.keys)
