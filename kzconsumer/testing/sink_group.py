"""The members and logs of the sink contract, in place of Kafka and ZooKeeper."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import ClassVar, Literal, NamedTuple, Protocol

import pyarrow as pa
import pytest

from kzconsumer.model import RangeIdentity
from kzconsumer.records.columns import SCHEMA
from kzconsumer.records.forms import ColumnRecords
from kzconsumer.sinks.interface import Batch, RangeData, Sink
from kzconsumer.testing.sink_member import ContractWrite, MemberFailedError, Moment, SinkProcess, import_once

# Keys and values that Kafka stores and that a sink may not expect.

Values = Literal["any", "text"]

LARGE = 1_000_000
"""The greatest value that a broker accepts by default is a little larger."""


class Content(NamedTuple):
    """`value` is appended to the text that identifies the record; None and b"" replace it."""

    key: bytes | None
    value: bytes | None


_TEXT = (
    Content(None, b" null key"),
    Content(b"lines\nof\r\nkey", b" lines\nof\r\nvalue\n"),
    Content(b'a,"b";\tc', b" a,\"b\";\t'c'\\"),
    Content("schlüssel ☃".encode(), " größe ☃".encode()),
    Content(b"large", b" " + b"x" * LARGE),
)
_BYTES = (
    Content(b"null value", None),
    Content(b"empty value", b""),
    Content(b"", b" empty key"),
    Content(b"\xff\x00\x80", b" key is not UTF-8"),
    Content(b"key", b" not UTF-8: \xff\x00\x80"),
)


def unusual(values: Values) -> tuple[Content, ...]:
    """With "text" only those that are UTF-8 and neither empty nor, for a value, null."""
    return _TEXT if values == "text" else _TEXT + _BYTES


_TIME = 1_700_000_000_000
_SHOWN = 60
_WORTH_TIMING = 0.1  # a write that takes longer works elsewhere: moments of its own process do not cover all of it


class Contract(Protocol):
    """What a group needs of `SinkContract`."""

    promise: ClassVar[Literal["exactly-once", "at-least-once"]]
    values: ClassVar[Values]
    records: ClassVar[int]

    def sink(self, directory: Path) -> Sink: ...

    def read_back(self, directory: Path) -> Iterable[bytes | None]: ...


class Group:
    """The members of a test class, oldest first, and their directory."""

    def __init__(self, contract: type[Contract]) -> None:
        self.contract = contract
        import_once(contract.__module__)
        self._temporary = tempfile.TemporaryDirectory(prefix="sink-contract-", ignore_cleanup_errors=True)
        self.directory = Path(self._temporary.name)
        self._members: list[SinkProcess] = []
        self._names = (f"contract-{number}" for number in itertools.count())
        self._measured: ContractWrite | None = None
        self._started = False
        self._unusable = False

    def one(self) -> SinkProcess:
        return self._first(1)[0]

    def two(self) -> tuple[SinkProcess, SinkProcess]:
        one, other = self._first(2)
        return one, other

    def log(self, old: Log | None = None, *, incarnation: int = 0, epoch: int = 0, what: str = "") -> Log:
        """A new topic, or an `old` one created again or reset."""
        topic = old.topic if old else next(self._names)
        return Log(self, topic, (old.incarnation if old else 1) + incarnation, epoch, what)

    def measured(self) -> ContractWrite:
        """A write without faults."""
        if self._measured is None:
            log = self.log()
            log.write(self.one(), log.batch(self.contract.records))  # the first takes longer
            self._measured = log.write(self.one(), log.batch(self.contract.records))
        return self._measured

    def moments(self, count: int, *, steps: bool = True) -> list[Moment]:
        """`count` moments spread over a write: before each step is recorded, then alternately times and calls."""
        length = self.measured()
        recorded = [Moment("step", number + 1) for number in range(length.steps if steps else 0)]
        calls = [Moment("call", 1 + number * length.calls // count) for number in range(count)]
        times = [Moment("time", length.seconds * (number + 0.5) / count) for number in range(count)]
        turns = zip(times, calls, strict=True) if length.seconds > _WORTH_TIMING else zip(calls, strict=True)
        return [*recorded, *(moment for turn in turns for moment in turn)][:count]

    def close(self) -> None:
        for member in self._members:
            member.close()
        self._temporary.cleanup()

    def _first(self, count: int) -> list[SinkProcess]:
        self._members = [member for member in self._members if member.alive]
        while len(self._members) < count:
            self._members.append(self._start())
        return self._members[:count]

    def _start(self) -> SinkProcess:
        """Fails the test if the sink does not start; if it never has, the following tests are skipped."""
        if self._unusable:
            pytest.skip("the sink does not start, as the first test that needed it says")
        try:
            member = SinkProcess(partial(_build, self.contract, self.directory), self.directory / "stdout")
        except MemberFailedError as error:
            self._unusable = not self._started
            pytest.fail(f"the sink does not start: {error}", pytrace=False)
        self._started = True
        return member


def _build(contract: type[Contract], directory: Path) -> Sink:
    return contract().sink(directory)


class Log:
    """One topic of three partitions: its records, and the recorded steps of each range."""

    def __init__(self, group: Group, topic: str, incarnation: int, epoch: int, what: str) -> None:
        self._group = group
        self.topic = topic
        self.incarnation = incarnation
        self._epoch = epoch
        self._what = what
        self._ends = dict.fromkeys(range(3), 0)
        self._last: dict[int, RangeIdentity] = {}
        self._before: dict[RangeIdentity, RangeIdentity] = {}
        self._steps: dict[RangeIdentity, tuple[str, ...]] = {}
        self._produced: list[bytes | None] = []
        self._nameless = False
        """Whether null and empty values are among them, which do not say of which log they are: one log has them."""

    def batch(self, records: int) -> tuple[RangeData, ...]:
        """The next records of each partition, `records` together; offsets have gaps, as after compaction."""
        parts = []
        for partition, first in self._ends.items():
            self._ends[partition] = until = first + max(2, records // 3)
            parts.append(self._range(partition, first, until))
        self._produced += [value for part in parts for value in _values(part)]
        return tuple(parts)

    def unusual(self) -> tuple[RangeData, ...]:
        """The next records of one partition, with keys and values that a sink may not expect."""
        first = self._ends[0]
        contents = unusual(self._group.contract.values)
        rows = [self._row(0, offset, *content) for offset, content in enumerate(contents, first)]
        self._ends[0] = until = first + len(rows)
        part = self._data(0, first, until, rows)
        self._produced += _values(part)
        self._nameless = True
        return (part,)

    def begin(
        self, member: SinkProcess, parts: Sequence[RangeData], moment: Moment | None = None, signal: int = SIGKILL
    ) -> None:
        """Start writing ranges for the first time, as one batch."""
        batch = Batch(tuple(parts), follows=self._follows(parts) if member.fingerprint else ())
        member.begin(batch, (), self._recorder(parts), moment, signal)

    def write(self, member: SinkProcess, parts: Sequence[RangeData]) -> ContractWrite:
        self.begin(member, parts)
        return _done(member)

    def refused(self, member: SinkProcess, parts: Sequence[RangeData]) -> str:
        """Have ranges written that the destination must not take; returns why it does not."""
        self.begin(member, parts)
        done = member.finish()
        assert done is not None, f"{member} died, and was to refuse a batch: {member.death}"
        assert done.error is not None, "ranges are written behind a gap: the destination was restored from a copy"
        for part in parts:
            self.leave_out(part)
        return done.error

    def forget(self, parts: Sequence[RangeData]) -> None:
        """The destination was restored from a copy without them."""
        for part in parts:
            self.leave_out(part)

    def leave_out(self, part: RangeData) -> None:
        """The destination must not have it."""
        left_out = set(_values(part))
        self._produced = [value for value in self._produced if value not in left_out]

    def again(
        self, member: SinkProcess, parts: Sequence[RangeData], *, ask: bool = True, recorded: bool = True
    ) -> None:
        """Replay a batch that was not committed; with `recorded` its recorded steps are known."""
        if not member.fingerprint:
            self._otherwise_cut(member, parts)
            return
        published = set(member.has([part.identity for part in parts])) if ask else set()
        for part in reversed(parts):
            if (identity := part.identity) not in published:
                steps = self._steps.get(identity, ()) if recorded else ()
                replay = Batch((part,), is_replay=True, follows=self._follows([part]))
                member.begin(replay, steps, self._recorder((part,)))
                _done(member)

    def check(self) -> None:
        """Compare the destination with the records. Raises AssertionError."""
        contract = self._group.contract
        mark = _mark(self.topic, self.incarnation, self._epoch)
        values = contract().read_back(self._group.directory)
        found = Counter(value for value in values if (value.startswith(mark) if value else self._nameless))
        produced = Counter(self._produced)
        missing, double = _listed(produced - found), _listed(found - produced)
        what = f" ({self._what})" if self._what else ""
        assert not missing, f"missing {len(missing)} of {len(self._produced)} records{what}: {missing[:3]}"
        if contract.promise == "exactly-once":
            assert not double, f"{len(double)} of {len(self._produced)} records are double{what}: {double[:3]}"

    def _otherwise_cut(self, member: SinkProcess, parts: Sequence[RangeData]) -> None:
        """Without plans the next member cuts the same records into other batches."""
        middles = {part.partition: (part.first + part.until) // 2 for part in parts}
        for low in (True, False):
            cut = [
                self._range(part.partition, part.first, middles[part.partition])
                if low
                else self._range(part.partition, middles[part.partition], part.until)
                for part in parts
            ]
            self.write(member, [part for part in cut if part.records])

    def _follows(self, parts: Sequence[RangeData]) -> tuple[RangeIdentity, ...]:
        return tuple(self._before[part.identity] for part in parts if part.identity in self._before)

    def _recorder(self, parts: Sequence[RangeData]) -> Callable[[str], bool]:
        def record(step: str) -> bool:
            for part in parts:
                identity = part.identity
                self._steps[identity] = (*self._steps.get(identity, ()), step)
            return True

        return record

    def _range(self, partition: int, first: int, until: int) -> RangeData:
        offsets = [offset for offset in range(first, until) if offset % 7 != 3]
        return self._data(partition, first, until, [self._row(partition, offset, b"%d" % offset) for offset in offsets])

    def _row(self, partition: int, offset: int, key: bytes | None, value: bytes | None = b"/") -> dict[str, object]:
        """`value` follows the text that identifies the record; null and empty values do not."""
        identity = _mark(self.topic, self.incarnation, self._epoch) + b"%d/%d" % (partition, offset)
        return {
            "topic": self.topic,
            "partition": partition,
            "offset": offset,
            "timestamp": _TIME + offset,
            "timestamp_type": 0,
            "key": key,
            "value": identity + value if value else value,
            "headers": [],
        }

    def _data(self, partition: int, first: int, until: int, rows: list[dict[str, object]]) -> RangeData:
        part = RangeData(
            topic=self.topic,
            partition=partition,
            first=first,
            until=until,
            pieces=(ColumnRecords(pa.RecordBatch.from_pylist(rows, schema=SCHEMA)),),
            incarnation=self.incarnation,
            epoch=self._epoch,
        )
        if (before := self._last.get(partition)) is not None:
            self._before[part.identity] = before
        self._last[partition] = part.identity
        return part


def _mark(topic: str, incarnation: int, epoch: int) -> bytes:
    """The prefix of the values of a log."""
    return b"%s/%d.%d/" % (topic.encode(), incarnation, epoch)


def _values(part: RangeData) -> list[bytes | None]:
    return [value for batch in part.batches for value in batch.column("value").to_pylist()]


def _listed(values: Counter[bytes | None]) -> list[bytes | None]:
    """In order, and no longer than a message should be; null is last."""
    return [
        value and value[:_SHOWN] for value in sorted(values.elements(), key=lambda each: (each is None, each or b""))
    ]


def write_failed(member: SinkProcess) -> bool:
    """Whether the write that `begin` started has failed."""
    return _finished(member).error is not None


def _finished(member: SinkProcess) -> ContractWrite:
    written = member.finish()
    assert written is not None, f"{member} died in a write: {member.death}"
    return written


def _done(member: SinkProcess) -> ContractWrite:
    written = _finished(member)
    assert written.error is None, f"a write failed: {written.error}"
    return written
