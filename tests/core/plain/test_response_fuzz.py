"""Mutated responses: the decoders agree with a second reader or raise ProtocolError, and never read outside their
memory.

A share of what `make fuzz` runs. `KZCONSUMER_FUZZ_CASES` makes it longer, `KZCONSUMER_FUZZ_SEED` selects another seed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import groupby
from typing import Any

import msgspec
import pytest

from kzconsumer.brokers.protocol.cluster_state import MetadataRequest, PartitionMetadata, TopicMetadata
from kzconsumer.brokers.protocol.log_reads import FetchResponse
from kzconsumer.brokers.protocol.versions import SPOKEN
from kzconsumer.errors import ProtocolError
from tests.fuzz.responses import APIS, decode, differences, seeds
from tests.fuzz.slices import ROOT, run_slice
from tests.support.extent import NIGHTLY, extent

CASES = int(os.environ.get("KZCONSUMER_FUZZ_CASES", extent("8000", "400000")))
SEED = int(os.environ.get("KZCONSUMER_FUZZ_SEED", extent("1", str(NIGHTLY))))


@pytest.mark.long
def test_mutated_responses_are_read_alike() -> None:
    outcome = run_slice("responses", CASES, SEED)
    assert outcome.crash is None, outcome.crash
    assert not outcome.misreads, outcome.misreads[0]
    assert min(outcome.kinds["read"], outcome.kinds["refused"]) > CASES // 10, outcome.kinds


def test_good_responses_of_every_version_of_every_request_are_read() -> None:
    known = seeds()
    assert {each.request.api_key for each in APIS} == set(SPOKEN)
    assert {(seed.api.request.api_key, seed.version) for seed in known} == {
        (key, version) for key, api in SPOKEN.items() for version in range(api.oldest, api.newest + 1)
    }
    found, kinds = differences(decode, len(known), seed=1)
    assert not found, found[0]
    # Except for coordinators of groups that were not requested.
    assert kinds["read"] > 0.98 * len(known), kinds


def test_fetched_records_are_views_of_the_response() -> None:
    for api, version, _, data in seeds():
        if api.name == "fetch":
            answer = decode(api.request, version, memoryview(data))
            assert all(part.records.obj is data for part in answer.partitions)


def test_of_metadata_only_what_is_wanted_is_read() -> None:
    """Also where a broker can only return all topics."""
    known = [each for each in seeds() if each.api.name == "metadata"]
    for _, version, _, data in known:
        whole = decode(MetadataRequest(None, replicas=True), version, memoryview(data))
        leaders = decode(MetadataRequest(None), version, memoryview(data))
        brokers = decode(MetadataRequest(()), version, memoryview(data))
        assert leaders.topics == {name: without_replicas(topic) for name, topic in whole.topics.items()}
        assert brokers == msgspec.structs.replace(whole, topics={})


def without_replicas(topic: TopicMetadata) -> TopicMetadata:
    parts = {n: PartitionMetadata(part.error, part.leader, part.leader_epoch) for n, part in topic.partitions.items()}
    return TopicMetadata(topic.error, parts, topic.id)


@pytest.mark.long
def test_every_truncation_and_every_addition_is_refused() -> None:
    """Of a response of every version of every request."""
    for _, of_version in groupby(seeds(), lambda each: (each.api.name, each.version)):
        by_size = sorted(of_version, key=lambda each: len(each.data))
        api, version, _, data = by_size[len(by_size) // 2]
        for size in range(4, len(data)):
            with pytest.raises(ProtocolError):
                decode(api.request, version, memoryview(data)[:size])
        with pytest.raises(ProtocolError, match=r"left over|no coordinator of group"):
            decode(api.request, version, memoryview(data + b"\0"))


def shifted(request: Any, version: int, data: memoryview) -> Any:
    answer = decode(request, version, data)
    if isinstance(answer, FetchResponse):
        return msgspec.structs.replace(answer, throttle_ms=answer.throttle_ms + 1)
    return answer


def short(request: Any, version: int, data: memoryview) -> Any:
    """Accepts left-over bytes: as if one were dropped."""
    try:
        return decode(request, version, data)
    except ProtocolError:
        return decode(request, version, data[:-1])


def strict(request: Any, version: int, data: memoryview) -> Any:
    answer = decode(request, version, data)
    if isinstance(answer, dict) and len(answer) > 3:
        raise ProtocolError("too many")
    return answer


def careless(request: Any, version: int, data: memoryview) -> Any:
    try:
        return decode(request, version, data)
    except ProtocolError as error:
        raise IndexError from error


@pytest.mark.long
@pytest.mark.parametrize("wrong", [shifted, short, strict, careless])
def test_control_a_decoder_that_is_wrong_is_found(wrong: Callable[[Any, int, memoryview], Any]) -> None:
    assert differences(wrong, 3000, seed=1)[0]


@pytest.mark.long
@pytest.mark.parametrize("where", ["before", "behind"])
def test_control_one_byte_outside_ends_the_process(where: str) -> None:
    code = f"from tests.core.plain.test_response_fuzz import stray; stray({where!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def stray(where: str) -> None:
    """Run the harness with a decoder that writes one byte too far."""

    def astray(request: Any, version: int, data: memoryview) -> Any:
        address = ctypes.addressof(ctypes.c_char.from_buffer(data.obj))
        ctypes.string_at(address - 1 if where == "before" else address, len(data) + 1)
        return decode(request, version, data)

    differences(astray, 1000, seed=1)
