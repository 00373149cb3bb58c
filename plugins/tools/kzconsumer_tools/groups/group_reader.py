"""Reads groups from outside, without joining: all nodes, valid or not, and topics; applies changes to idle groups."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from kzconsumer.brokers.protocol.cluster_state import TopicMetadata
from kzconsumer.errors import (
    ConnectionLostError,
    GroupInUseError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotDoneError,
    NotEmptyError,
    NotFoundError,
)
from kzconsumer.registry import paths
from kzconsumer.registry.broker_topics import ClusterMetadata, TopicIdentities, existing
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.settings.table_reader import nearest
from kzconsumer.zookeeper.operations import REQUEST_BYTES, AclEntry, Node, Operation, size_of, transactions
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer.zookeeper.watches import repeated, together
from kzconsumer_tools.groups.group_nodes import GroupNodes, KnownTopic, proof, topic_of_node, topics_in
from kzconsumer_tools.node_changes import BROKERS, ChangeProgress, NodeChange

# The cluster's topics come from its nodes, or from Metadata requests if it has left ZooKeeper. Nothing is changed.


class NodeReads(Protocol):
    """What a session is needed for here; `children` may return none for a node that does not exist."""

    async def find(self, path: str) -> Node | None: ...

    async def children(self, path: str) -> list[str]: ...


class Topics(Protocol):
    """For one reading of one group or several. `from_brokers`: they come from Metadata requests."""

    from_brokers: bool

    def described(self) -> object:
        """What brokers described: equal in two readings between which no topic has changed. None: nodes are read."""
        ...

    async def known(self) -> bool:
        """Whether anything says which topics there are."""
        ...

    async def names(self) -> list[str]:
        """All topics, sorted."""
        ...

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        """Those that exist, as the group knows them; None: those from brokers have no incarnations."""
        ...


class NodeTopicsRead:
    from_brokers = False

    def __init__(self, reads: NodeReads) -> None:
        self._reads = reads

    def described(self) -> None:
        return None

    async def known(self) -> bool:
        return bool(await self.names()) or await self._reads.find(paths.BROKER_TOPICS) is not None

    async def names(self) -> list[str]:
        try:
            return await self._reads.children(paths.BROKER_TOPICS)
        except NoNodeError:
            return []

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        nodes = await together([self._reads.find(paths.topic(name)) for name in names])
        return {name: topic_of_node(node) for name, node in zip(names, nodes, strict=True) if node is not None}


class BrokerTopicsRead:
    from_brokers = True

    def __init__(
        self,
        metadata: ClusterMetadata,
        described: dict[str, TopicMetadata],
        identities: Callable[[str], TopicIdentities],
    ) -> None:
        self._metadata = metadata
        self._described = described
        self._missing: set[str] = set()
        self._hidden: set[str] = set()
        self._identities = identities
        self._first = dict(described)

    def described(self) -> dict[str, TopicMetadata]:
        return self._first

    async def known(self) -> bool:
        return True

    async def names(self) -> list[str]:
        return sorted(self._described)

    async def found(self, names: Collection[str], group: str | None) -> dict[str, KnownTopic]:
        """Topics that the first broker does not know are looked up with the others, once."""
        unknown = set(names).difference(self._described, self._missing)
        self._described |= await self._metadata.described(sorted(unknown))
        missing = unknown.difference(self._described)
        self._hidden |= await self._metadata.hidden(sorted(missing))
        self._missing |= missing  # not sooner: many groups are read at once, and what is missing is not asked for again
        there = [name for name in names if name in self._described]
        incarnations: list[int | None] = [None] * len(there)
        if group is not None:
            known = self._identities(group)
            incarnations = await together([known.known(name, self._described[name].id) for name in there])
        hidden = {name: KnownTopic((), None, hidden=True) for name in self._hidden.intersection(names)}
        return hidden | {
            name: KnownTopic(
                tuple(sorted(self._described[name].partitions)),
                incarnation,
                id=self._described[name].id,
                identified=group is not None,
            )
            for name, incarnation in zip(there, incarnations, strict=True)
        }


async def topics_now(
    reads: NodeReads, metadata: ClusterMetadata, identities: Callable[[str], TopicIdentities]
) -> Topics:
    """The topics as they are now. `identities`: which of those from brokers a group has consumed.

    Raises BrokersUnreachableError if no broker answers.
    """
    if not await metadata.asks_brokers():
        return NodeTopicsRead(reads)
    return BrokerTopicsRead(metadata, existing(await metadata.ask(None)), identities)


# If members join or leave while the nodes are read, owners look unregistered: the nodes are read again.
_READINGS = 5

NO_CLUSTER: Final = f"no Kafka cluster is registered there (neither {BROKERS} nor {paths.CONSUMERS} exists)"


async def require_group(session: ZooKeeperSession, connect: str, group: str) -> None:
    """Raises NotFoundError if the group, or the cluster, does not exist."""
    groups = await group_names(session, connect)
    if group not in groups:
        meant = nearest(group, groups)
        hint = f"did you mean {meant}?" if meant else "`kzconsumer groups list` lists the groups"
        raise NotFoundError(f"{connect}: there is no group {group}; {hint}")


async def nodes_of(session: NodeReads, topics: Topics, group: str) -> GroupNodes:
    """All nodes of the group, and its topics; no nodes if it does not exist."""
    for _ in range(_READINGS):
        nodes = await _nodes(session, topics, group)
        if await _children(session, GroupPaths(group).ids) == list(nodes.registrations):
            break
    return nodes


async def tree_of(session: ZooKeeperSession, path: str) -> dict[str, Node]:
    """Path -> node, of that node and everything below; empty if it does not exist."""
    found = await _found(session, [path])
    below = await together([tree_of(session, f"{path}/{name}") for name in await _children(session, path)])
    for tree in below:
        found |= tree
    return found


async def group_names(session: ZooKeeperSession, connect: str) -> list[str]:
    """All groups, sorted. Raises NotFoundError if there is no cluster."""
    try:
        return await session.children(paths.CONSUMERS)
    except NoNodeError:
        if await session.exists(BROKERS) is None:
            raise NotFoundError(f"{connect}: {NO_CLUSTER}") from None
        return []


async def _nodes(session: NodeReads, topics: Topics, group: str) -> GroupNodes:
    at = GroupPaths(group)
    nodes = GroupNodes(
        group=group,
        registrations=await _registrations(session, at),
        owners=await _found(session, await _leaves(session, at.owners)),
        offsets=await _found(session, await _leaves(session, at.offsets)),
        claims=await _found(session, await _leaves(session, at.claims)),
        all_topics=tuple(await topics.names()),
        topics={},
        run=await session.find(at.run),
        foreign=tuple(name for name in await _children(session, at.root) if f"{at.root}/{name}" not in at.known),
        from_brokers=topics.from_brokers,
        topics_known=await topics.known(),
    )
    return msgspec.structs.replace(nodes, topics=await topics.found(sorted(topics_in(nodes)), group))


async def _registrations(session: NodeReads, group: GroupPaths) -> dict[str, Node]:
    nodes = await _found(session, map(group.member, await _children(session, group.ids)))
    return {path.rpartition("/")[2]: node for path, node in nodes.items()}


async def _leaves(session: NodeReads, root: str) -> list[str]:
    """The existing paths `<root>/<topic>/<partition>`."""
    topics = [f"{root}/{topic}" for topic in await _children(session, root)]
    names = await together([_children(session, topic) for topic in topics])
    return [f"{topic}/{name}" for topic, leaves in zip(topics, names, strict=True) for name in leaves]


async def _found(session: NodeReads, wanted: Iterable[str]) -> dict[str, Node]:
    """Path -> node, of those that exist."""
    asked = list(wanted)
    nodes = await together([session.find(path) for path in asked])
    return {path: node for path, node in zip(asked, nodes, strict=True) if node is not None}


async def _children(session: NodeReads, path: str) -> list[str]:
    """The children, sorted; empty if the node does not exist."""
    try:
        return await session.children(path)
    except NoNodeError:
        return []


# Changes of a group without members: each transaction proves that there is none, or fails as a whole.

# In one transaction, if that many fit into a request beside the proof.
UNITS_PER_TRANSACTION = 500


async def apply_changes(
    session: ZooKeeperSession,
    group: GroupPaths,
    units: Iterable[Sequence[NodeChange]],
    progress: ChangeProgress,
    *,
    topics: Collection[str] = (),
    with_members: bool = False,
) -> None:
    """Apply the changes in order; the changes of a unit are in one transaction, which may have several units.

    `topics`: must have no owner nodes either. `with_members`: the group may have members, for nodes that no session
    holds, or of topics that nobody owns.

    `progress` counts the units. Raises GroupInUseError or NotDoneError if a transaction was refused; those before it
    are done.
    """
    # Tools change a group only while it has no members, and a member may join between the look and the change. So each
    # transaction deletes and creates again `ids` and the owner containers of the topics, which a server refuses if a
    # node has children. Each node is changed at the version that was read. Claim records are changed, too, so that the
    # fence of an earlier owner, whose request may still be on its way, no longer holds.
    look = partial(_containers, session, group, topics, with_members=with_members)
    room = REQUEST_BYTES - size_of(proof(await repeated(look)))
    divided = transactions([(unit, _operations(unit)) for unit in units], UNITS_PER_TRANSACTION, room)
    for units_of_part in divided:
        part = [change for unit, _ in units_of_part for change in unit]
        # They are read again: an ACL that an operator sets between this and the transaction is lost.
        containers = await repeated(look)
        changed = {change.path for change in part}
        proving = proof({path: acl for path, acl in containers.items() if path not in changed})
        operations = [*proving, *_operations(part)]
        with progress.request(len(units_of_part)):
            try:
                await session.multi(operations)
            except MultiFailedError as refused:
                if refused.index < len(proving) and isinstance(refused.error, (NotEmptyError, NodeExistsError)):
                    reason = f"{refused.error.path} is no longer empty: a member has joined"
                    raise GroupInUseError(reason) from refused
                raise NotDoneError(f"{refused.error.path} is not as it was read ({refused.error})") from refused
            except ConnectionLostError as lost:
                if not await repeated(partial(_executed, session, part)):
                    raise NotDoneError(f"the connection to ZooKeeper broke; try again ({lost})") from lost


def single(changes: Iterable[NodeChange]) -> list[list[NodeChange]]:
    """Each change as a unit."""
    return [[change] for change in changes]


async def make_parents(session: ZooKeeperSession, changes: Sequence[NodeChange]) -> None:
    """Create missing parents of created nodes, except those that are created with them."""
    made = {change.path for change in changes if change.seen is None and change.after is not None}
    for path in sorted({path.rpartition("/")[0] for path in made}.difference(made)):
        await session.ensure(path)


async def _containers(
    session: ZooKeeperSession, group: GroupPaths, topics: Collection[str], *, with_members: bool
) -> dict[str, tuple[AclEntry, ...] | None]:
    """The parents of owner nodes, and unless `with_members` of registrations -> the ACL of each, None if it is missing.

    Raises NotPermittedError if an ACL cannot be read.
    """
    if await session.exists(group.root) is None:
        return {}  # the transaction creates the group itself, or fails: there cannot have been a member before
    above = [*([] if with_members else [group.ids]), *(group.containers(topic)[0] for topic in sorted(set(topics)))]
    acls = await together([_acl(session, path) for path in above])
    # A topic without a container has no owner, and gets none without a member in `ids`.
    return {path: acl for path, acl in zip(above, acls, strict=True) if acl is not None or path == group.ids}


async def _acl(session: ZooKeeperSession, path: str) -> tuple[AclEntry, ...] | None:
    try:
        return await session.acl(path)
    except NoNodeError:
        return None


def _operations(changes: Iterable[NodeChange]) -> list[Operation]:
    return [done for change in changes if (done := change.operation()) is not None]


async def _executed(session: ZooKeeperSession, part: Sequence[NodeChange]) -> bool:
    """Whether a transaction without a reply was executed: all its nodes have been written, with the new content.

    An offset of an earlier topic is written again with the same content: it counts for the present one then.
    """
    await session.sync()
    nodes = await together([session.find(change.path) for change in part])
    return all(
        (node.data if node is not None else None) == change.after
        and not (node is not None and change.seen is not None and node.stat.version == change.seen.stat.version)
        for node, change in zip(nodes, part, strict=True)
    )
