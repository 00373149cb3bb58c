"""What a claim comes to: ours with its fence, blocked by somebody, or refused.

Pure, owns nothing. `owner_registry` makes these, the claims keep and the rebalancer reads them.
"""

from __future__ import annotations

import msgspec

from kzconsumer.zookeeper.operations import Check
from kzconsumer.zookeeper.znodes import ClaimRecord


class Fence(msgspec.Struct, frozen=True):
    """The two versions that only the present owner knows. Check(owner, 0) alone is no fence: any new node has it."""

    owner_path: str
    owner_version: int
    record_path: str
    record_version: int

    def checks(self) -> tuple[Check, Check]:
        return Check(self.owner_path, self.owner_version), Check(self.record_path, self.record_version)


class Claimed(msgspec.Struct, frozen=True):
    """The partition is ours; `offset` is what was stored, read after the claim (version -1: nothing)."""

    fence: Fence
    record: ClaimRecord
    stored: int | None
    stored_version: int


class Blocked(msgspec.Struct, frozen=True):
    """Somebody else holds the owner node."""

    path: str
    owner: str
    ephemeral_owner: int


class Refused(msgspec.Struct, frozen=True):
    """The partition must not be consumed by this version."""

    path: str
    reason: str
