"""Files of stored offsets: in two formats of Kafka's own tools, as nodes, and as Spark's Kafka source has them.

`/consumers/<group>/offsets/<topic>/<partition>:<offset>` (`kafka.tools.ExportZkOffsets`, 1.1.1); CSV with
`topic,partition,offset` or `group,topic,partition,offset` (`kafka-consumer-groups.sh --export`); and nodes
(`node_changes`), the only format for invalid content and for missing nodes. Spark's is the JSON of `startingOffsets`
and of its checkpoints (`org.apache.spark.sql.kafka010.JsonUtils`, 4.0): `{"orders":{"0":13}}`.

The first one and nodes also have the topic and the leader epoch of an offset (`stored.Origin`), the first one as
`...:<offset>:<topic>:<epoch>`. `kafka.tools.ImportZkOffsets` ignores them. Kafka's tools read no CSV with more columns.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import msgspec

from kzconsumer.model import TopicPartition
from kzconsumer.registry.nodes import decode_offset
from kzconsumer.registry.paths import is_number
from kzconsumer.settings.value_readers import read_name, read_topic
from kzconsumer_tools.node_changes import SavedNode, partition_of, read_nodes, write_nodes
from kzconsumer_tools.offsets.stored_offsets import UNKNOWN, OffsetOrigin

FileFormat = Literal["zookeeper", "csv", "nodes", "spark"]

_OFFSET_PATH_OF_0_7 = re.compile(r"/consumers/[^/]+/offsets/[^/]+/[0-9]+-[0-9]+")
_OFFSET_PATH = re.compile(r"/consumers/(?P<group>[^/]+)/offsets/(?P<topic>[^/]+)/(?P<partition>[0-9]{1,10})")
_LINE = re.compile(r"(?P<path>.*/[^/:]*):(?P<offset>[^/:]*)(:(?P<topic>[\w-]+)(:(?P<epoch>[0-9]{1,10}))?)?", re.ASCII)


class SavedOffset(msgspec.Struct, frozen=True):
    """One partition of a file. `group` is None if the file has none; `data` is the node's content, None for no node."""

    group: str | None
    partition: TopicPartition
    data: bytes | None
    origin: OffsetOrigin = UNKNOWN


class OffsetFile(msgspec.Struct, frozen=True):
    """The content of a file. Nodes are restored as they are; offsets of the other formats have to be in the log."""

    format: FileFormat
    offsets: tuple[SavedOffset, ...]


def read_offsets(content: bytes) -> OffsetFile:
    """Recognises the format. Raises ValueError, naming the line, for invalid content."""
    head = content.lstrip()[:1]
    if not head:
        raise ValueError("the file is empty")
    kind: FileFormat = "nodes" if head == b"{" else "zookeeper" if head == b"/" else "csv"
    if kind == "nodes" and (topics := _of_spark(content)):
        kind, saved = "spark", topics
    elif kind == "nodes":
        saved = [_of_node(node) for node in read_nodes(content)]
    else:
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"not UTF-8 text (byte {error.start})") from None
        saved = list(_zookeeper_lines(text) if kind == "zookeeper" else _csv_lines(text))
    seen: dict[tuple[str | None, TopicPartition], SavedOffset] = {}
    for each in saved:
        if each.origin.leader_epoch >= 1 << 31:
            raise ValueError(f"{each.partition}: {each.origin.leader_epoch} is not a leader epoch")
        if seen.setdefault((each.group, each.partition), each) != each:
            raise ValueError(f"{each.partition} appears twice, with different offsets, topics or leader epochs")
    return OffsetFile(kind, tuple(dict.fromkeys(saved)))


def write_offsets(format: FileFormat, offsets: Iterable[SavedNode]) -> bytes:
    """Raises ValueError for content that CSV and Spark's JSON cannot hold."""
    if format == "nodes":
        return write_nodes(offsets)
    if format == "zookeeper":
        return b"".join(map(_line, offsets))
    found = {partition_of(each.path): decode_offset(each.data or b"-1") for each in offsets}
    numbers = {partition: stored for partition, stored in found.items() if stored is not None}  # -1 means none
    if format == "spark":
        topics: dict[str, dict[str, int]] = {}
        for partition, stored in numbers.items():
            topics.setdefault(partition.topic, {})[str(partition.partition)] = stored
        return msgspec.json.encode(topics) + b"\n"
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows((*partition, stored) for partition, stored in numbers.items())
    return rows.getvalue().encode()


