"""What the error code of one partition in a fetch response means for what happens next."""

from __future__ import annotations

import enum

from kzconsumer.brokers.protocol import error_codes

# Attempts before a broker's failure to read its log is final. UNKNOWN_SERVER_ERROR may have other causes, and pass.
ATTEMPTS = {error_codes.CORRUPT_MESSAGE: 3, error_codes.UNKNOWN_SERVER_ERROR: 15}


class FetchOutcome(enum.Enum):
    RECORDS = "records"
    """No error; there may be no bytes."""
    OUT_OF_RANGE = "out of range"
    """The log does not hold the offset: the reset policy decides."""
    UNREADABLE = "unreadable"
    """The broker fails to read its log there. Another replica, if it becomes the leader, may not."""
    FIND_LEADER = "find leader"
    """Another broker leads the partition, or this one cannot serve it at the moment."""


def judge(error: int) -> FetchOutcome:
    """As `kafka.consumer.ConsumerFetcherThread` (1.1.1): anything but the first two goes through the leader finder.

    There, what a broker cannot read is requested again without end; Kafka's own consumer raises CORRUPT_MESSAGE.
    """
    if error == error_codes.NONE:
        return FetchOutcome.RECORDS
    if error == error_codes.OFFSET_OUT_OF_RANGE:
        return FetchOutcome.OUT_OF_RANGE
    if error in ATTEMPTS:
        return FetchOutcome.UNREADABLE
    return FetchOutcome.FIND_LEADER
