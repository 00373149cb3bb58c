"""What keeps a partition from advancing, as far as that is known inside the member.

Pure. `status/track` asks it for a partition that is behind.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from kzconsumer.group.position import Position

Hindrance: TypeAlias = Literal[
    "session doubtful", "failed", "paused", "no leader", "sink slow", "queue full", "collecting", "nothing comes"
]


def hindrance(at: Position, lease_held: bool) -> Hindrance:
    """The first of the possible reasons, from what stops everything to what stops this partition alone.

    "collecting" is a batch that is not due; "nothing comes" is a broker that has something to send, and does not.
    """
    if not lease_held:
        return "session doubtful"
    if at.failed:
        return "failed"
    if at.paused:
        return "paused"
    if not at.led:
        return "no leader"
    if at.consumed > at.processed:
        return "sink slow"
    if at.queue_full:
        return "queue full"
    if at.fetched is not None and at.fetched > at.consumed:
        return "collecting"
    return "nothing comes"


def behind(at: Position, end: int | None) -> bool:
    """There is something left to do; what has no leader, or has failed, counts also before that is known."""
    if end is None:
        return not at.led or at.failed
    return (end if at.stop is None else min(end, at.stop)) > at.processed
