"""How jsonlines writes a range: one JSON object per line, bytes as text or base64."""

from __future__ import annotations

import fcntl
import json
import math
import os
import select
import sys
from pathlib import Path
from threading import Thread
from typing import cast

import anyio
import msgspec
import pytest

from kzconsumer.errors import ConfigError, SinkError
from kzconsumer.sinks import builtin
from kzconsumer.sinks.builtin import JsonLinesSink, encode
from kzconsumer.sinks.interface import Batch, RangeData, SinkContext
from tests.support.range_data import TIME, range_data, record


def lines(part: RangeData) -> list[dict[str, object]]:
    return [json.loads(line) for line in encode(part.messages()).decode().splitlines()]


def test_an_ordinary_record_has_exactly_the_promised_keys() -> None:
    assert encode(range_data("t", 3, 7, 8).messages()).decode() == (
        f'{{"topic":"t","partition":3,"offset":7,"timestamp":{TIME + 7},"key":"k7","value":"v7","headers":[]}}\n'
    )


def test_non_utf8_bytes_are_base64_and_null_is_null() -> None:
    rows = [
        record(0, key=None, value=b"\xff\x00"),
        record(1, key="é\n".encode(), value=b""),
        record(2, key=b"\xc3", value=None),
    ]
    found = lines(range_data("t", 0, 0, 3, rows))
    assert [(row["key"], row["value"]) for row in found] == [
        (None, {"base64": "/wA="}),
        ("é\n", ""),
        ({"base64": "ww=="}, None),
    ]


def test_columns_of_only_text_or_only_null_read_the_same() -> None:
    rows = [record(0, key=None, value=b"a"), record(1, key=None, value=None)]
    assert [(row["key"], row["value"]) for row in lines(range_data("t", 0, 0, 2, rows))] == [(None, "a"), (None, None)]


def test_a_record_without_timestamp_has_null() -> None:
    rows = [record(0, timestamp=None, timestamp_type=-1), record(1)]
    assert [row["timestamp"] for row in lines(range_data("t", 0, 0, 2, rows, batches=1))] == [None, TIME + 1]


def test_headers_are_pairs_in_order_with_duplicates() -> None:
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": b"\xfe"}, {"key": "b", "value": None}]
    rows = [record(0), record(1, headers=headers)]
    assert [row["headers"] for row in lines(range_data("t", 0, 0, 2, rows, batches=1))] == [
        [],
        [["a", "1"], ["a", {"base64": "/g=="}], ["b", None]],
    ]


def test_a_slice_shows_only_its_own_rows() -> None:
    whole = range_data("t", 0, 0, 5, batches=1)
    part = msgspec.structs.replace(whole, first=2, until=4, pieces=(whole.pieces[0].slice(2, 4),))
    assert [(row["offset"], row["key"], row["value"]) for row in lines(part)] == [(2, "k2", "v2"), (3, "k3", "v3")]


def test_a_range_without_records_has_no_lines() -> None:
    assert encode(range_data("t", 0, 0, 5, []).messages()) == b""


def test_it_has_no_options() -> None:
    context = SinkContext(group="g", member="m", cluster="", safe_until=lambda: math.inf)
    with pytest.raises(ConfigError, match=r"\[sink.options\] path: unknown key"):
        JsonLinesSink({"path": "x"}, context)


class Output:
    """Standard output: a descriptor of the test's."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.flushed = 0

    def fileno(self) -> int:
        return self._descriptor

    def flush(self) -> None:
        self.flushed += 1


def sink_to(descriptor: int, monkeypatch: pytest.MonkeyPatch, safe_until: float = math.inf) -> JsonLinesSink:
    for name in ("_POLL_SECONDS", "_DOUBT_SECONDS"):
        monkeypatch.setattr(builtin, name, 0.01)
    monkeypatch.setattr("sys.stdout", Output(descriptor))
    return JsonLinesSink({}, SinkContext(group="g", member="m", cluster="", safe_until=lambda: safe_until))


def rows_of(*parts: RangeData) -> list[tuple[str, int]]:
    return [(part.topic, offset) for part in parts for offset in range(part.first, part.until)]


def shown(data: bytes) -> list[tuple[str, int]]:
    assert data.endswith(b"\n") or not data
    return [(row["topic"], row["offset"]) for row in map(json.loads, data.splitlines())]


async def test_a_file_gets_every_line_of_a_batch_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = range_data("t", 0, 0, 2500), range_data("u", 0, 7, 9)
    with (tmp_path / "out").open("wb") as file:
        sink = sink_to(file.fileno(), monkeypatch)
        async with sink as entered:
            assert entered is sink
            assert cast(Output, sys.stdout).flushed == 1
            await sink.write(Batch(parts))
            await sink.write(Batch(()))
    assert shown((tmp_path / "out").read_bytes()) == rows_of(*parts)


@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ("reader", "jsonlines: standard output was closed by its reader"),
        ("writer", "jsonlines: cannot write to standard output: [Errno 9] Bad file descriptor"),
    ],
)
async def test_an_output_that_is_closed_is_an_error(closed: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    sink = sink_to(writer, monkeypatch)
    os.close(reader if closed == "reader" else writer)
    with pytest.raises(SinkError) as raised:
        await sink.write(Batch((range_data("t", 0, 0, 2),)))
    assert str(raised.value) == said
    os.close(writer if closed == "reader" else reader)


async def test_nothing_is_written_without_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("wb") as file:
        sink = sink_to(file.fileno(), monkeypatch, 0.0)
        with anyio.move_on_after(0.1) as scope:
            await sink.write(Batch((range_data("t", 0, 0, 2),)))
        assert scope.cancelled_caught
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_line_that_a_cancelled_write_has_begun_is_ended_before_others(
    attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader stalls meanwhile; each line that it gets is whole."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    sink = sink_to(writer, monkeypatch)
    first, later = range_data("t", 0, 0, 200), range_data("u", 0, 0, 3)
    for part in (first, later)[:attempts]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.write, Batch((part,)))
            while not select.select([reader], [], [], 0)[0]:
                await anyio.sleep(0.001)
            await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()
    found = list[bytes]()

    def read() -> None:
        while piece := os.read(reader, 4096):
            found.append(piece)

    thread = Thread(target=read)
    thread.start()
    await sink.write(Batch((later,)))
    os.close(writer)
    thread.join()
    os.close(reader)
    rows = shown(b"".join(found))
    begun = len(rows) - 3
    assert 0 < begun < 200
    assert rows == [*rows_of(first)[:begun], *rows_of(later)]
