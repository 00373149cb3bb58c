"""What one partition's part of a fetch response means for what happens next.

Pure: a decision with its reason; the BrokerFetcher carries it out.
"""

from __future__ import annotations

import enum

from kzconsumer.protocol import error_codes


class FetchOutcome(enum.Enum):
    RECORDS = "records"
    """No error; there may be no bytes."""
    OUT_OF_RANGE = "out of range"
    """The log does not hold the offset: the reset policy decides."""
    FIND_LEADER = "find leader"
    """The leader is elsewhere, or the broker cannot serve the partition just now."""


def judge(error: int) -> FetchOutcome:
    """As `kafka.consumer.ConsumerFetcherThread` (1.1.1): anything but these two goes through the leader finder."""
    if error == error_codes.NONE:
        return FetchOutcome.RECORDS
    if error == error_codes.OFFSET_OUT_OF_RANGE:
        return FetchOutcome.OUT_OF_RANGE
    return FetchOutcome.FIND_LEADER
