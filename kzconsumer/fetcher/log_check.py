"""Whether a leader's log still holds what was read before a position: asked before it is fetched from.

A log that was cut off (an unclean election, a broker restored from a copy) and has grown past the position again would
be read on without a log line. The leader epoch of the last record before the position tells the difference (KIP-320).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from kzconsumer.brokers.connection import BrokerConnection
from kzconsumer.brokers.protocol import error_codes
from kzconsumer.brokers.protocol.error_codes import error_code
from kzconsumer.brokers.protocol.fetch import Diverging
from kzconsumer.brokers.protocol.leader_epochs import NOT_PERMITTED, AskedEpoch, EpochEnd, OffsetForLeaderEpochRequest
from kzconsumer.brokers.protocol.versions import OFFSET_FOR_LEADER_EPOCH
from kzconsumer.fetcher.partition_state import PartitionFetchState
from kzconsumer.logs.logger import get_logger
from kzconsumer.model import TopicPartition

log = get_logger("kzconsumer.fetcher")

UNKNOWN_END: Final = -1
"""`Diverging.end_offset` of a log that has no epoch as large as the position's: where it differs is unknown."""


async def find_divergence(
    connection: BrokerConnection, states: Iterable[PartitionFetchState], timeout: float
) -> list[PartitionFetchState]:
    """Ask their leader about all positions of known epoch, in one request; set `diverging` of those it does not hold.

    Returns those whose leader has to be looked up again. Nothing is known of positions without epoch, of brokers before
    0.11, of logs in the formats before that, and without permission. Raises ConnectionLostError, ProtocolError.
    """
    asked = {state.topic_partition: state for state in states if state.epoch >= 0}
    if not asked or OFFSET_FOR_LEADER_EPOCH not in connection.versions.ranges:
        return []
    ends = await _ends(connection, {each: state.epoch for each, state in asked.items()}, asked, timeout)
    elsewhere, without = [], []
    for partition, state in asked.items():
        end = ends.get(partition)
        if end is None or (end.error != error_codes.NONE and end.error not in NOT_PERMITTED):
            elsewhere.append(state)
        elif end.error != error_codes.NONE:
            _report_unchecked(partition, end.error)
        elif end.end_offset < 0:
            without.append(partition)
        else:
            _compare(state, Diverging(end.epoch, end.end_offset))
    if without:
        # A log of records without epochs, or of epochs that all are lower? The latter has one for its first record.
        first = await _ends(connection, dict.fromkeys(without, 0), asked, timeout)
        for partition in without:
            found = first.get(partition)
            if found is not None and found.error == error_codes.NONE and found.end_offset >= 0:
                _compare(asked[partition], Diverging(found.epoch, UNKNOWN_END))
    return elsewhere


def _compare(state: PartitionFetchState, end: Diverging) -> None:
    if state.open and state.position is not None and end.end_offset < state.position:
        state.diverging = end
        state.reset_due = True


async def _ends(
    connection: BrokerConnection,
    epochs: Mapping[TopicPartition, int],
    states: Mapping[TopicPartition, PartitionFetchState],
    timeout: float,
) -> Mapping[TopicPartition, EpochEnd]:
    asked = {partition: AskedEpoch(epoch, states[partition].leader_epoch) for partition, epoch in epochs.items()}
    return await connection.call(OffsetForLeaderEpochRequest(asked), timeout=timeout)


def _report_unchecked(partition: TopicPartition, error: int) -> None:
    log.warning(
        "log not compared with the stored position",
        **partition._asdict(),
        reason=error_code(error).name,
        needed=NOT_PERMITTED[error],
    )
