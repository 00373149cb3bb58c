"""What a simulated group is made of: the settings of its members, its brokers and its servers' lag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import kzconsumer
from kzconsumer.fetcher.fetcher_manager import SESSION_PARTITIONS
from tests.support.simulated.member import GROUP
from tests.support.simulated.network import CONNECT

SESSION_TIMEOUT = 6.0
COMMIT_INTERVAL = 1.0
STOP_DEADLINE = 10.0
MAX_WAIT, REQUEST_TIMEOUT = "1s", "5s"


@dataclass(frozen=True)
class Scene:
    """What a group is made of."""

    assignor: str = "range"
    ownership: str = "keep"
    reset: str = "smallest"
    storage: Literal["zookeeper", "kafka", "both"] = "zookeeper"
    """Where offsets are stored; both: with the brokers, too."""
    lag: tuple[float, float] = (0.0005, 0.01)
    """Seconds until a ZooKeeper server has what was decided."""
    looks: str = "1h"
    """The interval of reconciles."""
    unowned_alarm: str = "1h"
    brokers: int = 1
    record_bytes: int = 1
    """Of each value of a burst."""
    quiet: bool = False
    """Every second partition receives bursts only. Between them, a member commits nothing there and learns nothing."""
    rack: str = ""
    """Where the members are."""
    fetch: tuple[tuple[str, str], ...] = ()
    """More of the members' `[fetch]`."""
    decoding: float = 0.0
    """Seconds at most for which a thread decodes a response. All that are not tiny go to one then."""
    session_partitions: int = SESSION_PARTITIONS
    """Of one fetch session at most."""
    nodes_at_once: int | None = None
    """Nodes that a look reads at most; None: as many as the product has."""
    most_unacknowledged: int = 100_000
    """Records that a stream hands out at most before they are acknowledged."""
    rejected: tuple[tuple[str, str], ...] = ()
    """The members' `[rejected]`."""


_STORAGES: Final[Mapping[str, Mapping[str, Any]]] = {
    "zookeeper": {},
    "kafka": {"storage": "kafka", "dual_commit": False},
    "both": {"storage": "kafka", "dual_commit": True},
}


@cache
def settings_of(scene: Scene) -> kzconsumer.Settings:
    """The settings of its members, but for their names."""
    return kzconsumer.Settings.from_dict(
        {
            "zookeeper": {"connect": CONNECT, "session_timeout": f"{SESSION_TIMEOUT}s"},
            "group": {
                "id": GROUP,
                "assignor": scene.assignor,
                "ownership": scene.ownership,
                "reconcile_interval": scene.looks,
                "unowned_alarm": scene.unowned_alarm,
            },
            "brokers": {"client_rack": scene.rack} if scene.rack else {},
            "fetch": {"max_wait": MAX_WAIT, "request_timeout": REQUEST_TIMEOUT, **dict(scene.fetch)},
            "offsets": {
                "commit_interval": f"{COMMIT_INTERVAL}s",
                "reset": scene.reset,
                "most_unacknowledged": scene.most_unacknowledged,
                **_STORAGES[scene.storage],
            },
            "rejected": dict(scene.rejected),
            "stop": {"deadline": f"{STOP_DEADLINE}s"},
        }
    )
