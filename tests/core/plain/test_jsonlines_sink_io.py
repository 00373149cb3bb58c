"""jsonlines on a real pipe: a reader that closes it, one that stalls, and a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import math, sys, anyio
from kzconsumer.clock import now
from kzconsumer.errors import SinkError
from kzconsumer.sinks.interface import Batch, SinkContext
from kzconsumer.sinks.builtin import JsonLinesSink
from tests.support.range_data import range_data

def batch(n):
    return Batch((range_data("t", 0, n * 5000, (n + 1) * 5000),))

async def main(batches, limit):
    first = batch(0)  # not within the limit: a busy machine may take that long
    begun = now()
    doubtful = float(sys.argv[3])
    safe_until = lambda: 0.0 if now() < begun + doubtful else math.inf
    async with JsonLinesSink({}, SinkContext(group="g", member="m", cluster="", safe_until=safe_until)) as sink:
        with anyio.move_on_after(limit) as scope:
            for n in range(batches):
                await sink.write(batch(n) if n else first)
        if "try again" in sys.argv:
            with anyio.move_on_after(0.3):
                await sink.write(Batch((range_data("t", 2, 0, 5000),)))
        if scope.cancelled_caught and "go on" in sys.argv:
            print("continuing", file=sys.stderr)
            await sink.write(Batch((range_data("t", 1, 0, 5000),)))
    print("cancelled" if scope.cancelled_caught else "written", file=sys.stderr)

try:
    anyio.run(main, int(sys.argv[1]), float(sys.argv[2]))
except SinkError as error:
    print(error, file=sys.stderr)
"""


def start(
    stdout: int | None, batches: int, limit: float = 60, doubtful: float = 0, *more: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(batches), str(limit), str(doubtful), *more]
    return subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_a_pipe_gets_every_line_whole() -> None:
    with start(subprocess.PIPE, 2) as process:
        out, err = process.communicate(timeout=60)
    assert [json.loads(line)["offset"] for line in out.splitlines()] == list(range(10_000))
    assert err == "written\n"


def test_a_file_gets_every_line_whole(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file, start(file.fileno(), 2) as process:
        assert process.communicate(timeout=60)[1] == "written\n"
    assert len((tmp_path / "out").read_text().splitlines()) == 10_000


def test_a_reader_that_closes_the_pipe_is_a_sink_error() -> None:
    with start(subprocess.PIPE, 1000) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == "jsonlines: standard output was closed by its reader\n"


def test_a_stalled_reader_does_not_delay_the_cancellation_of_a_write() -> None:
    with start(subprocess.PIPE, 1000, limit=1) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        assert process.stderr.read() == "cancelled\n"


@pytest.mark.parametrize("between", [(), ("try again",)], ids=["at once", "after one that got nowhere"])
def test_a_write_continues_where_a_cancelled_one_stopped_and_tears_no_line(between: tuple[str, ...]) -> None:
    with start(subprocess.PIPE, 1000, 1, 0, "go on", *between) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        # Cancelled in the middle of a line: 4096 bytes are no whole number of lines.
        assert process.stderr.readline() == "continuing\n"
        rest = process.stdout.readlines()
    records = [json.loads(line) for line in (first, *rest)]
    before = [record["offset"] for record in records if record["partition"] == 0]
    assert before == list(range(len(before)))
    assert 0 < len(before) < 100_000
    assert [record["offset"] for record in records if record["partition"] == 1] == list(range(5000))


def test_nothing_is_written_while_the_lease_is_in_doubt(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file, start(file.fileno(), 1, 1, 60) as process:
        assert process.communicate(timeout=60)[1] == "cancelled\n"
    assert not (tmp_path / "out").read_bytes()
    with (tmp_path / "out").open("w") as file, start(file.fileno(), 1, 60, 0.5) as process:
        assert process.communicate(timeout=60)[1] == "written\n"
    assert len((tmp_path / "out").read_text().splitlines()) == 5_000
