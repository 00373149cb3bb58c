"""What a sink has to keep to through kills, replays, races and zombies, as tests: say how to build it, run pytest.

For plugin authors, and for functions that a sink calls; our own sinks pass the same. Members are real processes
(`sink_member`), killed by SIGKILL and stopped by SIGSTOP; the contract stands for Kafka and ZooKeeper: it makes the
records, knows what was planned, and compares the destination with what there was.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import ClassVar, Literal

import pyarrow as pa

from kzconsumer.offsets.destination import RangeIdentity
from kzconsumer.records.columns import SCHEMA
from kzconsumer.sinks.interface import Batch, RangeData, Sink, SinkContext
from kzconsumer.testing.sink_member import Member, Moment, Written, import_once

_TIME = 1_700_000_000_000
_WORTH_TIMING = 0.1  # a write that takes longer works elsewhere: moments of its own process do not tell all of it


def contract_context() -> SinkContext:
    """What a sink under test is told of its member: any group, and a lease that never ends, which is the worst case."""
    return SinkContext(group="contract", member="contract", cluster="contract", safe_until=lambda: math.inf)


class SinkContract(ABC):
    """Inherit in a class that pytest collects, and say how to build the sink and how to read its destination:

    class TestMine(SinkContract):
        def sink(self, directory): return MySink({"path": str(directory / "out")}, contract_context())
        def read_back(self, directory): return [row.value for row in my_table(directory / "out")]

    Both are given one directory for all of the class; `sink` is called in the members' processes, whose standard output
    is the file `stdout` there. `read_back` gives the value of every record that the destination has, as bytes.

    With `promise` "exactly-once" nothing may be missing or double, with "at-least-once" nothing missing. A write is
    killed at `kills` moments and made a zombie's at `zombies`, two members race `races` times; each batch has `records`
    records. Each kill costs a new process with a new sink: for one that starts slowly, ask for few.
    """

    promise: ClassVar[Literal["exactly-once", "at-least-once"]] = "exactly-once"
    kills: ClassVar[int] = 12
    zombies: ClassVar[int] = 4
    races: ClassVar[int] = 10
    records: ClassVar[int] = 60

    @abstractmethod
    def sink(self, directory: Path) -> Sink: ...

    @abstractmethod
    def read_back(self, directory: Path) -> Iterable[bytes]: ...

    group: ClassVar[_Group]

    @classmethod
    def setup_class(cls) -> None:
        cls.group = _Group(cls)

    @classmethod
    def teardown_class(cls) -> None:
        cls.group.close()

    def test_members_agree_which_destination_it_is(self) -> None:
        """The fingerprint says whether a sink is replayable and is the same in each member; what it promises fits."""
        one, other = self.group.two()
        assert one.fingerprint == other.fingerprint
        if one.fingerprint:
            assert self.promise == "exactly-once", "a replayable sink, which has a fingerprint, writes exactly once"

    def test_what_was_written_is_there(self) -> None:
        log = self.group.log()
        for _ in range(2):
            log.write(self.group.one(), log.batch(self.records))
        log.check()

    def test_what_was_written_and_not_committed_is_written_again(self) -> None:
        """The member ended between the two, before it could record a step. Nobody asks the sink what it has: another
        member may be about to write it.
        """
        log = self.group.log()
        batches = [log.batch(self.records) for _ in range(2)]
        for batch in batches:
            log.write(self.group.one(), batch)
        for batch in reversed(batches):
            log.again(self.group.one(), batch, ask=False, recorded=False)
        log.check()

    def test_has_knows_what_was_written_and_nothing_else(self) -> None:
        if not self.group.one().fingerprint:
            return
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

    def test_a_topic_made_anew_and_offsets_that_were_reset_are_other_records(self) -> None:
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
                assert member.alive, "a member died in a race"
                log.again(member, batch, ask=False)
        log.check()

    def test_a_zombie_ends_its_write_late(self) -> None:
        """Stopped in the middle of it, and woken when the next member has replayed the batch and gone on."""
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
        """The next member replays what was in flight, and goes on."""
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


class _Group:
    """The members of a class of tests, in the order in which they began, and their one directory."""

    def __init__(self, contract: type[SinkContract]) -> None:
        self.contract = contract
        import_once(contract.__module__)
        self._temporary = tempfile.TemporaryDirectory(prefix="sink-contract-", ignore_cleanup_errors=True)
        self.directory = Path(self._temporary.name)
        self._members: list[Member] = []
        self._names = (f"contract-{number}" for number in itertools.count())
        self._measured: Written | None = None

    def one(self) -> Member:
        return self._first(1)[0]

    def two(self) -> tuple[Member, Member]:
        one, other = self._first(2)
        return one, other

    def log(self, old: _Log | None = None, *, incarnation: int = 0, epoch: int = 0, what: str = "") -> _Log:
        """A topic of its own, or that of an `old` one made anew or reset."""
        topic = old.topic if old else next(self._names)
        return _Log(self, topic, (old.incarnation if old else 1) + incarnation, epoch, what)

    def moments(self, count: int, *, steps: bool = True) -> list[Moment]:
        """So many, spread over a write: before each step is recorded, then by turns after a time and at a call."""
        if self._measured is None:
            log = self.log()
            log.write(self.one(), log.batch(self.contract.records))  # the first takes longer
            self._measured = log.write(self.one(), log.batch(self.contract.records))
        length = self._measured
        recorded = [Moment("step", number + 1) for number in range(length.steps if steps else 0)]
        calls = [Moment("call", 1 + number * length.calls // count) for number in range(count)]
        times = [Moment("time", length.seconds * (number + 0.5) / count) for number in range(count)]
        turns = zip(times, calls, strict=True) if length.seconds > _WORTH_TIMING else zip(calls, strict=True)
        return [*recorded, *(moment for turn in turns for moment in turn)][:count]

    def close(self) -> None:
        for member in self._members:
            member.close()
        self._temporary.cleanup()

    def _first(self, count: int) -> list[Member]:
        self._members = [member for member in self._members if member.alive]
        while len(self._members) < count:
            build = partial(_build, self.contract, self.directory)
            self._members.append(Member(build, self.directory / "stdout"))
        return self._members[:count]


def _build(contract: type[SinkContract], directory: Path) -> Sink:
    return contract().sink(directory)


class _Log:
    """One topic of three partitions: what it holds, what of it is in flight, which steps are done with each range."""

    def __init__(self, group: _Group, topic: str, incarnation: int, epoch: int, what: str) -> None:
        self._group = group
        self.topic = topic
        self.incarnation = incarnation
        self._epoch = epoch
        self._what = what
        self._ends = dict.fromkeys(range(3), 0)
        self._steps: dict[RangeIdentity, tuple[str, ...]] = {}
        self._produced: list[bytes] = []

    def batch(self, records: int) -> tuple[RangeData, ...]:
        """The next records of each partition, about a third of so many; offsets have gaps, as after compaction."""
        parts = []
        for partition, first in self._ends.items():
            self._ends[partition] = until = first + max(2, records // 3)
            parts.append(self._range(partition, first, until))
        self._produced += [value for part in parts for value in _values(part)]
        return tuple(parts)

    def begin(
        self, member: Member, parts: Sequence[RangeData], moment: Moment | None = None, signal: int = SIGKILL
    ) -> None:
        """Have ranges written for the first time, as one batch."""
        member.begin(Batch(tuple(parts)), (), self._recorder(parts), moment, signal)

    def write(self, member: Member, parts: Sequence[RangeData]) -> Written:
        self.begin(member, parts)
        return _done(member)

    def again(self, member: Member, parts: Sequence[RangeData], *, ask: bool = True, recorded: bool = True) -> None:
        """What the next member does about a batch that was not committed: `recorded` steps are told."""
        if not member.fingerprint:
            self._otherwise_cut(member, parts)
            return
        published = set(member.has([part.identity for part in parts])) if ask else set()
        for part in reversed(parts):
            if (identity := part.identity) not in published:
                steps = self._steps.get(identity, ()) if recorded else ()
                member.begin(Batch((part,), is_replay=True), steps, self._recorder((part,)))
                _done(member)

    def check(self) -> None:
        """Raises AssertionError if the destination does not have what the promise says."""
        contract = self._group.contract
        mark = _mark(self.topic, self.incarnation, self._epoch)
        found = Counter(value for value in contract().read_back(self._group.directory) if value.startswith(mark))
        produced = Counter(self._produced)
        missing, double = sorted(produced - found), sorted(found - produced)
        told = f" ({self._what})" if self._what else ""
        assert not missing, f"missing {len(missing)} of {len(self._produced)} records{told}: {missing[:3]}"
        if contract.promise == "exactly-once":
            assert not double, f"{len(double)} of {len(self._produced)} records are double{told}: {double[:3]}"

    def _otherwise_cut(self, member: Member, parts: Sequence[RangeData]) -> None:
        """Nothing is planned: the next member begins where the last commit was, and its batches end elsewhere."""
        middles = {part.partition: (part.first + part.until) // 2 for part in parts}
        for low in (True, False):
            cut = [
                self._range(part.partition, part.first, middles[part.partition])
                if low
                else self._range(part.partition, middles[part.partition], part.until)
                for part in parts
            ]
            self.write(member, [part for part in cut if part.records])

    def _recorder(self, parts: Sequence[RangeData]) -> Callable[[str], bool]:
        def record(step: str) -> bool:
            for part in parts:
                identity = part.identity
                self._steps[identity] = (*self._steps.get(identity, ()), step)
            return True

        return record

    def _range(self, partition: int, first: int, until: int) -> RangeData:
        rows = [
            {
                "topic": self.topic,
                "partition": partition,
                "offset": offset,
                "timestamp": _TIME + offset,
                "timestamp_type": 0,
                "key": b"%d" % offset,
                "value": _mark(self.topic, self.incarnation, self._epoch) + b"%d/%d" % (partition, offset),
                "headers": [],
            }
            for offset in range(first, until)
            if offset % 7 != 3
        ]
        return RangeData(
            topic=self.topic,
            partition=partition,
            first=first,
            until=until,
            batches=(pa.RecordBatch.from_pylist(rows, schema=SCHEMA),),
            incarnation=self.incarnation,
            epoch=self._epoch,
        )


def _mark(topic: str, incarnation: int, epoch: int) -> bytes:
    """What the values of a log begin with, and no others."""
    return b"%s/%d.%d/" % (topic.encode(), incarnation, epoch)


def _values(part: RangeData) -> list[bytes]:
    return [value for batch in part.batches for value in batch.column("value").to_pylist() if value is not None]


def _done(member: Member) -> Written:
    written = member.finish()
    assert written is not None, f"{member} died in a write"
    assert written.error is None, f"a write failed: {written.error}"
    return written
