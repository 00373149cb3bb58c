"""The ranges in a quarantine, by their files."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kzconsumer.errors import SinkError
from kzconsumer.file_names import named_after
from kzconsumer.model import RangeIdentity
from kzconsumer.sinks.interface import QuarantinedRange
from kzconsumer.sinks.quarantine import METADATA, kept_ranges


def test_a_quarantine_that_cannot_be_read_is_an_error_with_its_file(tmp_path: Path) -> None:
    """Of a topic with a long name, its file says which it is."""
    short = named_after("x" * 249, lambda topic: f"{topic}+0+2a.0+{0:020d}+{5:020d}.parquet")
    assert kept_ranges(tmp_path / "missing") == []
    for name, content in (
        (f"orders+0+2a.0+{0:020d}+{5:020d}.parquet", b""),
        (short, parquet_with(None)),
        (short, parquet_with(b"{")),
        (short, parquet_with(b"{}")),
    ):
        (file := tmp_path / name).write_bytes(content)
        with pytest.raises(SinkError, match=rf"^\[sink\] quarantine: {re.escape(name)}: "):
            kept_ranges(tmp_path)
        file.unlink()
    (tmp_path / short).write_bytes(parquet_with(b'{"range":{"topic":"long"}}'))
    (tmp_path / "orders+0+2a.0+x.bin").touch()
    assert kept_ranges(tmp_path) == [QuarantinedRange(RangeIdentity("long", 0, 0x2A, 0, 0, 5), 3)]


def parquet_with(about: bytes | None) -> bytes:
    """Three rows, and what a file of the quarantine says of itself."""
    table = pa.table({"n": [1, 2, 3]}).replace_schema_metadata({} if about is None else {METADATA: about})
    written = io.BytesIO()
    pq.write_table(table, written)
    return written.getvalue()
