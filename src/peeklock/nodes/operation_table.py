"""The operations of `$management` as a table: name, right, request and response keys, and the function.

Requests are checked against the table, and docs/management-operations.md is generated from it.
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
