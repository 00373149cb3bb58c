"""How a function of a plugin or a setting can be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def holds(test: Callable[[object], bool], function: object) -> bool:
    """Whether `test` holds for a function, or for the `__call__` of an object."""
    return test(function) or test(type(function).__call__)


def is_async(function: Any) -> bool:
    """Whether it, or what its decorators wrap, is defined with `async def`."""
    return any(holds(inspect.iscoroutinefunction, each) for each in (function, inspect.unwrap(function)))


def misfit(function: Callable[..., Any], *arguments: str) -> str | None:
    """Why a function cannot be called with these positional arguments, which are named; None if it can."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError, NameError):  # written in C, or with annotations that cannot be evaluated
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"cannot be called as ({', '.join(arguments)}): {error}"
    return None
