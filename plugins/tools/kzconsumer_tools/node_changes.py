"""Changes of single nodes, and files of nodes that undo them; how far changes are; paths that only the tools use.

A file has a JSON object on each line: `path`, and the content as `data` or, if it is not text, as `base64`; `data` null
stands for no node. A stored offset may have `topic` and `leader_epoch` as well (`stored_offsets.OffsetOrigin`).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from kzconsumer.display import plural
from kzconsumer.errors import GroupInUseError, KzConsumerError, MultiFailedError, NotDoneError, leaves
from kzconsumer.model import TopicPartition
from kzconsumer.registry.group_records import decode_topic_record, last_incarnation
from kzconsumer.registry.paths import is_number, topic, topic_of
from kzconsumer.zookeeper.operations import Create, Delete, Node, SetData

_TOPIC_RECORD = re.compile(r"/consumers/[^/]+/topics/[^/]+")


class NodeChange(msgspec.Struct, frozen=True):
    """One persistent node: `seen` as it was read, `after` its new content; None for no node."""

    path: str
    seen: Node | None
    after: bytes | None

    @property
    def before(self) -> bytes | None:
        return self.seen.data if self.seen is not None else None

    def operation(self) -> Create | SetData | Delete | None:
        """Fails on the server if the node is no longer as it was read; None if there is nothing to do."""
        if self.seen is None:
            return None if self.after is None else Create(self.path, self.after)
        if self.after is None:
            return Delete(self.path, self.seen.stat.version)
        return SetData(self.path, self.after, self.seen.stat.version)


class ChangeProgress:
    """How far the changes of a command are. An error that leaves the block says it too, once they have begun.

    The block has to be around the cluster's session: only at the end of that a limit of time becomes an error.
    """

    def __init__(self, what: str, done: str = "changed") -> None:
        """`what` is `done`, such as nodes that are removed."""
        self._what = what
        self._done = done
        self._undo: Path | None = None
        self._all = self._sent = self._made = 0
        self.finished: list[str] = []
        """What is done as a whole."""

    def begin(self, number: int, undo: Path | None = None) -> None:
        """From now on `number` of them are changed. `undo` is the undo file."""
        self._all, self._undo = number, undo

    @contextmanager
    def request(self, number: int) -> Iterator[None]:
        """A request that changes `number` of them: all, or none if it is refused."""
        self._sent += number
        try:
            yield
        except (MultiFailedError, GroupInUseError, NotDoneError):
            self._sent -= number
            raise
        self._made += number

    def refused(self, number: int) -> None:
        """Of a request that was executed, so many were not changed."""
        self._sent -= number
        self._made -= number

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        found = list(leaves(error)) if error is not None else []
        if not self._all or not found or not all(isinstance(each, KzConsumerError) for each in found):
            return
        # What reads the cluster, before and after changes, says that it has changed nothing.
        reasons = [str(each).removesuffix(f"; {_NOTHING}") for each in found]
        raise NotDoneError("; ".join([*reasons, *self._known()])) from error

    def _known(self) -> Iterator[str]:
        if not self._sent:
            yield _NOTHING
            return
        be, unknown = ("was" if self._made == 1 else "were"), self._sent - self._made
        parts = [f"{self._made} of {plural(self._all, self._what)} {be} {self._done}"] if self._made else []
        parts += [f"{plural(unknown, self._what)} may have been {self._done}"] if unknown else []
        whole = f" (all of {', '.join(self.finished)})" if self.finished and self._made < self._all else ""
        yield ", ".join(parts) + whole
        if self._undo is not None:
            yield f"the undo file is {self._undo}"


_NOTHING: Final = "nothing was changed"


class SavedNode(msgspec.Struct, frozen=True):
    """A node of a file."""

    path: str
    data: bytes | None
    topic: str = ""
    leader_epoch: int = -1


class _SavedLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    path: str
    data: str | msgspec.UnsetType | None = msgspec.UNSET
    base64: str | msgspec.UnsetType = msgspec.UNSET
    topic: str = ""
    leader_epoch: int = -1


def kept_content(path: str, node: Node) -> bytes:
    """The node's content, as another node of that path can have it.

    The record of a topic may take the topic's incarnation from the transaction that wrote it.
    """
    if not _TOPIC_RECORD.fullmatch(path):
        return node.data
    try:
        record, incarnation = decode_topic_record(node.data), last_incarnation(node)
    except ValueError:
        return node.data
    return msgspec.json.encode(msgspec.structs.replace(record, incarnation=f"{incarnation:#x}"))


def write_nodes(nodes: Iterable[SavedNode]) -> bytes:
    return b"".join(msgspec.json.encode(_line(node)) + b"\n" for node in nodes)


def read_nodes(content: bytes) -> list[SavedNode]:
    """Raises ValueError, naming the line, for a line that is not a node."""
    found: dict[str, SavedNode] = {}
    for number, text in enumerate(content.splitlines(), 1):
        if not text.strip():
            continue
        try:
            line = msgspec.json.decode(text, type=_SavedLine)
            node = SavedNode(line.path, _data(line), line.topic, line.leader_epoch)
        except (msgspec.DecodeError, ValueError) as error:
            raise ValueError(f"line {number}: not a node of an undo file: {error}") from None
        if found.setdefault(node.path, node) != node:
            raise ValueError(f"line {number}: {node.path} appears twice")
    return list(found.values())


def _line(node: SavedNode) -> _SavedLine:
    if node.data is None:
        return _SavedLine(node.path, data=None)
    try:
        return _SavedLine(node.path, data=node.data.decode(), topic=node.topic, leader_epoch=node.leader_epoch)
    except UnicodeDecodeError:
        return _SavedLine(node.path, base64=base64.b64encode(node.data).decode())


def _data(line: _SavedLine) -> bytes | None:
    if (line.data is msgspec.UNSET) == (line.base64 is msgspec.UNSET):
        raise ValueError("it needs data or base64")
    if isinstance(line.base64, str):
        try:
            return base64.b64decode(line.base64, validate=True)
        except binascii.Error as error:
            raise ValueError(f"base64: {error}") from None
    return line.data.encode() if isinstance(line.data, str) else None


BROKERS = "/brokers"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
CONFIG_CHANGE = "/config/changes/config_change_"


class PartitionOf07(NamedTuple):
    """A partition of Kafka 0.7, which numbers them for each broker."""

    topic: str
    broker: int
    number: int


def partition_state(name: str, partition: int) -> str:
    return f"{topic(name)}/partitions/{partition}/state"


def topic_config(name: str) -> str:
    return f"/config/topics/{name}"


def partition_of(leaf: str) -> TopicPartition:
    """The partition of a group's owner, offset or claim node. Raises ValueError for another name."""
    name = leaf.rpartition("/")[2]
    if not is_number(name) or name != str(int(name)):  # no member uses 00 for 0
        raise ValueError(f"{name!r} is not a partition's number")
    return TopicPartition(topic_of(leaf), int(name))


def partition_of_0_7(leaf: str) -> PartitionOf07:
    """The partition of an offset node `<broker>-<number>`. Raises ValueError for another name."""
    broker, dash, number = leaf.rpartition("/")[2].partition("-")
    if not dash or not is_number(broker) or not is_number(number):
        raise ValueError(f"{leaf!r} is not a partition of Kafka 0.7")
    return PartitionOf07(topic_of(leaf), int(broker), int(number))
