"""No owner node is left behind: one that a member holds without a claim soon goes. Checked every second.

Of members that look often, neither is a claim whose owner node has gone without an event.

`Strays` owns since when each of them stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kzconsumer.group.claim_and_release import LEAST_FOR_LISTENER
from kzconsumer.model import TopicPartition
from kzconsumer.registry.paths import BROKER_IDS
from tests.support.members import sessions_of
from tests.support.simulated.member import Member
from tests.support.simulated.network import SLOW
from tests.support.simulated.promises import REVOKE_DEADLINE, Promises

EVERY = 1.0
PATIENCE = REVOKE_DEADLINE + LEAST_FOR_LISTENER + 8.0
"""Seconds that a release may take: it waits for work in hand, then for the listener, and is repeated if it fails."""


class Stray(NamedTuple):
    what: str
    session: int
    partition: TopicPartition
    claim: int
    """The next one is another."""


class Strays:
    """See the module. Members that look once an hour find nothing by themselves: the failure has to lead to it."""

    def __init__(self, promises: Promises, hangs: Callable[[], bool], *, looks_often: bool) -> None:
        """`hangs`: the broker that has the group's offsets may: a claim waits for its offset, and is repeated later."""
        self._promises = promises
        self._hangs = hangs
        self._looks_often = looks_often
        self._since: dict[Stray, float] = {}
        promises.world.after(EVERY, self._look)

    def _look(self) -> None:
        world = self._promises.world
        standing = set() if self._excused() else {each for m in self._promises.members for each in self._of(m)}
        self._since = {each: self._since.get(each, world.now) for each in standing}
        network = self._promises.network
        for stray, since in self._since.items():
            process = network.processes[stray.session]
            # Over a slow line a look, of some requests one after the other, takes ten seconds.
            patience = PATIENCE * (3 if network.latency.get(process) == SLOW else 1)
            if world.now - since > patience:
                self._promises.violated(f"{process.name} has had {stray.what} of {stray.partition} for {patience} s")
        world.after(EVERY, self._look)

    def _of(self, member: Member) -> Iterator[Stray]:
        world, session = self._promises.world, member.session
        if not member.active or member.troubled > world.now or member.connector is None or not session:
            return
        if sessions_of(member.connector).member is None:
            return
        held, owners = member.held, self._promises.owners
        for partition, holder in owners.items():
            if holder == session and partition not in held:
                yield Stray("an owner node without a claim", session, partition, self._promises.claim_of(partition))
        for partition in held if self._looks_often else ():
            if owners.get(partition) != session:
                yield Stray("a claim without an owner node", session, partition, 0)

    def _excused(self) -> bool:
        """Members wait, whatever they have, while no broker is registered or a registration is unreadable.

        While ZooKeeper postpones most requests, those that claim or release a share may need longer, too.
        """
        ensemble, paths = self._promises.ensemble, self._promises.paths
        nodes = ensemble.tree.nodes
        if self._hangs():
            return True
        return ensemble.throttled > 0.5 or not nodes[BROKER_IDS].children or paths.member("unreadable") in nodes
