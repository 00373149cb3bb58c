"""Which offsets to read for a look at the newest records: as many of each partition as there are, shared out fairly.

Pure. `cli` asks it before it reads without a group.
"""

from __future__ import annotations

from collections.abc import Mapping

from kzconsumer.model import OffsetRange, TopicPartition


def newest(logs: Mapping[TopicPartition, tuple[int, int]], count: int) -> list[OffsetRange]:
    """The last offsets of each log, `count` in all or what there is; `logs` are (first, until).

    No partition gives more while another, with offsets left, gives two less. Offsets without a record count, too.
    """
    left = count
    ranges = []
    for number, (partition, (first, until)) in enumerate(sorted(logs.items(), key=lambda log: log[1][1] - log[1][0])):
        share = min(until - first, -(-left // (len(logs) - number)))
        left -= share
        if share > 0:
            ranges.append(OffsetRange(*partition, until - share, until))
    return sorted(ranges)
