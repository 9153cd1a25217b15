"""The operations of `$management` as a table: name, right, request and response keys, and the function.

The table is what requests are checked against, and what docs/management-operations.md is made from.
"""

from __future__ import annotations

from typing import Final

from peeklock.nodes import claim_operations, message_operations, rule_operations, session_operations
from peeklock.nodes.operation import Operation

OPERATIONS: Final[dict[str, Operation]] = {
    operation.name: operation
    for operation in (
        *message_operations.OPERATIONS,
        *session_operations.OPERATIONS,
        *rule_operations.OPERATIONS,
        *claim_operations.OPERATIONS,
    )
}
