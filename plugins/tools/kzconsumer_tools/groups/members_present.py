"""Whether a group has members: checked before an operator changes what only a group without members may have changed.

`groups.apply` proves the same in each of its transactions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kzconsumer.errors import GroupInUseError
from kzconsumer.figures import plural, some
from kzconsumer.zookeeper.operations import Create, Delete, Operation
from kzconsumer_tools.groups.nodes import GroupNodes, owner_of

_SHOWN = 3


def members_present(nodes: GroupNodes) -> str | None:
    """Why the group must not be changed, as the rest of a sentence about it; None if it has no members.

    An ephemeral owner node counts even without a registration: its session may still store offsets. A persistent owner
    node blocks every member; `groups clean` removes it.
    """
    if nodes.registrations:
        return f"has {listed(nodes.registrations)}"
    owners = sorted({owner_of(node) for node in nodes.owners.values() if node.stat.ephemeral_owner})
    if owners:
        return f"has owner nodes of {', '.join(owners[:_SHOWN])}, not registered but alive: the session has to expire"
    if nodes.owners:
        return f"has owner nodes that no session holds ({min(nodes.owners)}): `kzconsumer groups clean` removes them"
    return None


def listed(members: Collection[str]) -> str:
    """The number of members, some of their ids, and what to do about them; there is at least one."""
    names = sorted(members)
    them = "them" if names[1:] else "it"
    return f"{plural(len(names), 'member')} ({some(names, _SHOWN)}): stop {them} first"


def require_no_members(nodes: GroupNodes) -> None:
    """Raises GroupInUseError if the group has members."""
    if (reason := members_present(nodes)) is not None:
        raise GroupInUseError(f"group {nodes.group} {reason}; nothing was changed")


def proof(containers: Mapping[str, bool]) -> list[Operation]:
    """Operations that change nothing, but make a transaction fail if a node has children or was created meanwhile.

    `containers`: `ids` and topics' owner containers -> whether they existed. A server deletes no node that has
    children, and no other operation depends on them: creating or deleting children does not change a node's version.
    """
    operations: list[Operation] = []
    for path, exists in containers.items():
        make, remove = Create(path, b""), Delete(path, -1)
        operations += [remove, make] if exists else [make, remove]
    return operations
