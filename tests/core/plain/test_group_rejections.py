"""Records that an application rejects while members of its group come, go and are killed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.support.members import sessions_of
from tests.support.simulated.group import simulated_group
from tests.support.simulated.member import Member


def of_no_use(offset: int) -> bool:
    return offset % 5 == 0


@pytest.mark.parametrize("explicit", [False, True])
def test_no_rejected_record_is_committed_before_its_letter_is_written(explicit: bool, tmp_path: Path) -> None:
    """Each has a letter, also if the member was killed that rejected it; and no other record has one."""
    with simulated_group(1, rejected=(("policy", "dead-letter"), ("directory", str(tmp_path)))) as group:
        group.logs.grow("t", 2)

        def join(name: str) -> Member:
            member = group.join(name, {"t": 1}, 0.01, in_batches=False, explicit=explicit)
            member.rejects = of_no_use
            return member

        first = join("a")
        group.world.pass_time(2)
        killed = join("b")
        group.logs.burst(30)
        group.world.pass_time(2)
        group.kill(killed)
        group.logs.burst(30)
        group.world.pass_time(1)
        group.leave(first)
        last = join("c")
        group.come_to_rest(40, 1)
        written = [msgspec.json.decode(line) for file in tmp_path.iterdir() for line in file.read_bytes().splitlines()]
        assert {(each["partition"], each["offset"]) for each in written} == {
            (partition.partition, offset)
            for partition in group.logs.partitions
            for offset in filter(of_no_use, range(group.logs.end(partition)))
        }
        counted = [sessions_of(each.connector).counters for each in (first, killed, last) if each.connector is not None]
        assert sum(each.rejected["rejected", "dead-letter"] for each in counted) == len(written)
