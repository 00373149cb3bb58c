"""No partition that has records waits longer than the design allows, whatever other partitions and the sink do."""

from __future__ import annotations

import pytest

from tests.support.extent import seeds
from tests.support.simulated.fair_feed import Feed


@pytest.mark.parametrize("seed", seeds(8, 200))
def test_no_partition_waits_longer_than_the_bound(seed: int) -> None:
    feed = Feed(seed).play()
    assert feed.worst <= feed.bound, {str(s.progress.topic_partition): round(s.worst, 1) for s in feed.sources}
