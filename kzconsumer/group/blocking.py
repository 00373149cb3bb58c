"""Why a claim is blocked, and what will end it.

Pure. The rebalancer asks it to say what it waits for.
"""

from __future__ import annotations

import enum
from collections.abc import Container

from kzconsumer.model import ConsumerThreadId
from kzconsumer.zookeeper.ownership import Blocked


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
