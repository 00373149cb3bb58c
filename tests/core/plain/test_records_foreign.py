"""Record sets built by the encoders of aiokafka, which share no code with ours."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder  # type: ignore[import-untyped]
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder  # type: ignore[import-untyped]

from kzconsumer.records.decode import decode

KEYS: list[bytes | None] = [b"a", None, b"", b"long" * 40, b"b"] * 20
VALUES: list[bytes | None] = [None, b"v", b"", b"x" * 300, b"\0\xff"] * 20


def columns(data: bytes, offset: int) -> list[Any]:
    decoded = decode(memoryview(data), topic="t", partition=0, start=offset)
    assert decoded.corrupt is None
    assert decoded.next_offset == offset + len(KEYS)
    batch = decoded.records.columns()
    assert batch is not None
    batch.validate(full=True)
    return [
        batch.column("offset").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        [None if time is None else round(time.timestamp() * 1000) for time in batch.column("timestamp").to_pylist()],
        batch.column("headers").to_pylist(),
    ]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("transactional", [False, True])
def test_batches_of_magic_2(codec: int, transactional: bool) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, int(transactional), 5, 1, 0, 1 << 20)
    headers = [("name", b"x"), ("none", None)]
    for n, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        assert builder.append(n, 1_600_000_000_000 - n * 70_000, key, value, headers if n % 7 == 0 else [])
    data = bytes(builder.build())
    wanted = [{"key": key, "value": value} for key, value in headers]
    assert columns(data, 0) == [
        list(range(100)),
        KEYS,
        VALUES,
        [1_600_000_000_000 - n * 70_000 for n in range(100)],
        [wanted if n % 7 == 0 else [] for n in range(100)],
    ]


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_message_sets(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for n, (key, value) in enumerate(zip(KEYS, VALUES, strict=True)):
        assert builder.append(n, 1_600_000_000_000 + n, key, value)
    data = bytearray(builder.build())
    if codec:  # a producer leaves the wrapper's offset to the broker
        data[:8] = (99).to_bytes(8, "big")
    times = [1_600_000_000_000 + n for n in range(100)] if magic else [None] * 100
    assert columns(bytes(data), 0) == [list(range(100)), KEYS, VALUES, times, [[]] * 100]
