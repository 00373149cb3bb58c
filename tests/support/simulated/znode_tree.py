"""ZooKeeper's tree of nodes: operations applied one at a time, undone when their transaction fails, and their events.

An ensemble holds one authoritative tree and one for each server, to which the same transactions are applied later.
Compared with a real server by tests/core/servers/test_simulated_zookeeper.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kzconsumer.zookeeper.operations import AclEntry, Check, Create, Delete, Operation, SetData, Stat
from kzconsumer.zookeeper.watch_table import EventType

NO_NODE, NO_AUTH, BAD_VERSION = -101, -102, -103
NO_CHILDREN_FOR_EPHEMERALS, NODE_EXISTS, NOT_EMPTY = -108, -110, -111

Event = tuple[EventType, str]


class Refused(Exception):
    """The server's error code."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(str(code))


@dataclass
class Transaction:
    """What an ensemble has decided, and each of its servers applies later."""

    zxid: int
    session: int
    operations: list[Operation]
    time_ms: int
    closes: bool = False


class Znode:
    """One node. `acl`: empty if everybody may do all; `Tree.closed` says what is refused."""

    __slots__ = ("acl", "children", "ctime", "cversion", "czxid", "data", "mtime", "mzxid", "owner", "pzxid", "version")

    def __init__(self, data: bytes, owner: int, zxid: int, time_ms: int, acl: tuple[AclEntry, ...] = ()) -> None:
        self.data = data
        self.acl = acl
        self.owner = owner
        self.czxid = self.mzxid = self.pzxid = zxid
        self.ctime = self.mtime = time_ms
        self.version = self.cversion = 0
        self.children: dict[str, None] = {}

    def stat(self) -> Stat:
        return Stat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            version=self.version,
            cversion=self.cversion,
            ephemeral_owner=self.owner,
            num_children=len(self.children),
            ctime=self.ctime,
            mtime=self.mtime,
        )


class Tree:
    """`events` collects the events for watches, until the caller takes them.

    `closed`: by path, what an ACL refuses to every session but 0: "r" (to read, to list children, to check), "w" (to
    set), "c" and "d" (to create and to delete children).
    """

    def __init__(self, closed: Mapping[str, str] | None = None) -> None:
        self.closed = {} if closed is None else closed
        self.nodes = {"/": Znode(b"", 0, 0, 0)}
        self.zxid = 0
        self.events: list[Event] = []

    def node(self, path: str) -> Znode:
        if (node := self.nodes.get(path)) is None:
            raise Refused(NO_NODE)
        return node

    def permit(self, session: int, path: str, right: str) -> None:
        if session and path in self.nodes and right in self.closed.get(path, ""):
            raise Refused(NO_AUTH)

    def data(self, path: str) -> bytes | None:
        """The content, or None without a node."""
        node = self.nodes.get(path)
        return node.data if node is not None else None

    def ephemerals(self, session: int) -> list[str]:
        return [path for path, node in self.nodes.items() if node.owner == session]

    def transact(
        self, operations: list[Operation], session: int, zxid: int, time_ms: int
    ) -> tuple[list[Stat | None], int, int]:
        """All operations or none: their stats, and the index and code of the refused one (-1 and 0: none)."""
        stats: list[Stat | None] = []
        undo: list[Callable[[], None]] = []
        output = len(self.events)
        self.zxid = zxid
        for index, operation in enumerate(operations):
            try:
                stats.append(self._apply(operation, session, zxid, time_ms, undo))
            except Refused as refused:
                for step in reversed(undo):
                    step()
                del self.events[output:]
                return [], index, refused.code
        return stats, -1, 0

    def _apply(
        self, operation: Operation, session: int, zxid: int, time_ms: int, undo: list[Callable[[], None]]
    ) -> Stat | None:
        match operation:
            case Create(path, data, ephemeral, acl=acl):
                self.permit(session, _split(path)[0], "c")
                self._create(path, Znode(data, session if ephemeral else 0, zxid, time_ms, acl), zxid, undo)
                return None
            case SetData(path, data, version):
                self.permit(session, path, "w")
                node = self._versioned(path, version)
                old = node.data, node.mzxid, node.mtime, node.version

                def restore() -> None:
                    node.data, node.mzxid, node.mtime, node.version = old

                undo.append(restore)
                node.data, node.mzxid, node.mtime, node.version = data, zxid, time_ms, node.version + 1
                self.events.append((EventType.DATA_CHANGED, path))
                return node.stat()
            case Delete(path, version):
                self.permit(session, _split(path)[0], "d")
                self._delete(path, self._versioned(path, version), zxid, undo)
                return None
            case Check(path, version):
                self.permit(session, path, "r")
                self._versioned(path, version)
                return None

    def _versioned(self, path: str, version: int) -> Znode:
        node = self.node(path)
        if version not in (-1, node.version):
            raise Refused(BAD_VERSION)
        return node

    def _create(self, path: str, node: Znode, zxid: int, undo: list[Callable[[], None]]) -> None:
        above, name = _split(path)
        parent = self.node(above)
        if path in self.nodes:
            raise Refused(NODE_EXISTS)
        if parent.owner:
            raise Refused(NO_CHILDREN_FOR_EPHEMERALS)
        self._children_change(parent, zxid, undo)
        self.nodes[path] = node
        parent.children[name] = None

        def remove() -> None:
            del self.nodes[path]
            del parent.children[name]

        undo.append(remove)
        self.events += [(EventType.CREATED, path), (EventType.CHILDREN_CHANGED, above)]

    def _delete(self, path: str, node: Znode, zxid: int, undo: list[Callable[[], None]]) -> None:
        if node.children:
            raise Refused(NOT_EMPTY)
        above, name = _split(path)
        parent = self.node(above)
        self._children_change(parent, zxid, undo)
        del self.nodes[path]
        del parent.children[name]

        def restore() -> None:
            self.nodes[path] = node
            parent.children[name] = None

        undo.append(restore)
        self.events += [(EventType.DELETED, path), (EventType.CHILDREN_CHANGED, above)]

    @staticmethod
    def _children_change(parent: Znode, zxid: int, undo: list[Callable[[], None]]) -> None:
        old = parent.cversion, parent.pzxid

        def restore() -> None:
            parent.cversion, parent.pzxid = old

        undo.append(restore)
        parent.cversion, parent.pzxid = parent.cversion + 1, zxid


def _split(path: str) -> tuple[str, str]:
    above, _, name = path.rpartition("/")
    return above or "/", name


def written_below(path: str | None, operations: Sequence[Operation]) -> int | None:
    """The index of the first operation that creates or sets a node below it."""
    writes = (i for i, each in enumerate(operations) if isinstance(each, Create | SetData) and path is not None)
    return next((i for i in writes if operations[i].path.startswith(path or "")), None)


def shown(operation: Operation, root: str) -> str:
    """One operation of a transaction in a trace, its path below `root`."""
    path = operation.path.removeprefix(root)
    match operation:
        case Check(_, version):
            return f"({path} v{version})"
        case Delete():
            return f"-{path}"
        case SetData(_, data, version):
            return f"{path}={data[:20]!r} v{version}"
        case Create(_, data):
            return f"+{path}={data[:20]!r}"
