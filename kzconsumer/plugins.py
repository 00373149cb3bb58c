"""Plugins: assignors, sinks and commands are entry points of installed distributions, the core's own among them.

Errors name the plugin and the distribution that brings it.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module, metadata

import msgspec

from kzconsumer.errors import ConfigError, PluginError, UnknownPluginError
from kzconsumer.installation import pip_install
from kzconsumer.settings.tables import nearest

ASSIGNORS = "kzconsumer.assignors"
SINKS = "kzconsumer.sinks"
COMMANDS = "kzconsumer.commands"

# Plugins of kzconsumer's own distributions, by the extra that installs them: an error about a missing one names it.
_EXTRAS = {
    ASSIGNORS: {"sticky": "sticky"},
    SINKS: {"parquet": "files", "segments": "files", "spark": "spark"},
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


def list_plugins(group: str) -> list[Plugin]:
    """The installed plugins of an entry-point group, sorted by name; a name may occur twice."""
    return sorted(_described(entry) for entry in metadata.entry_points(group=group))


def missing_commands(installed: Collection[str]) -> dict[str, list[str]]:
    """The commands of our other distributions that are not among those, by the extra that brings them."""
    found: dict[str, list[str]] = {}
    for name, extra in sorted(_EXTRAS[COMMANDS].items()):
        if name not in installed:
            found.setdefault(extra, []).append(name)
    return found


def load(group: str, name: str, beside: Collection[str] = ()) -> object:
    """The object behind a plugin's name; an error about an unknown one also suggests the names in `beside`.

    Raises UnknownPluginError if there is none of that name, PluginError if two distributions bring it, or if importing
    it fails.
    """
    found = list(metadata.entry_points(group=group, name=name))
    if not found:
        raise UnknownPluginError(_unknown_name(group, name, {*beside, *metadata.entry_points(group=group).names}))
    if len(found) > 1:
        rivals = " and ".join(sorted(f"{each.value} from {_described(each).distribution}" for each in found))
        raise PluginError(f'{kind(group)} "{name}" is in more than one distribution: {rivals}; uninstall one of them')
    try:
        return found[0].load()
    except Exception as error:  # an import may raise anything
        raise PluginError(f"{_described(found[0])} cannot be loaded: {type(error).__name__}: {error}") from error


def described(group: str, name: str) -> str:
    """The kind, name, object and distribution of an installed plugin, for errors about it."""
    return str(_described(next(iter(metadata.entry_points(group=group, name=name)))))


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
    close = nearest(name, known)
    hint = f'did you mean "{close}"? ' if close else ""
    installed = ", ".join(sorted(known)) or "none"
    return f'no {kind(group)} "{name}" is installed; {hint}installed are {installed}'


def kind(group: str) -> str:
    """The singular noun of an entry-point group: assignor, sink, command."""
    return group.rpartition(".")[2].removesuffix("s")
