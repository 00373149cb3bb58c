"""Loads the function that a setting names as `"module:function"`, and checks how it can be called.

The current directory is searched, too, so that a function beside the settings file is found.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from kzconsumer.errors import ConfigError
from kzconsumer.settings.tables import nearest
from kzconsumer.sinks.callables import holds, is_async, misfit

_REFERENCE = re.compile(r"[\w.-]+:[\w.]+")


def load_function(reference: str, where: str) -> Callable[..., Any]:
    """The function that `reference` ("package.module:function" or "module:object.method") names.

    `where` begins the line of a fault, for example `"[sink.options] function"`. Raises ConfigError with one line.
    """
    # Anything else may be a URL with a password, which is redacted only if it is printed whole.
    if not _REFERENCE.fullmatch(reference):
        raise ConfigError([f'{where}: "{reference}" is not "module:function"'])
    module_name, _, attribute = reference.partition(":")
    current = os.getcwd()
    if current not in sys.path and "" not in sys.path:
        sys.path.insert(0, current)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}{_place(error)}".split())
        raise ConfigError([f"{where}: cannot import {module_name}: {reason}"]) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            close = nearest(name, vars(found)) if hasattr(found, "__dict__") else None
            hint = f"; did you mean {close}?" if close else ""
            raise ConfigError([f"{where}: {module_name} has no {attribute}{hint}"])
        found = getattr(found, name)
    if isinstance(found, type) or not callable(found):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise ConfigError([f"{where}: {reference} is a {kind}, not a function"])
    return found  # type: ignore[no-any-return]


def load_async_function(reference: str, where: str, *arguments: str) -> Callable[..., Any]:
    """An async function that can be called with these positional arguments, whose names are used in errors."""
    function = load_function(reference, where)
    if not is_async(function):
        raise ConfigError([f"{where}: {reference} is not an async function"])
    _require_arguments(function, reference, where, arguments)
    return function


def load_plain_function(reference: str, where: str, *arguments: str) -> Callable[..., Any]:
    """A function that is neither async nor a generator: calling one of these would not run it."""
    function = load_function(reference, where)
    for test, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if holds(test, function):
            raise ConfigError([f"{where}: {reference} is {kind}; it must be a plain function"])
    _require_arguments(function, reference, where, arguments)
    return function


def _require_arguments(function: Callable[..., Any], reference: str, where: str, arguments: tuple[str, ...]) -> None:
    if (reason := misfit(function, *arguments)) is not None:
        raise ConfigError([f"{where}: {reference} {reason}"])


def _place(error: Exception) -> str:
    """The line of the user's code at which an import failed; empty if the module was not found."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [each for each in frames if not each.filename.startswith("<frozen") and each.filename != __file__]
    users = [each for each in users if each.filename != importlib.__file__]
    return f" ({users[-1].filename}, line {users[-1].lineno})" if users else ""
