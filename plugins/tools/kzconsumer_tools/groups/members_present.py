"""Who is there, before an operator's tool changes what only a group without members may have changed.

Pure. `group/unattended` asks it of what was read, and proves the same in each of its transactions.
"""

from __future__ import annotations

from collections.abc import Mapping

from kzconsumer.errors import GroupInUse
from kzconsumer.zookeeper.operations import Create, Delete, Operation
from kzconsumer_tools.groups.nodes import GroupNodes, owner_of

_SHOWN = 3


def attending(nodes: GroupNodes) -> str | None:
    """Why the group must not be touched, as the rest of a sentence about it; None when nobody is there.

    An owner node counts without a registration too: its session is alive, and may still store offsets. One that no
    session holds stops every member, and is up to `groups clean`.
    """
    if nodes.registrations:
        names = sorted(nodes.registrations)
        return f"has {_listed('member', names)}: stop {'it' if len(names) == 1 else 'them'} first"
    owners = sorted({owner_of(node) for node in nodes.owners.values() if node.stat.ephemeral_owner})
    if owners:
        return f"has owner nodes of {', '.join(owners[:_SHOWN])}, not registered but alive: the session has to expire"
    if nodes.owners:
        return f"has owner nodes that no session holds ({min(nodes.owners)}): `kzconsumer groups clean` removes them"
    return None


def refuse_attended(nodes: GroupNodes) -> None:
    """Raises GroupInUse while anybody is there."""
    if (reason := attending(nodes)) is not None:
        raise GroupInUse(f"group {nodes.group} {reason}; nothing was changed")


def proof(containers: Mapping[str, bool]) -> list[Operation]:
    """Operations that change nothing but are refused, with all the others, where a node has children or is there anew.

    `containers` says of `ids` and of topics' owner containers whether they were there. A server deletes no node that
    has children, and no other operation asks for children: their coming and going moves no version to be checked.
    """
    operations: list[Operation] = []
    for path, there in containers.items():
        make, remove = Create(path, b""), Delete(path, -1)
        operations += [remove, make] if there else [make, remove]
    return operations


def _listed(what: str, names: list[str]) -> str:
    more = len(names) - _SHOWN
    shown = ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({shown})"