def _line(node: SavedNode) -> bytes:
    line = node.path.encode() + b":" + (node.data or b"-1")
    if node.topic:
        line += b":" + node.topic.encode()
        if node.leader_epoch >= 0:
            line += b":%d" % node.leader_epoch
    return line + b"\n"


def _of_spark(content: bytes) -> list[SavedOffset]:
    """Empty for other JSON. Raises ValueError for -1 and -2, by which Spark means an end of the log."""
    try:
        found = msgspec.json.decode(content, type=dict[str, dict[str, int]])
    except msgspec.DecodeError:
        return []
    saved = []
    for topic, offsets in found.items():
        for number, offset in offsets.items():
            partition = _partition(topic, number)
            if not 0 <= offset < 1 << 63:
                raise ValueError(f"{partition}: {offset} is not an offset")
            saved.append(SavedOffset(None, partition, b"%d" % offset))
    return saved


def _partition(topic: str, number: str) -> TopicPartition:
    """Raises ValueError for a name that no topic can have, or what is no partition's number."""
    if not is_number(number):
        raise ValueError(f"{number[:40]!r} is not a partition's number")
    return TopicPartition(_named(topic, read_topic), int(number))


def _named(name: str, read: Callable[[object], str]) -> str:
    try:
        return read(name)
    except ValueError as error:
        raise ValueError(f"{name[:40]!r} {error}") from None


def _of_node(node: SavedNode) -> SavedOffset:
    match = _OFFSET_PATH.fullmatch(node.path)
    if match is None:
        _refuse_0_7(node.path)
        raise ValueError(f"{node.path} is not a stored offset; `kzconsumer groups restore` reads files of other nodes")
    partition = TopicPartition(match["topic"], int(match["partition"]))
    return SavedOffset(match["group"], partition, node.data, OffsetOrigin(node.topic, node.leader_epoch))


def _refuse_0_7(path: str) -> None:
    if _OFFSET_PATH_OF_0_7.fullmatch(path):
        raise ValueError(f"{path} is an offset of Kafka 0.7; these can be exported but not imported")


def _zookeeper_lines(text: str) -> Iterator[SavedOffset]:
    for number, line in enumerate(text.split("\n"), 1):
        if not (line := line.rstrip("\r")).strip():
            continue
        parts = _LINE.fullmatch(line)
        match = _OFFSET_PATH.fullmatch(parts["path"]) if parts is not None else None
        if parts is None or match is None:
            _refuse_0_7(parts["path"] if parts is not None else "")
            raise ValueError(
                f"line {number}: not /consumers/<group>/offsets/<topic>/<partition>:<offset>[:<topic>[:<leader epoch>]]"
            )
        partition = TopicPartition(match["topic"], int(match["partition"]))
        origin = OffsetOrigin(parts["topic"] or "", int(parts["epoch"] or -1))
        yield SavedOffset(match["group"], partition, _offset(parts["offset"], number), origin)


def _csv_lines(text: str) -> Iterator[SavedOffset]:
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in rows:
            if not row:
                continue
            if len(row) not in (3, 4):
                raise ValueError("not topic,partition,offset, nor group,topic,partition,offset")
            *groups, topic, partition, offset = [cell.strip() for cell in row]
            group = _named(groups[0], read_name) if groups else None
            yield SavedOffset(group, _partition(topic, partition), _offset(offset, None))
    except (csv.Error, ValueError) as error:
        raise ValueError(f"line {rows.line_num}: {error}") from None


def _offset(text: str, line: int | None) -> bytes:
    """The content of the node. -1, which means no offset, is kept as in the original's tools."""
    data = text.strip().encode()
    try:
        decode_offset(data)
    except (ValueError, UnicodeDecodeError):
        raise ValueError((f"line {line}: " if line else "") + f"{text.strip()[:40]!r} is not an offset") from None
    return data
