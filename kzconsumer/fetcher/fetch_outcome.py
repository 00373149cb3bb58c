"""What one partition's part of a fetch response means for what happens next.

Pure: a decision with its reason; the BrokerFetcher carries it out.
"""

from __future__ import annotations

import enum

from kzconsumer.brokers.protocol import error_codes

# How often a broker is asked for what it cannot read, by its error: the second may pass, and says nothing of the log.
ATTEMPTS = {error_codes.CORRUPT_MESSAGE: 3, error_codes.UNKNOWN_SERVER_ERROR: 15}


class FetchOutcome(enum.Enum):
    RECORDS = "records"
    """No error; there may be no bytes."""
    OUT_OF_RANGE = "out of range"
    """The log does not hold the offset: the reset policy decides."""
    UNREADABLE = "unreadable"
    """The broker fails to read its log there. Another one, if it comes to lead, may not."""
    FIND_LEADER = "find leader"
    """The leader is elsewhere, or the broker cannot serve the partition just now."""


def judge(error: int) -> FetchOutcome:
    """As `kafka.consumer.ConsumerFetcherThread` (1.1.1): anything but the first two goes through the leader finder.

    There, what a broker cannot read is asked for again for ever; Kafka's own consumer raises CORRUPT_MESSAGE.
    """
    if error == error_codes.NONE:
        return FetchOutcome.RECORDS
    if error == error_codes.OFFSET_OUT_OF_RANGE:
        return FetchOutcome.OUT_OF_RANGE
    if error in ATTEMPTS:
        return FetchOutcome.UNREADABLE
    return FetchOutcome.FIND_LEADER
