"""How exception groups that task groups raise are unwrapped, and errors that come from another process."""

from __future__ import annotations

import pickle

import pytest

from kzconsumer.errors import (
    ConfigError,
    CorruptRecordError,
    KzConsumerError,
    NoNodeError,
    NotNowError,
    OffsetLostError,
    RecordRejectedError,
    SinkError,
    sole_cause,
)
from kzconsumer.model import TopicPartition
from kzconsumer.sinks.interface import RecordsRejectedError, Rejected


def groups(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    """Each in a nested task group of its own."""
    return BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [error]) for error in errors])


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def test_a_single_error_is_raised_without_its_groups() -> None:
    for error in (OffsetLostError("gone"), ValueError("a bug"), KeyboardInterrupt()):
        assert sole_cause(groups(error)) is error
        assert notes(error) == []


def test_none_of_two_errors_of_ours_is_lost() -> None:
    first: KzConsumerError = SinkError("no Spark")
    found = sole_cause(groups(first, OffsetLostError("gone"), OffsetLostError("gone"), SinkError("no Spark")))
    assert found is first, "a handler for our errors catches it"
    assert notes(first) == ["and OffsetLostError: gone"]


def test_a_programming_error_is_raised_with_everything_that_accompanied_it() -> None:
    group = groups(SinkError("no Spark"), ValueError("a bug"))
    assert sole_cause(group) is group
    assert notes(group.exceptions[0]) == []


@pytest.mark.parametrize(
    "error",
    [
        OffsetLostError("gone"),
        ConfigError(["no group", "no topic"]),
        RecordRejectedError("orders", 0, 7, "undecodable", "no JSON"),
        RecordsRejectedError([Rejected("orders", 0, 7, "no JSON", "undecodable")]),
        CorruptRecordError(TopicPartition("orders", 0), 7, "bad checksum"),
        NoNodeError("/brokers"),
        NotNowError("/brokers", "quota", wait=True),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_whole_out_of_a_pool_of_processes(error: KzConsumerError) -> None:
    """`multiprocessing.Pool` waits for ever for one that cannot be unpickled."""
    error.add_note("in a worker")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
