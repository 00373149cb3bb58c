"""Files of stored offsets: those of Kafka's own tools, and ours.

Pure. `kzconsumer offsets export` writes them, `offsets import` and `offsets reset --from-file` read them. Kafka's:
`/consumers/<group>/offsets/<topic>/<partition>:<offset>` (`kafka.tools.ExportZkOffsets`, 1.1.1), and CSV with
`topic,partition,offset` or `group,topic,partition,offset` (`kafka-consumer-groups.sh --export`). Ours are nodes
(`zookeeper/node_changes`): the only ones that hold what is no offset, and that there was none.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.paths import partition_of
from kzconsumer.settings.values import read_topic
from kzconsumer_tools.node_changes import SavedNode, read_nodes, write_nodes

FileFormat = Literal["zookeeper", "csv", "nodes"]

_OFFSET_PATH_OF_0_7 = re.compile(r"/consumers/[^/]+/offsets/[^/]+/[0-9]+-[0-9]+")
_OFFSET_PATH = re.compile(r"/consumers/(?P<group>[^/]+)/offsets/(?P<topic>[^/]+)/(?P<partition>[0-9]+)")


class SavedOffset(msgspec.Struct, frozen=True):
    """One partition of a file. `group` is None where the file does not say it; `data` is the node's, None for none."""

    group: str | None
    partition: TopicPartition
    data: bytes | None


class OffsetFile(msgspec.Struct, frozen=True):
    """What a file says. One of nodes is restored as it is; offsets of the others have to lie in the log."""

    format: FileFormat
    offsets: tuple[SavedOffset, ...]


def read_offsets(content: bytes) -> OffsetFile:
    """The form is recognised. Raises ValueError, naming the line, for anything that none of the three would hold."""
    head = content.lstrip()[:1]
    if not head:
        raise ValueError("the file is empty")
    kind: FileFormat = "nodes" if head == b"{" else "zookeeper" if head == b"/" else "csv"
    if kind == "nodes":
        saved = [_of_node(node) for node in read_nodes(content)]
    else:
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text (byte {error.start})") from None
        saved = list(_zookeeper_lines(text) if kind == "zookeeper" else _csv_lines(text))
    seen: dict[tuple[str | None, TopicPartition], bytes | None] = {}
    for each in saved:
        if seen.setdefault((each.group, each.partition), each.data) != each.data:
            raise ValueError(f"{each.partition} stands there twice, with different offsets")
    return OffsetFile(kind, tuple(dict.fromkeys(saved)))


def write_offsets(format: FileFormat, offsets: Iterable[tuple[str, bytes]]) -> bytes:
    """Each node, by its path, as it stands. Raises ValueError where CSV, which holds numbers only, cannot say it."""
    if format == "nodes":
        return write_nodes(SavedNode(path, data) for path, data in offsets)
    if format == "zookeeper":
        return b"".join(path.encode() + b":" + data + b"\n" for path, data in offsets)
    rows = io.StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for path, data in offsets:
        partition = partition_of(path)
        stored = decode_offset(data)
        if stored is not None:  # -1 means none
            writer.writerow((partition.topic, partition.partition, stored))
    return rows.getvalue().encode()


def _of_node(node: SavedNode) -> SavedOffset:
    match = _OFFSET_PATH.fullmatch(node.path)
    if match is None:
        _refuse_0_7(node.path)
        raise ValueError(f"{node.path} is not a stored offset; `kzconsumer groups restore` takes files of other nodes")
    return SavedOffset(match["group"], TopicPartition(match["topic"], int(match["partition"])), node.data)


def _refuse_0_7(path: str) -> None:
    if _OFFSET_PATH_OF_0_7.fullmatch(path):
        raise ValueError(f"{path} is an offset of Kafka 0.7: those are exported, to be read by people, never written")


def _zookeeper_lines(text: str) -> Iterator[SavedOffset]:
    for number, line in enumerate(text.split("\n"), 1):
        if not (line := line.rstrip("\r")).strip():
            continue
        path, _, offset = line.rpartition(":")
        match = _OFFSET_PATH.fullmatch(path)
        if match is None:
            _refuse_0_7(path)
            raise ValueError(f"line {number}: not /consumers/<group>/offsets/<topic>/<partition>:<offset>")
        partition = TopicPartition(match["topic"], int(match["partition"]))
        yield SavedOffset(match["group"], partition, _offset(offset, number))


def _csv_lines(text: str) -> Iterator[SavedOffset]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            if not row:
                continue
            if len(row) not in (3, 4):
                raise ValueError("not topic,partition,offset, nor group,topic,partition,offset")
            *groups, topic, partition, offset = [cell.strip() for cell in row]
            if not (partition.isascii() and partition.isdecimal()):
                raise ValueError(f"{partition!r} is not a partition's number")
            try:
                read_topic(topic)
            except ValueError as error:
                raise ValueError(f"{topic!r} {error}") from None
            saved = SavedOffset(
                groups[0] if groups else None, TopicPartition(topic, int(partition)), _offset(offset, None)
            )
            yield saved
    except (csv.Error, ValueError) as error:
        raise ValueError(f"line {rows.line_num}: {error}") from None


def _offset(text: str, line: int | None) -> bytes:
    """As it is stored. -1, which is no offset, is kept as the original's tools keep it."""
    data = text.strip().encode()
    try:
        decode_offset(data)
    except (ValueError, UnicodeDecodeError):
        raise ValueError((f"line {line}: " if line else "") + f"{text.strip()[:40]!r} is not an offset") from None
    return data
