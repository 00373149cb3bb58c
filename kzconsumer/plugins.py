"""Finding plugins: entry points of installed distributions, ours among them; no name is special where it is installed.

Owns no state: every call reads what is installed. `daemon` and `cli` call it. Errors name the plugin and the
distribution it came from, for that is what a person can do something about. It does not call what it loads.
"""

from __future__ import annotations

from importlib import metadata

import msgspec

from kzconsumer.errors import ConfigError, PluginError
from kzconsumer.settings.tables import nearest

ASSIGNORS = "kzconsumer.assignors"
SINKS = "kzconsumer.sinks"

# Plugins of ours that are distributions of their own: the names are in our documentation, whether installed or not.
_APART = {
    (SINKS, "parquet"): "./plugins/files",
    (SINKS, "segments"): "./plugins/files",
    (SINKS, "spark"): "./plugins/spark, which needs ./plugins/files",
    (ASSIGNORS, "sticky"): "./plugins/sticky",
}


class Plugin(msgspec.Struct, frozen=True, order=True):
    """One installed plugin: `value` is `module:attribute`, `distribution` the name and version that brought it."""

    group: str
    name: str
    value: str
    distribution: str

    def __str__(self) -> str:
        return f'{self.group} plugin "{self.name}" ({self.value}, from {self.distribution})'


def list_plugins(group: str) -> list[Plugin]:
    """What is installed under an entry-point group, sorted by name; a name may occur twice."""
    return sorted(_described(entry) for entry in metadata.entry_points(group=group))


def load(group: str, name: str) -> object:
    """The object behind a plugin's name.

    Raises PluginError when there is none of that name, when two distributions bring it, and when importing it fails.
    """
    found = list(metadata.entry_points(group=group, name=name))
    if not found:
        raise PluginError(_unknown(group, name))
    if len(found) > 1:
        rivals = " and ".join(sorted(f"{each.value} from {_described(each).distribution}" for each in found))
        raise PluginError(f'{group} plugin "{name}" is brought by more than one distribution: {rivals}')
    try:
        return found[0].load()
    except Exception as error:  # whatever an import runs into is the plugin's fault, and told as such
        raise PluginError(f"{_described(found[0])} cannot be loaded: {type(error).__name__}: {error}") from error


def load_chosen(group: str, name: str, where: str) -> object:
    """`load` for a name that stands in the settings at `where`: a fault is then one of the settings (ConfigError)."""
    try:
        return load(group, name)
    except PluginError as error:
        raise ConfigError([f"{where}: {error}"]) from error


def _described(entry: metadata.EntryPoint) -> Plugin:
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
    return Plugin(entry.group, entry.name, entry.value, distribution)


def _unknown(group: str, name: str) -> str:
    known = {plugin.name: plugin.distribution for plugin in list_plugins(group)}
    close = nearest(name, known)
    hint = f'did you mean "{close}"? ' if close else ""
    if (group, name) in _APART:
        hint = f"it is in {_APART[group, name]} (pip install, in kzconsumer's source folder); "
    listed = ", ".join(f"{each} (from {source})" for each, source in known.items())
    return f'no {group} plugin named "{name}" is installed; {hint}known are {listed or "none"}'
