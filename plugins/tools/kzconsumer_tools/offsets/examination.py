"""One look at a group for `describe` and `doctor`: its nodes, its effective offsets, and the logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from kzconsumer.assignors.interface import Assignor
from kzconsumer.errors import PluginError
from kzconsumer.offsets.authority import Storage
from kzconsumer.plugins import ASSIGNORS, list_plugins, load
from kzconsumer_tools.groups.cluster_access import ClusterAccess
from kzconsumer_tools.groups.diagnosis import Symptom, examine, not_asked
from kzconsumer_tools.groups.lag import partitions_of
from kzconsumer_tools.offsets.view import GroupView, read_view


class Look(NamedTuple):
    """`not_asked`: what could not be examined, a sentence each."""

    view: GroupView
    symptoms: list[Symptom]
    not_asked: list[str]


async def look(access: ClusterAccess, group: str, storage: Storage) -> Look:
    """Raises CoordinatorError if the brokers store offsets of the group and do not return them."""
    view = await read_view(access, await access.nodes(group), storage)
    logs = await access.known_logs([each for each in partitions_of(view.facts) if each in view.facts.existing])
    return Look(view, examine(view.nodes, logs, _assignors(), view.facts), not_asked(view.nodes, logs))


def _assignors() -> Mapping[str, Assignor]:
    """All installed assignors that can be loaded; `kzconsumer plugins` shows the others."""
    found: dict[str, Assignor] = {}
    for plugin in list_plugins(ASSIGNORS):
        try:
            found[plugin.name] = cast("Assignor", load(ASSIGNORS, plugin.name))
        except PluginError:
            continue
    return found
