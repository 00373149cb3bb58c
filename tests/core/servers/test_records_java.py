"""Record sets read as by Kafka's own consumer: constructed ones, and random ones, each with its checksum."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from kzconsumer.records.decode import decode
from kzconsumer_sandbox.servers.jars import NEWEST, classpath, find_java, resolve_jars
from tests.fuzz.record_sets import mutate_inside
from tests.support import odd_record_sets
from tests.support.chunks import messages
from tests.support.extent import NIGHTLY, only_nightly
from tests.support.odd_record_sets import ODD
from tests.support.programs import JAVAC, need

_PROGRAM = Path(odd_record_sets.__file__).with_name("RecordsReader.java")

Lines: TypeAlias = list[str]
"""A line for each record; then `end`, or what is wrong. Those before a fault do not count: Java delivers the good
records of a bad batch."""

OURS_REFUSES: Final = {
    "an offset beyond the last": "a broker verifies the offsets of a batch; Java reads it, and goes back",
    **{
        f"magic {magic}: {name}": why
        for magic in (0, 1)
        for name, why in {
            "another checksum of the wrapper": "a broker refuses it; Java's consumer looks at those inside only",
            "the other magic inside": "a broker refuses it",
        }.items()
    },
    "magic 0: an offset beyond the wrapper's": "as for a batch; for magic 1 Java refuses it",
    "magic 1: offsets go down": "its first offset is beyond that of the wrapper",
}
"""What Java's consumer reads, and no broker stores."""


@pytest.fixture(scope="module")
def java() -> Callable[[Sequence[bytes]], list[Lines]]:
    need(JAVAC)
    program = find_java()
    command = [
        str(program),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        "-cp",
        classpath(resolve_jars(NEWEST.jars)),
    ]

    def read(sets: Sequence[bytes]) -> list[Lines]:
        given = b"".join(struct.pack(">i", len(each)) + each for each in sets)
        done = subprocess.run([*command, str(_PROGRAM)], input=given, capture_output=True, check=True)
        found: list[Lines] = [[]]
        for line in done.stdout.decode().splitlines():
            found[-1].append(line)
            if line.startswith(("end", "fault")):
                found.append([])
        assert len(found) == len(sets) + 1, done.stderr.decode()
        return found[:-1]

    return read


def ours(data: bytes) -> Lines:
    decoded = decode(memoryview(data), topic="t", partition=0, start=0)
    if decoded.corrupt is not None:
        return [f"fault {decoded.corrupt.reason}"]
    lines = []
    for each in messages(decoded.records):
        headers = "".join(f" {name}={_hex(value)}" for name, value in each.headers)
        time = -1 if each.timestamp is None else each.timestamp
        lines.append(f"{each.offset} {time} {_hex(each.key)} {_hex(each.value)}{headers}")
    return [*lines, "end"]


def _hex(field: bytes | None) -> str:
    return "null" if field is None else f"x{field.hex()}"


def _same(one: Lines, other: Lines) -> bool:
    return one == other or (one[-1].startswith("fault") and other[-1].startswith("fault"))


def test_constructed_record_sets_are_read_as_by_java(java: Callable[[Sequence[bytes]], list[Lines]]) -> None:
    found = dict(zip(ODD, java(list(ODD.values())), strict=True))
    differ = {name for name, data in ODD.items() if not _same(ours(data), found[name])}
    assert differ == OURS_REFUSES.keys()
    assert all(ours(ODD[name])[-1].startswith("fault") for name in differ)


@only_nightly  # always the same by day; a second reader, of random ones: plain/test_record_fuzz.py
def test_random_record_sets_are_read_as_by_java(java: Callable[[Sequence[bytes]], list[Lines]]) -> None:
    """Whatever we read, Java reads alike."""
    sets = [mutate_inside(random.Random(f"{NIGHTLY}-{number}")) for number in range(5_000)]
    for number, (data, theirs) in enumerate(zip(sets, java(sets), strict=True)):
        here = ours(data)
        if theirs[-1].startswith("fault OutOfMemoryError"):  # it makes room for what a size claims
            continue
        assert _same(here, theirs) or here[-1].endswith(_ONLY_JAVA), (number, here, theirs)


_ONLY_JAVA: Final = (
    "an offset is negative or outside the batch",  # no broker gives it one
    "its magic byte is unknown or does not fit",  # inside of a wrapper; a broker refuses it
    "bytes are left after its last record",  # of a batch of no records, of which Java reads nothing
    "a key or value does not fit its record",  # its length is below -1, which Java takes for null
    "a record header does not fit its record",  # the same
)
"""What no producer writes, and only Java's consumer reads."""
