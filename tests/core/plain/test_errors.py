"""How exception groups that task groups raise are unwrapped."""

from __future__ import annotations

from kzconsumer.errors import KzConsumerError, OffsetLostError, SinkError, sole_cause


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
