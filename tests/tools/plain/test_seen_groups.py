"""What the exporter has of a group as a whole."""

from __future__ import annotations

from kzconsumer_tools.exporter.burrow import status
from kzconsumer_tools.exporter.seen_groups import SeenGroup


def test_the_lag_of_a_group_without_partitions_is_unknown() -> None:
    """It may just have started."""
    group = SeenGroup("g", members=1, partitions=())
    assert group.lag is None
    assert status("c", "g", group, whole=True)["totallag"] is None
