"""How a fetcher decodes what it has fetched: within bounds, and for which sinks."""

from __future__ import annotations

import math

import pytest

from kzconsumer.brokers.protocol.log_reads import FetchedPartition
from kzconsumer.errors import PluginError
from kzconsumer.fetcher.reading import decoding
from kzconsumer.model import TopicPartition
from kzconsumer.sinks.builtin import JsonLinesSink
from kzconsumer.sinks.capabilities import capabilities
from kzconsumer.sinks.interface import Sink, SinkContext
from tests.support.record_sets import Codec, Record, record_batch


def fetched(data: bytes) -> FetchedPartition:
    return FetchedPartition(TopicPartition("orders", 3), 0, 100, -1, -1, (), memoryview(data))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_batch_that_decompresses_beyond_the_limit_is_corrupt(codec: Codec) -> None:
    bomb = record_batch([Record(None, bytes(50_000))], base_offset=0, codec=codec)
    allowed = decoding(60_000)(fetched(bomb), 0)
    assert (allowed.next_offset, allowed.corrupt) == (1, None)
    refused = decoding(40_000)(fetched(bomb), 0)
    assert refused.corrupt is not None
    assert "it decompresses to more than 40000 bytes" in refused.corrupt.reason


def test_a_sink_gets_columns_by_default() -> None:
    context = SinkContext(group="g", member="m", cluster="", safe_until=lambda: math.inf)
    sink: Sink = JsonLinesSink({}, context)
    assert capabilities(sink).wants == "columns"
    sink.wants = "rows"  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match='wants "rows"; there is columns, ranges'):
        capabilities(sink)
