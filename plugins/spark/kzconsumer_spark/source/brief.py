"""Errors without the frames of this package: Spark shows the traceback of whatever a source raises."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from kzconsumer.errors import KzConsumerError

P = ParamSpec("P")
T = TypeVar("T")


def brief(function: Callable[P, T]) -> Callable[P, T]:
    """The same function. The traceback of a KzConsumerError, whose text says all, begins and ends with its call."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except KzConsumerError as error:
            raise error.with_traceback(None) from None

    return call
