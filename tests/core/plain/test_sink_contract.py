"""The contract of sinks: a sink that keeps it passes, and each way to break it is detected."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from kzconsumer.durable_files import put_in_place, sync_file
from kzconsumer.errors import ConfigError, DestinationWentBackError
from kzconsumer.model import RangeIdentity
from kzconsumer.records.forms import Content
from kzconsumer.sinks.builtin import JsonLinesSink
from kzconsumer.sinks.interface import Batch, RangeData, Sink
from kzconsumer.testing.sink_contract import SinkContract, contract_context
from kzconsumer.testing.sink_member import last_lines
from tests.support.copied import copied
from tests.support.sink_contract import OurSinkContract

pytestmark = pytest.mark.timeout(120)


ASIDE = b"\n"  # as a line, without a record


class FilesSink:
    """A file for each range, and the first writer wins: the smallest replayable sink."""

    fingerprint = "files"

    def __init__(self, directory: Path) -> None:
        self.out = directory / "out"
        self.staged = directory / f"staged-{os.getpid()}"

    async def __aenter__(self) -> Self:
        self.out.mkdir(exist_ok=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [each for each in ranges if self.file(each).exists() and not self.is_aside(each)]

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        self.put(part, ASIDE)
        return self.is_aside(part)

    async def write(self, batch: Batch) -> None:
        for part in batch.ranges:
            self.publish(part)

    def publish(self, part: RangeData) -> None:
        self.put(part.identity, lines(part))
        if self.is_aside(part.identity):
            raise ValueError(f"{part} is set aside")

    def is_aside(self, part: RangeIdentity) -> bool:
        return self.file(part).read_bytes() == ASIDE

    def put(self, part: RangeIdentity, content: bytes) -> None:
        self.staged.unlink(missing_ok=True)  # of a write that was killed
        self.staged.write_bytes(content)
        sync_file(self.staged)
        put_in_place(self.staged, self.file(part))
        self.staged.unlink(missing_ok=True)

    def file(self, part: RangeIdentity) -> Path:
        name = (part.topic, part.partition, part.incarnation, part.epoch, part.first, part.until)
        return self.out / "+".join(map(str, name))


def lines(part: RangeData) -> bytes:
    values = [value for batch in part.batches for value in batch.column("value").to_pylist()]
    return b"".join((b"null" if value is None else b"=" + base64.b64encode(value)) + b"\n" for value in values)


def value_of(line: bytes) -> bytes | None:
    return None if line == b"null" else base64.b64decode(line.removeprefix(b"="))


class FilesContract(SinkContract):
    def sink(self, directory: Path) -> Sink:
        return FilesSink(directory)

    def read_back(self, directory: Path) -> Iterable[bytes | None]:
        files = (directory / "out").iterdir()
        return [value_of(line) for file in files for line in file.read_bytes().splitlines() if line]


class TestFiles(FilesContract, OurSinkContract):
    sets_aside = True


class TestJsonLines(SinkContract):
    """Loses nothing; what was printed and not committed is printed again."""

    promise = "at-least-once"
    races = 2
    kills = 4
    zombies = 2

    def sink(self, directory: Path) -> Sink:
        return JsonLinesSink({}, contract_context())

    def read_back(self, directory: Path) -> Iterator[bytes | None]:
        for line in (directory / "stdout").read_bytes().splitlines():
            if line.startswith(b'{"topic"'):
                with contextlib.suppress(json.JSONDecodeError):  # what a killed member left of its last line
                    yield bytes_of(json.loads(line)["value"])


def bytes_of(value: Content) -> bytes | None:
    return base64.b64decode(value["base64"]) if isinstance(value, dict) else None if value is None else value.encode()


class Appending(FilesSink):
    """Declares itself replayable but appends."""

    def publish(self, part: RangeData) -> None:
        with (self.out / f"{part.topic}-{os.getpid()}").open("ab") as file:
            file.write(lines(part))

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return []


class InPlace(FilesSink):
    """Writes under the final name: after a kill, a part of a range is taken for all of it."""

    def publish(self, part: RangeData) -> None:
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(self.file(part.identity), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            for line in lines(part).splitlines(keepends=True):
                os.write(descriptor, line)
            os.close(descriptor)


class WithoutIncarnation(FilesSink):
    """Takes the records of a recreated topic for those of its predecessor."""

    def file(self, part: RangeIdentity) -> Path:
        return self.out / f"{part.topic}+{part.partition}+{part.first}+{part.until}"


class ByBatch(FilesSink):
    """Uses a name made of all ranges of the batch: a range that is replayed alone has a different one."""

    async def write(self, batch: Batch) -> None:
        self.staged.write_bytes(b"".join(map(lines, batch.ranges)))
        name = "+".join(self.file(part.identity).name for part in batch.ranges[:3])
        put_in_place(self.staged, self.out / name)
        self.staged.unlink(missing_ok=True)

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return []


class Knowing(FilesSink):
    """Reports that it has a range as soon as the directory has any range of its partition."""

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [each for each in ranges if list(self.out.glob(f"{each.topic}+{each.partition}+*"))]


class LookingFirst(FilesSink):
    """Checks whether the range exists and then writes it under a name of its own: two writers both find it missing."""

    def publish(self, part: RangeData) -> None:
        if not list(self.out.glob(f"{self.file(part.identity).name}@*")):
            self.staged.write_bytes(lines(part))
            self.staged.rename(self.out / f"{self.file(part.identity).name}@{os.getpid()}")

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        return [each for each in ranges if list(self.out.glob(f"{self.file(each).name}@*"))]


class Buffering(FilesSink):
    """Is not replayable, which is allowed, but returns before the batch has been written."""

    fingerprint = ""
    held = b""

    async def write(self, batch: Batch) -> None:
        with (self.out / str(os.getpid())).open("ab") as file:
            file.write(self.held)
        self.held = b"".join(map(lines, batch.ranges))


class ForgettingAside(FilesSink):
    """Reports that the range is set aside but does not record it."""

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        return not self.file(part).exists()


class LookingAside(FilesSink):
    """Checks whether the range is set aside and then writes it, although it may have been set aside meanwhile."""

    def publish(self, part: RangeData) -> None:
        if self.aside(part.identity).exists():
            raise ValueError(f"{part} is set aside")
        time.sleep(0.05)
        self.put(part.identity, lines(part))

    def aside(self, part: RangeIdentity) -> Path:
        return self.out.with_name(self.file(part).name)

    async def set_aside(self, part: RangeIdentity, records: int) -> bool:
        if self.file(part).exists():
            return False
        self.aside(part).touch()
        return True


class Decoding(FilesSink):
    """Takes every value for text."""

    def publish(self, part: RangeData) -> None:
        for batch in part.batches:
            for value in batch.column("value").to_pylist():
                if value is not None:
                    value.decode()
        super().publish(part)


class NullAsEmpty(FilesSink):
    def put(self, part: RangeIdentity, content: bytes) -> None:
        super().put(part, content.replace(b"null\n", b"=\n"))


class Separated(FilesSink):
    """A value for each line, as it came."""

    def publish(self, part: RangeData) -> None:
        values = [value for batch in part.batches for value in batch.column("value").to_pylist()]
        plain = b"".join((value or b"") + b"\n" for value in values)
        self.put(part.identity, b"".join(b"=" + base64.b64encode(line) + b"\n" for line in plain.split(b"\n")))


class NotLookingBack(FilesSink):
    """Writes what comes, whatever it had and has no longer."""

    remembers = True


class LookingBack(FilesSink):
    remembers = True

    async def write(self, batch: Batch) -> None:
        for part in batch.follows:
            if not self.file(part).exists():
                raise DestinationWentBackError(part)
        await super().write(batch)


class FailingToAnswer(FilesSink):
    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        raise OSError("unmounted")


class Crashing(FilesSink):
    """The process ends in a write, with a word."""

    async def write(self, batch: Batch) -> None:
        sys.stderr.write("out of descriptors\n")
        sys.stderr.flush()
        os._exit(3)


class Faulting(FilesSink):
    """As a bug in a C library, or the kernel without memory, ends it."""

    async def has(self, ranges: Sequence[RangeIdentity]) -> Collection[RangeIdentity]:
        os.kill(os.getpid(), signal.SIGSEGV)
        return []


def contract_of(kind: type[FilesSink]) -> type[FilesContract]:
    return {each.kind: each for each in _Broken.__subclasses__()}[kind]


class _Broken(FilesContract):
    kind: type[FilesSink]

    def sink(self, directory: Path) -> Sink:
        return self.kind(directory)


class _Appending(_Broken):
    kind = Appending


class _InPlace(_Broken):
    kind = InPlace


class _WithoutIncarnation(_Broken):
    kind = WithoutIncarnation


class _ByBatch(_Broken):
    kind = ByBatch


class _Knowing(_Broken):
    kind = Knowing


class _LookingFirst(_Broken):
    kind = LookingFirst


class _ForgettingAside(_Broken):
    sets_aside = True
    kind = ForgettingAside


class _LookingAside(_Broken):
    sets_aside = True
    kind = LookingAside


class _Buffering(_Broken):
    promise = "at-least-once"
    kind = Buffering


class _Decoding(_Broken):
    kind = Decoding


class _NullAsEmpty(_Broken):
    kind = NullAsEmpty


class _Separated(_Broken):
    kind = Separated


class _FailingToAnswer(_Broken):
    kind = FailingToAnswer


class _Crashing(_Broken):
    kind = Crashing


class _Faulting(_Broken):
    kind = Faulting


class _NotLookingBack(_Broken):
    kind: type[FilesSink] = NotLookingBack

    def copy(self, directory: Path) -> Callable[[], None]:
        return copied(directory / "out")


class _LookingBack(_NotLookingBack):
    kind = LookingBack


@contextlib.contextmanager
def begun(contract: type[FilesContract]) -> Iterator[FilesContract]:
    contract.setup_class()
    try:
        yield contract()
    finally:
        contract.teardown_class()


def test_a_destination_that_went_back_is_refused() -> None:
    with begun(_LookingBack) as contract:
        contract.test_a_destination_that_went_back_takes_nothing_more()


@pytest.mark.parametrize(
    ("broken", "test", "says"),
    [
        (Appending, SinkContract.test_uncommitted_ranges_are_written_again, "records are double"),
        (Appending, SinkContract.test_two_members_write_at_once, "records are double"),
        (Appending, SinkContract.test_killed_at_any_moment, "records are double"),
        (Appending, SinkContract.test_a_zombie_finishes_its_write_late, "records are double"),
        (InPlace, SinkContract.test_killed_at_any_moment, "missing"),
        (WithoutIncarnation, SinkContract.test_recreated_topics_and_reset_offsets_are_different_records, "missing"),
        (ByBatch, SinkContract.test_uncommitted_ranges_are_written_again, "records are double"),
        (Knowing, SinkContract.test_has_knows_exactly_the_written_ranges, "has ranges that were never written"),
        (LookingFirst, SinkContract.test_a_zombie_finishes_its_write_late, "records are double"),
        (Buffering, SinkContract.test_killed_at_any_moment, "missing"),
        (ForgettingAside, SinkContract.test_ranges_set_aside_are_never_written, "is written that was set aside"),
        (LookingAside, SinkContract.test_a_range_is_set_aside_while_another_member_writes_it, "had set aside"),
        (NotLookingBack, SinkContract.test_a_destination_that_went_back_takes_nothing_more, "written behind a gap"),
        (Decoding, SinkContract.test_keys_and_values_may_be_any_bytes, "a write failed: UnicodeDecodeError: .*, line"),
        (Crashing, SinkContract.test_written_ranges_are_there, "died in a write: exit status 3\\n.*\\nout of"),
        (Crashing, SinkContract.test_two_members_write_at_once, "died in a race: exit status 3\\n.*\\nout of"),
        (Faulting, SinkContract.test_has_knows_exactly_the_written_ranges, "(?s)ended: signal SIGSEGV.* in has"),
        (NullAsEmpty, SinkContract.test_keys_and_values_may_be_any_bytes, r"missing 1 of 10 records: \[None\]"),
        (Separated, SinkContract.test_keys_and_values_may_be_any_bytes, r"missing 2 of 10 .*lines\\nof.*None\]"),
    ],
)
def test_a_broken_contract_is_detected(
    broken: type[FilesSink], test: Callable[[SinkContract], None], says: str
) -> None:
    with begun(contract_of(broken)) as contract, pytest.raises(AssertionError, match=says):
        test(contract)


def test_the_stack_in_c_does_not_hide_that_of_the_sink() -> None:
    """As Python 3.14 reports a fault."""
    report = ["Fatal Python error: Segmentation fault", '  File "orders.py", line 3 in has']
    stack = [f'  Binary file "/usr/bin/python3", at PyEval_EvalCode+0x{n:x} [0x58f09d]' for n in range(40)]
    assert last_lines("\n".join([*report, *stack, "Extension modules: msgspec"])) == [
        *report,
        "Extension modules: msgspec",
    ]


class DecodingContract(FilesContract):
    """Its values are text, and it says so."""

    values = "text"

    def sink(self, directory: Path) -> Sink:
        return Decoding(directory)


def test_a_sink_of_text_gets_text() -> None:
    with begun(DecodingContract) as contract:
        contract.test_keys_and_values_may_be_any_bytes()


class RefusingContract(FilesContract):
    def sink(self, directory: Path) -> Sink:
        raise ConfigError(["[sink.options] path: missing"])


class EndingContract(FilesContract):
    def sink(self, directory: Path) -> Sink:
        os._exit(4)


class WithoutHasContract(FilesContract):
    def sink(self, directory: Path) -> Sink:
        sink = FilesSink(directory)
        sink.has = None  # type: ignore[assignment, method-assign]
        return sink


@pytest.mark.parametrize(
    ("contract", "reason"),
    [
        (EndingContract, r"Member\(pid \d+\) ended: exit status 4"),
        (RefusingContract, r"ConfigError: \[sink.options\] path: missing"),
        (WithoutHasContract, 'PluginError: FilesSink has a "fingerprint" and no "has"'),
    ],
)
def test_a_sink_that_does_not_start_fails_one_test(contract: type[FilesContract], reason: str) -> None:
    with begun(contract) as one:
        with pytest.raises(pytest.fail.Exception, match=f"the sink does not start: {reason}"):
            one.test_written_ranges_are_there()
        for test in (SinkContract.test_two_members_write_at_once, SinkContract.test_killed_at_any_moment):
            with pytest.raises(pytest.skip.Exception, match="the sink does not start, as the first test"):
                test(one)


def test_a_member_that_failed_is_replaced() -> None:
    """Its error is that of one test, and the next one has a new member."""
    with begun(contract_of(FailingToAnswer)) as contract:
        for _ in range(2):
            with pytest.raises(AssertionError, match="OSError: unmounted"):
                contract.test_has_knows_exactly_the_written_ranges()
        contract.test_written_ranges_are_there()


def test_what_does_not_apply_is_skipped() -> None:
    with begun(contract_of(Buffering)) as contract:
        for test in (
            SinkContract.test_has_knows_exactly_the_written_ranges,
            SinkContract.test_ranges_set_aside_are_never_written,
            SinkContract.test_a_range_is_set_aside_while_another_member_writes_it,
        ):
            with pytest.raises(pytest.skip.Exception):
                test(contract)
