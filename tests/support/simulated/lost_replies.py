"""Which of a member's writes to ZooKeeper fails: any, or the n-th of a kind, known by its paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from kzconsumer.registry.claim_record import decode_claim_record
from kzconsumer.zookeeper.operations import Check, Create, Delete, Operation, SetData
from tests.support.simulated import zookeeper_frames as frames

Kind = Literal[
    "registration", "container", "claim", "release", "change of thread", "commit", "plan", "published plan", "other"
]
"""A node without claim is deleted by the same operations as in a release. A published plan is emptied by its commit."""

KINDS: tuple[Kind, ...] = get_args(Kind)
SYSTEM_ERROR = -1
"""Of a server that could not execute a request, and does not say why."""
_DEPTH = 6
"""Elements of the path of a partition's node: "", consumers, group, owners, topic, partition."""


@dataclass
class Loss:
    """The reply to the n-th write of a kind, or of any kind, is lost; the write is executed or not.

    With `refusal` it is not executed and the server answers with this error, which says nothing about the nodes.
    """

    executed: bool
    kind: Kind | None = None
    nth: int = 1
    refusal: int = 0

    def strikes(self, operations: Sequence[Operation]) -> bool:
        """Whether it is this write."""
        if not operations or (self.kind is not None and kind_of(operations) != self.kind):
            return False
        self.nth -= 1
        return self.nth <= 0


def write_of(data: bytes, chroot: str) -> Sequence[Operation]:
    """The operations of a request that writes; none of another."""
    asked = frames.request(data[4:], chroot)
    if asked.kind not in frames.WRITES or all(isinstance(operation, Check) for operation in asked.operations):
        return ()
    return asked.operations


def kind_of(operations: Sequence[Operation]) -> Kind:
    """The kind of a member's write."""
    changed = [(operation, operation.path.split("/")) for operation in operations if not isinstance(operation, Check)]
    touched = {(type(operation), parts[3]) for operation, parts in changed if len(parts) == _DEPTH}
    if any(isinstance(operation, Create) and parts[3:4] == ["ids"] and len(parts) > 4 for operation, parts in changed):
        return "registration"
    if (Create, "owners") in touched:
        return "claim"
    if (Delete, "owners") in touched:
        return "release"
    if (SetData, "owners") in touched:
        return "change of thread"
    found = [op.data for op, parts in changed if isinstance(op, SetData) and parts[3:4] == ["claims"]]
    records = [decode_claim_record(data) for data in found]
    if any(record.plan is not None for record in records):
        return "plan"
    if any(record.fingerprint for record in records):
        return "published plan"
    if touched & {(SetData, "offsets"), (Create, "offsets")}:
        return "commit"
    if all(isinstance(operation, Create) for operation, _ in changed):
        return "container"
    return "other"
