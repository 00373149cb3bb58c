"""Plugins are entry points of installed distributions, the core's own among them; functions are named by a setting.

Assignors, sinks and commands are plugins. Errors name the plugin and the distribution that brings it.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection
from importlib import import_module, metadata
from typing import Any

import msgspec

from kzconsumer.errors import PLUGIN_FAULTS, ConfigError, PluginError, UnknownPluginError
from kzconsumer.installation import pip_install
from kzconsumer.settings.table_reader import nearest

ASSIGNORS = "kzconsumer.assignors"
SINKS = "kzconsumer.sinks"
COMMANDS = "kzconsumer.commands"

# Plugins of kzconsumer's own distributions, by the extra that installs them: an error about a missing one names it.
_EXTRAS = {
    ASSIGNORS: {"sticky": "sticky"},
    SINKS: {"parquet": "files", "spark": "spark"},
    COMMANDS: {
        **dict.fromkeys(("demo", "sandbox"), "sandbox"),
        **dict.fromkeys(("cluster", "completion", "config", "consume", "context", "groups"), "tools"),
        **dict.fromkeys(("exporter", "lag", "manual", "offsets", "sink", "top", "topics"), "tools"),
    },
}


class Plugin(msgspec.Struct, frozen=True, order=True):
    """One installed plugin: `value` is `module:attribute`, `distribution` the name and version that brought it."""

    group: str
    name: str
    value: str
    distribution: str

    def __str__(self) -> str:
        return f'{kind(self.group)} "{self.name}" ({self.value}, from {self.distribution})'


def installed(group: str) -> metadata.EntryPoints:
    """The plugins of a group. It looks at every distribution of the environment, which takes milliseconds."""
    return metadata.entry_points(group=group)


def list_plugins(group: str) -> list[Plugin]:
    """The installed plugins of an entry-point group, sorted by name; a name may occur twice."""
    return sorted(_described(entry) for entry in installed(group))


def missing_commands(installed: Collection[str]) -> dict[str, list[str]]:
    """The commands of our other distributions that are not among those, by the extra that brings them."""
    found: dict[str, list[str]] = {}
    for name, extra in sorted(_EXTRAS[COMMANDS].items()):
        if name not in installed:
            found.setdefault(extra, []).append(name)
    return found


def load(group: str, name: str, beside: Collection[str] = (), among: metadata.EntryPoints | None = None) -> object:
    """The object behind a plugin's name; an error about an unknown one also suggests the names in `beside`.

    `among`: what is `installed`, if the caller loads several. Raises UnknownPluginError if there is none of that name,
    PluginError if two distributions bring it, or if importing it fails.
    """
    among = installed(group) if among is None else among
    found = list(among.select(name=name))
    if not found:
        raise UnknownPluginError(_unknown_name(group, name, {*beside, *among.names}))
    if len(found) > 1:
        rivals = " and ".join(sorted(f"{each.value} from {_described(each).distribution}" for each in found))
        raise PluginError(f'{kind(group)} "{name}" is in more than one distribution: {rivals}; uninstall one of them')
    try:
        return found[0].load()
    except PLUGIN_FAULTS as error:  # an import may raise anything
        raise PluginError(f"{_described(found[0])} cannot be loaded: {type(error).__name__}: {error}") from error


def described(group: str, name: str) -> str:
    """The kind, name, object and distribution of an installed plugin, for errors about it."""
    return str(_described(next(iter(installed(group).select(name=name)))))


def load_chosen(group: str, name: str, where: str) -> object:
    """`load` for a name in the settings, at `where`. Raises ConfigError."""
    try:
        return load(group, name)
    except PluginError as error:
        raise ConfigError([f"{where}: {error}"]) from error


def require_extra(where: str, extra: str, *modules: str) -> None:
    """Raises ConfigError, for the setting `where`, if one of these modules of an extra cannot be imported."""
    missing = [fault for fault in map(_import_fault, modules) if fault is not None]
    if missing:
        names = " and ".join(missing)
        raise ConfigError([f"{where}: needs {names}: {pip_install(extra)}"])


def _import_fault(module: str) -> str | None:
    """The module's name if it is not installed, with the reason if it is and cannot be imported."""
    try:
        import_module(module)
    except ModuleNotFoundError:
        return module
    except ImportError as error:
        return f"{module} ({error})"
    return None


def _described(entry: metadata.EntryPoint) -> Plugin:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
    return Plugin(entry.group, entry.name, entry.value, distribution)


def _unknown_name(group: str, name: str, known: Collection[str]) -> str:
    """The end of an error about a name that is not among `known`: what to install, or the nearest known name."""
    if extra := _EXTRAS[group].get(name):
        return f'no {kind(group)} "{name}" is installed; {pip_install(extra)} brings it'
    close = nearest(name, {*known, *_EXTRAS[group]})
    brought = f", which {pip_install(_EXTRAS[group][close])} brings" if close and close not in known else ""
    hint = f'did you mean "{close}"{brought}? ' if close else ""
    installed = ", ".join(sorted(known)) or "none"
    return f'no {kind(group)} "{name}" is installed; {hint}installed are {installed}'


def kind(group: str) -> str:
    """The singular noun of an entry-point group: assignor, sink, command."""
    return group.rpartition(".")[2].removesuffix("s")


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


# A setting names a function as `"module:function"`. The current directory is searched, too, so that a function beside
# the settings file is found.

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
    except PLUGIN_FAULTS as error:
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


def _place(error: BaseException) -> str:
    """The line of the user's code at which an import failed; empty if the module was not found."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [each for each in frames if not each.filename.startswith("<frozen") and each.filename != __file__]
    users = [each for each in users if each.filename != importlib.__file__]
    return f" ({users[-1].filename}, line {users[-1].lineno})" if users else ""
