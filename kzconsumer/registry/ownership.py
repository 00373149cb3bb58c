"""The outcome of a claim: ours with its fence, blocked, or refused."""

from __future__ import annotations

import enum
from collections.abc import Container

import msgspec

from kzconsumer.model import ConsumerThreadId
from kzconsumer.registry.claim_record import ClaimRecord, Plan
from kzconsumer.zookeeper.operations import Check


class OwnerNode(msgspec.Struct, frozen=True):
    """An owner node as last written; it changes only with the thread that it names."""

    path: str
    version: int

    def check(self) -> Check:
        return Check(self.path, self.version)


class Fence(msgspec.Struct, frozen=True):
    """The two versions that only the present owner knows. Check(owner, 0) alone is no fence: any new node has it.

    The record's version also changes with every plan: a fence is what the owner's last write has left.
    """

    owner: OwnerNode
    record_path: str
    record_version: int

    def checks(self) -> tuple[Check, Check]:
        return self.owner.check(), Check(self.record_path, self.record_version)


class Claimed(msgspec.Struct, frozen=True):
    """The partition is ours; `stored` is the offset read after the claim (None and version -1: there is none)."""

    fence: Fence
    record: ClaimRecord
    stored: int | None
    stored_version: int


class Blocked(msgspec.Struct, frozen=True):
    """Another session holds the owner node."""

    path: str
    owner: str
    ephemeral_owner: int


class Refused(msgspec.Struct, frozen=True):
    """This member must not consume the partition."""

    path: str
    reason: str


def refusal(plan: Plan, fingerprint: str) -> str | None:
    """Why a member with this destination ("": a sink that cannot replay) must not take over a plan; None if it may."""
    if fingerprint and plan.fingerprint == fingerprint:
        return None
    planned = f"offsets {plan.first} to {plan.until} are planned for another destination ({plan.fingerprint})"
    ours = f"ours is {fingerprint}" if fingerprint else "this sink cannot replay"
    return f"{planned}, {ours}: only a member with that destination can finish them"


class BlockedBy(enum.Enum):
    LIVE_MEMBER = "a live member, which has to release it"
    UNREGISTERED = "a member that is not registered: its session has to expire"
    PERSISTENT = "a persistent node: only an operator may delete it"


def blocked_by(blocked: Blocked, members: Container[str]) -> BlockedBy:
    if blocked.ephemeral_owner == 0:
        return BlockedBy.PERSISTENT
    return BlockedBy.UNREGISTERED if owning_member(blocked.owner, members) is None else BlockedBy.LIVE_MEMBER


def owning_member(text: str, members: Container[str]) -> str | None:
    """The registered member that an owner node names: by a thread of its, or by its id; None if there is none.

    Clients in Go (`wvanbergen/kafka`) and Ruby (`poseidon_cluster`) have no threads and write the id.
    """
    if text in members:
        return text
    try:
        consumer = ConsumerThreadId.parse(text).consumer
    except ValueError:
        return None
    return consumer if consumer in members else None
