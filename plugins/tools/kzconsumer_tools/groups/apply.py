"""Applying changes to a group without members: each transaction proves that there is none, or fails as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

from kzconsumer.errors import (
    ConnectionLostError,
    GroupInUseError,
    MultiFailedError,
    NodeExistsError,
    NotDoneError,
    NotEmptyError,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.round_trips import repeated, together
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.groups.members_present import proof
from kzconsumer_tools.node_changes import Change

# Even if all of them are claim records with plans, a transaction stays below ZooKeeper's limit of 1 MB.
CHANGES_PER_TRANSACTION = 500


async def apply_changes(
    session: ZooKeeperSession,
    group: GroupPaths,
    units: Iterable[Sequence[Change]],
    *,
    topics: Collection[str] = (),
    with_members: bool = False,
) -> None:
    """Apply the changes in order; the changes of a unit are in one transaction, which may have several units.

    `topics`: must have no owner nodes either. `with_members`: the group may have members, for nodes that no session
    holds, or of topics that nobody owns.

    Raises GroupInUseError or NotDoneError if a transaction was refused; those before it are done.
    """
    parts = list(_parts(units))
    made = 0
    for part in parts:
        containers = await _containers(session, group, topics, with_members=with_members)
        changed = {change.path for change in part}
        proving = proof({path: exists for path, exists in containers.items() if path not in changed})
        operations = [*proving, *(done for change in part if (done := change.operation()) is not None)]
        progress = f"; {made} of {sum(map(len, parts))} nodes were changed before" if made else "; nothing was changed"
        try:
            await session.multi(operations)
        except MultiFailedError as refused:
            if refused.index < len(proving) and isinstance(refused.error, (NotEmptyError, NodeExistsError)):
                reason = f"{refused.error.path} is no longer empty: a member has joined{progress}"
                raise GroupInUseError(reason) from refused
            raise NotDoneError(f"{refused.error.path} is not as it was read ({refused.error}){progress}") from refused
        except ConnectionLostError as lost:
            if not await repeated(partial(_executed, session, part)):
                raise NotDoneError(f"the connection to ZooKeeper broke{progress}; try again ({lost})") from lost
        made += len(part)


def single(changes: Iterable[Change]) -> list[list[Change]]:
    """Each change as a unit."""
    return [[change] for change in changes]


async def make_parents(session: ZooKeeperSession, changes: Sequence[Change]) -> None:
    """Create missing parents of created nodes, except those that are created with them."""
    made = {change.path for change in changes if change.seen is None and change.after is not None}
    for path in sorted({path.rpartition("/")[0] for path in made}.difference(made)):
        await session.ensure(path)


async def _containers(
    session: ZooKeeperSession, group: GroupPaths, topics: Collection[str], *, with_members: bool
) -> dict[str, bool]:
    """The parents of owner nodes, and unless `with_members` of registrations -> whether each exists."""
    if with_members and not topics:
        return {}
    above = [group.root, group.ids, *(group.containers(topic)[0] for topic in sorted(set(topics)))]
    stats = await together([session.exists(path) for path in above])
    found = {path: stat is not None for path, stat in zip(above, stats, strict=True)}
    if not found.pop(group.root):
        return {}  # the transaction creates the group itself, or fails: there cannot have been a member before
    # A topic without a container has no owner, and gets none without a member in `ids`.
    if with_members:
        del found[group.ids]
    return {path: exists for path, exists in found.items() if exists or path == group.ids}


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
    """Whether a transaction without a reply was executed: all its nodes have the new content."""
    await session.sync()
    nodes = await together([session.find(change.path) for change in part])
    found = [node.data if node is not None else None for node in nodes]
    return found == [change.after for change in part]
