"""The contract of every sink under kills, replays, races and zombies, as tests.

Members are processes (`sink_member`), killed by SIGKILL and stopped by SIGSTOP; `sink_group` replaces Kafka and
ZooKeeper.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import ClassVar, Literal

import pytest

from kzconsumer.sinks.interface import Sink, SinkContext
from kzconsumer.testing.sink_group import Group, Values, write_failed


def contract_context() -> SinkContext:
    """The context of a sink under test, with a lease that never ends."""
    return SinkContext(group="contract", member="contract", cluster="contract", safe_until=lambda: math.inf)


class SinkContract(ABC):
    """Inherit in a class that pytest collects, and say how to build the sink and how to read its destination:

    class TestMine(SinkContract):
        def sink(self, directory): return MySink({"path": str(directory / "out")}, contract_context())
        def read_back(self, directory): return [row.value for row in my_table(directory / "out")]

    Both are given one directory for all of the class; `sink` is called in the members' processes, whose standard output
    is the file `stdout` there. `read_back` gives the value of every record that the destination has, as bytes, and None
    for a null value.

    With `promise` "exactly-once" nothing may be missing or double, with "at-least-once" nothing missing. A sink with a
    fingerprint must promise "exactly-once"; one without can keep that only if it stores each record under its topic,
    partition and offset. With `values` "text" no value is null, empty or other than UTF-8. With
    `sets_aside` the sink's `set_aside` is held to `kzconsumer.sinks.interface.SettingAside`. If the sink `remembers`,
    override `copy`. A write is
    killed at `kills` moments and made a zombie's at `zombies`, two members race `races` times; each batch has `records`
    records. Each kill costs a new process with a new sink: for one that starts slowly, ask for few.
    """

    promise: ClassVar[Literal["exactly-once", "at-least-once"]] = "exactly-once"
    values: ClassVar[Values] = "any"
    sets_aside: ClassVar[bool] = False
    kills: ClassVar[int] = 12
    zombies: ClassVar[int] = 4
    races: ClassVar[int] = 10
    records: ClassVar[int] = 60

    @abstractmethod
    def sink(self, directory: Path) -> Sink: ...

    @abstractmethod
    def read_back(self, directory: Path) -> Iterable[bytes | None]: ...

    def copy(self, directory: Path) -> Callable[[], None] | None:
        """Copy the destination; the answer restores it from this copy, while members have it open."""
        return None

    group: ClassVar[Group]

    @classmethod
    def setup_class(cls) -> None:
        cls.group = Group(cls)

    @classmethod
    def teardown_class(cls) -> None:
        cls.group.close()

    def test_members_agree_on_the_destination(self) -> None:
        """The fingerprint says whether a sink is replayable and is the same in each member; what it promises fits."""
        one, other = self.group.two()
        assert one.fingerprint == other.fingerprint
        if one.fingerprint:
            assert self.promise == "exactly-once", "a replayable sink, which has a fingerprint, writes exactly once"

    def test_written_ranges_are_there(self) -> None:
        log = self.group.log()
        for _ in range(2):
            log.write(self.group.one(), log.batch(self.records))
        log.check()

    def test_keys_and_values_may_be_any_bytes(self) -> None:
        """Null, empty, not UTF-8, with line ends and separators, of a megabyte."""
        log = self.group.log()
        log.write(self.group.one(), log.unusual())
        log.check()

    def test_uncommitted_ranges_are_written_again(self) -> None:
        """The member ended between the two, before it could record a step. The sink is not asked what it has: another
        member may be about to write it.
        """
        log = self.group.log()
        batches = [log.batch(self.records) for _ in range(2)]
        for batch in batches:
            log.write(self.group.one(), batch)
        for batch in reversed(batches):
            log.again(self.group.one(), batch, ask=False, recorded=False)
        log.check()

    def test_has_knows_exactly_the_written_ranges(self) -> None:
        if not self.group.one().fingerprint:
            pytest.skip("the sink is not replayable: it has no fingerprint")
        log = self.group.log()
        log.write(self.group.one(), batch := log.batch(self.records))
        there = [part.identity for part in batch]
        others = [
            other
            for part in there
            for other in (
                part._replace(incarnation=part.incarnation + 1),
                part._replace(epoch=part.epoch + 1),
                part._replace(first=part.until, until=part.until + 1),
                part._replace(until=part.until + 1),
                part._replace(partition=part.partition + 100),
            )
        ]
        found = set(self.group.one().has([*others, *there]))
        assert found <= set(there), f"has ranges that were never written: {sorted(found - set(there))}"

    def test_a_destination_that_went_back_takes_nothing_more(self) -> None:
        """It is restored from a copy while members keep writing: the next write raises DestinationWentBackError."""
        log, copied = self.group.log(), self.group.log()
        one, other = self.group.two()
        log.write(one, log.batch(self.records))
        copied.write(one, copied.batch(self.records))
        restore = self.copy(self.group.directory)
        if restore is None:
            pytest.skip("the contract has no `copy`")
        lost = log.batch(self.records)
        log.write(one, lost)
        log.write(other, later := log.batch(self.records))
        log.check()  # the copy alone changes nothing
        restore()
        log.forget([*lost, *later])
        for member in (one, other):
            reason = log.refused(member, log.batch(self.records))
            assert "were written and committed, and are missing now" in reason, reason
        copied.write(other, copied.batch(self.records))
        log.check()
        copied.check()

    def test_ranges_set_aside_are_never_written(self) -> None:
        """And what is written is not set aside."""
        self._require_setting_aside()
        log = self.group.log()
        one, other = self.group.two()
        log.write(one, written := log.batch(self.records))
        assert not other.set_aside(written[0]), "a range is set aside that is written"
        aside, *rest = log.batch(self.records)
        assert other.set_aside(aside), "an unwritten range is not set aside"
        log.leave_out(aside)
        for _ in range(2):
            log.begin(one, [aside])
            assert write_failed(one), "a range is written that was set aside"
        assert not one.has([aside.identity]), "has knows a range that was set aside"
        log.write(one, rest)
        log.check()

    def test_a_range_is_set_aside_while_another_member_writes_it(self) -> None:
        """One of the two comes first, and both agree which."""
        self._require_setting_aside()
        for number in range(self.races):
            log = self.group.log(what=f"race {number}")
            one, other = self.group.two()
            seconds = self.group.measured().seconds
            log.begin(one, batch := log.batch(self.records))
            time.sleep(seconds * number / self.races)
            aside = other.set_aside(batch[0])
            assert write_failed(one) == aside, (
                "one member wrote what another had set aside" if aside else "a write failed"
            )
            if aside:
                log.leave_out(batch[0])
                log.again(one, batch[1:])
            log.check()

    def test_recreated_topics_and_reset_offsets_are_different_records(self) -> None:
        """At offsets that were written before."""
        old = self.group.log()
        for log in (old, self.group.log(old, incarnation=1), self.group.log(old, incarnation=1, epoch=1)):
            log.write(self.group.one(), log.batch(self.records))
            log.check()

    def test_two_members_write_at_once(self) -> None:
        log = self.group.log()
        for _ in range(self.races):
            batch = log.batch(self.records)
            members = self.group.two()
            for member in members:
                log.begin(member, batch)
            failed = [member for member in members if (done := member.finish()) is None or done.error]
            for member in failed:
                assert member.alive, f"{member} died in a race: {member.death}"
                log.again(member, batch, ask=False)
        log.check()

    def test_a_zombie_finishes_its_write_late(self) -> None:
        """Stopped in the middle of it, and woken when the next member has replayed the batch and continued."""
        for moment in self.group.moments(self.zombies, steps=False):
            log = self.group.log(what=f"stopped at {moment}")
            successor, zombie = self.group.two()
            log.begin(zombie, batch := log.batch(self.records), moment, SIGSTOP)
            in_time = zombie.finish()
            log.again(successor, batch)
            log.write(successor, log.batch(self.records))
            zombie.thaw(lambda step: False)
            if in_time is None:
                zombie.finish()
            log.write(zombie, log.batch(self.records))
            log.check()

    def test_killed_at_any_moment(self) -> None:
        """The next member replays what was in flight, and continues."""
        for moment in self.group.moments(self.kills):
            log = self.group.log(what=f"killed at {moment}")
            successor, victim = self.group.two()
            log.write(victim, log.batch(self.records))
            log.begin(victim, batch := log.batch(self.records), moment, SIGKILL)
            victim.finish()
            victim.kill()
            log.again(successor, batch)
            log.write(successor, log.batch(self.records))
            log.check()

    def _require_setting_aside(self) -> None:
        if not self.sets_aside:
            pytest.skip("the contract does not set `sets_aside`")
