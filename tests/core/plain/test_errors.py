"""What becomes of a group of exceptions, which task groups raise."""

from __future__ import annotations

from kzconsumer.errors import KzConsumerError, OffsetLostError, SinkError, sole_cause


def groups(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    """Each in a task group of its own, within others."""
    return BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [error]) for error in errors])


def notes(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


def test_one_error_is_raised_as_it_was_meant() -> None:
    for error in (OffsetLostError("gone"), ValueError("a bug"), KeyboardInterrupt()):
        assert sole_cause(groups(error)) is error
        assert notes(error) == []


def test_of_two_of_ours_none_is_lost() -> None:
    first: KzConsumerError = SinkError("no Spark")
    found = sole_cause(groups(first, OffsetLostError("gone"), OffsetLostError("gone"), SinkError("no Spark")))
    assert found is first, "whoever catches errors of ours catches it"
    assert notes(first) == ["and OffsetLostError: gone"]


def test_a_fault_in_a_program_is_seen_with_all_that_came_with_it() -> None:
    group = groups(SinkError("no Spark"), ValueError("a bug"))
    assert sole_cause(group) is group
    assert notes(group.exceptions[0]) == []
