"""The first offset of a time, in a log that is written to between the requests for it."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from kzconsumer.brokers.leaders import LogOffsets
from kzconsumer.brokers.protocol.log_reads import LATEST, ListedOffset
from kzconsumer.model import TopicPartition

TIMES = st.lists(st.integers(0, 5), max_size=5)


class Log(LogOffsets):
    """Times of records, and those that are written after each request."""

    def __init__(self, times: list[int], written: list[int]) -> None:
        self.times, self.written = list(times), written

    async def look_up(
        self, partitions: Mapping[TopicPartition, int], require: object = None
    ) -> dict[TopicPartition, ListedOffset]:
        found = {}
        for partition, ms in partitions.items():
            late = (offset for offset, time in enumerate(self.times) if time >= ms)
            found[partition] = ListedOffset(0, len(self.times) if ms == LATEST else next(late, -1), -1)
        self.times += self.written
        return found


@given(times=TIMES, written=TIMES, ms=st.integers(0, 6), base=st.sampled_from([0, 1_700_000_000_000_123]))
async def test_no_record_of_the_time_is_left_out(times: list[int], written: list[int], ms: int, base: int) -> None:
    """Nor is one before it if all are earlier, as in a run up to that time."""
    partition = TopicPartition("t", 0)
    log = Log([base + time for time in times], [base + time for time in written])
    found = await log.at_time([partition], base + ms)
    before, after = log.times[: found[partition]], log.times[found[partition] :]
    assert all(time < base + ms for time in before), "left out"
    assert found[partition] <= len(times + written)
    if any(time >= ms for time in times):
        assert after[0] >= base + ms, "an earlier one is taken"
    elif not any(time >= ms for time in written):
        assert found[partition] == len(times), "what is written from now on belongs to it"
