"""How a function of a plugin or a setting can be called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def holds(test: Callable[[object], bool], function: object) -> bool:
    """Whether `test` holds for a function, or for the `__call__` of an object."""
    return test(function) or test(type(function).__call__)


def is_async(function: object) -> bool:
    return holds(inspect.iscoroutinefunction, function)


def misfit(function: Callable[..., Any], *arguments: str) -> str | None:
    """Why a function cannot be called with these positional arguments, which are named; None if it can."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C have no signature
        return None
    try:
        signature.bind(*arguments)
    except TypeError as error:
        return f"cannot be called as ({', '.join(arguments)}): {error}"
    return None
