"""`"module:function"` in a settings file into the function it names, checked for the way it will be called.

Owns no state; imports the user's module, which may do anything. The callable sink and the Spark plugin call it. The
current directory is searched like a script's own directory would be, so that a function beside the settings is found.
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

_REFERENCE = re.compile(r"[\w.-]+:[\w.]+")


def load_function(reference: str, where: str) -> Callable[..., Any]:
    """The function that `reference` ("package.module:function" or "module:object.method") names.

    `where` begins the line of a fault, for example `"[sink.options] function"`. Raises ConfigError with one line.
    """
    # What is no name may be a URL with a password: told in parts, it would not be known as one.
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
    """A function to be awaited, which can be called with that many positional arguments; they are named for a fault."""
    function = load_function(reference, where)
    if not _is(inspect.iscoroutinefunction, function):
        raise ConfigError([f"{where}: {reference} is not an async function"])
    _require_arguments(function, reference, where, arguments)
    return function


def load_plain_function(reference: str, where: str, *arguments: str) -> Callable[..., Any]:
    """A function whose call does the work: to call an async function or a generator would run nothing of it."""
    function = load_function(reference, where)
    for test, kind in (
        (inspect.iscoroutinefunction, "an async function"),
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
    ):
        if _is(test, function):
            raise ConfigError([f"{where}: {reference} is {kind}; it must be a plain function"])
    _require_arguments(function, reference, where, arguments)
    return function


def _is(test: Callable[[object], bool], function: object) -> bool:
    """Whether `test` holds for a function, or for what makes an object callable."""
    return test(function) or test(type(function).__call__)


def _require_arguments(function: Callable[..., Any], reference: str, where: str, arguments: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions written in C do not tell theirs
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        wanted = ", ".join(arguments)
        raise ConfigError([f"{where}: {reference} cannot be called as ({wanted}): {error}"]) from error


def _place(error: Exception) -> str:
    """Where in the user's code an import failed; nothing when the module was not even found."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [each for each in frames if not each.filename.startswith("<frozen") and each.filename != __file__]
    users = [each for each in users if each.filename != importlib.__file__]
    return f" ({users[-1].filename}, line {users[-1].lineno})" if users else ""
