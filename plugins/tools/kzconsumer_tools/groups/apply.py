"""Changes of a group that nobody is a member of: each transaction proves that nobody is, or is refused as a whole.

Owns no state. `cli` calls it, with changes that pure modules have worked out from what was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from kzconsumer.errors import ConnectionLost, GroupInUse, MultiFailed, NodeExists, NotDone, NotEmpty
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.round_trips import repeated, together
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.groups.members_present import proof
from kzconsumer_tools.node_changes import Change

# A transaction of this many changes, claim records with plans among them, is below ZooKeeper's 1 MB for a request.
CHANGES_PER_TRANSACTION = 500


async def carry_out(
    session: ZooKeeperSession,
    group: GroupPaths,
    units: Iterable[Sequence[Change]],
    *,
    topics: Iterable[str] = (),
    attended: bool = False,
) -> None:
    """Make the changes, in order; those of a unit in one transaction, few units in one as well.

    `topics` are those whose owners there must be none of, too. `attended`: members do not matter, for changes of nodes
    that are nobody's. Raises GroupInUse or NotDone when a transaction was refused; those before it were made.
    """
    parts = list(_parts(units))
    made = 0
    for part in parts:
        containers = {} if attended else await _containers(session, group, topics)
        changed = {change.path for change in part}
        proving = proof({path: there for path, there in containers.items() if path not in changed})
        operations = [*proving, *(done for change in part if (done := change.operation()) is not None)]
        progress = f"; {made} of {sum(map(len, parts))} nodes were changed before" if made else "; nothing was changed"
        try:
            await session.multi(operations)
        except MultiFailed as refused:
            if refused.index < len(proving) and isinstance(refused.error, (NotEmpty, NodeExists)):
                reason = f"{refused.error.path} is no longer empty: a member has joined{progress}"
                raise GroupInUse(reason) from refused
            raise NotDone(f"{refused.error.path} is not as it was read ({refused.error}){progress}") from refused
        except ConnectionLost as lost:
            if not await repeated(partial(_executed, session, part)):
                raise NotDone(f"the connection to ZooKeeper broke{progress}; try again ({lost})") from lost
        made += len(part)


def single(changes: Iterable[Change]) -> list[list[Change]]:
    """Each change a unit of its own."""
    return [[change] for change in changes]


async def make_parents(session: ZooKeeperSession, changes: Sequence[Change]) -> None:
    """What nodes that are made need above them, but for what is made with them."""
    made = {change.path for change in changes if change.seen is None and change.after is not None}
    for path in sorted({path.rpartition("/")[0] for path in made}.difference(made)):
        await session.ensure(path)


async def _containers(session: ZooKeeperSession, group: GroupPaths, topics: Iterable[str]) -> dict[str, bool]:
    """The nodes below which members' nodes would be, and whether each is there."""
    above = [group.root, group.ids, *(group.containers(topic)[0] for topic in sorted(set(topics)))]
    stats = await together([session.exists(path) for path in above])
    found = {path: stat is not None for path, stat in zip(above, stats, strict=True)}
    if not found.pop(group.root):
        return {}  # a transaction that makes the group itself, or is refused: no member can have been there before
    # A topic without a container has no owner, and gets none without a member in `ids`.
    return {path: there for path, there in found.items() if there or path == group.ids}


def _parts(units: Iterable[Sequence[Change]]) -> Iterator[list[Change]]:
    part: list[Change] = []
    for unit in units:
        if part and len(part) + len(unit) > CHANGES_PER_TRANSACTION:
            yield part
            part = []
        part.extend(unit)
    if part:
        yield part


async def _executed(session: ZooKeeperSession, part: Sequence[Change]) -> bool:
    """Whether the transaction whose reply was lost was made: all its nodes are as it leaves them."""
    await session.sync()
    nodes = await together([session.find(change.path) for change in part])
    found = [node.data if node is not None else None for node in nodes]
    return found == [change.after for change in part]
