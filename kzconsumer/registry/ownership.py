"""What a claim comes to: ours with its fence, blocked by somebody, or refused.

Pure, owns nothing. `owner_registry` makes these, the claims keep and the rebalancer reads them.
"""

from __future__ import annotations

import enum
from collections.abc import Container

import msgspec

from kzconsumer.model import ConsumerThreadId
from kzconsumer.registry.claim_record import ClaimRecord, Plan
from kzconsumer.zookeeper.operations import Check


class OwnerNode(msgspec.Struct, frozen=True):
    """An owner node as we left it; it changes with the thread that it names, and with nothing else."""

    path: str
    version: int

    def check(self) -> Check:
        return Check(self.path, self.version)


class Fence(msgspec.Struct, frozen=True):
    """The two versions that only the present owner knows. Check(owner, 0) alone is no fence: any new node has it.

    The record's moves with every plan too, so that a fence is what the last of our own writes has left.
    """

    owner: OwnerNode
    record_path: str
    record_version: int

    def checks(self) -> tuple[Check, Check]:
        return self.owner.check(), Check(self.record_path, self.record_version)


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


def refusal(plan: Plan, fingerprint: str) -> str | None:
    """Why a member with this destination ("": a sink that cannot replay) leaves a planned partition alone."""
    if fingerprint and plan.fingerprint == fingerprint:
        return None
    planned = f"offsets {plan.first} to {plan.until} are planned for another destination ({plan.fingerprint})"
    ours = f"ours is {fingerprint}" if fingerprint else "this sink cannot replay"
    return f"{planned}, {ours}: only a member with that destination can finish them"


class BlockedBy(enum.Enum):
    LIVE_MEMBER = "a live member, which has to release it"
    UNREGISTERED = "a member that is not registered: its session has to expire"
    PERSISTENT = "nobody's session: only an operator may delete the node"


def blocked_by(blocked: Blocked, members: Container[str]) -> BlockedBy:
    if blocked.ephemeral_owner == 0:
        return BlockedBy.PERSISTENT
    try:
        consumer = ConsumerThreadId.parse(blocked.owner).consumer
    except ValueError:
        return BlockedBy.UNREGISTERED
    return BlockedBy.LIVE_MEMBER if consumer in members else BlockedBy.UNREGISTERED
