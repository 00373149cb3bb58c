"""Stored offsets and their moves as text, in 80 columns.

Pure. Used by `kzconsumer offsets`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kzconsumer_tools.offsets.changes import DescribedMove
from kzconsumer_tools.offsets.results import Moved, MovedGroup
from kzconsumer_tools.offsets.stored import GroupOffsets
from kzconsumer_tools.tables.text import WIDTH, clip, columns, count, dash, ending, sentence

_LONGEST_TOPIC = 24


def show_table(group: GroupOffsets) -> str:
    """A row for each partition, and for each offset of Kafka 0.7."""
    head = clip(f"group {group.group}: {count(len(group.partitions), 'stored offset')}", WIDTH)
    return "\n".join([head, *_partitions(group), *_left_by_0_7(group)])


def _left_by_0_7(group: GroupOffsets) -> Iterator[str]:
    if group.left_by_0_7:
        yield from ("", "left by a consumer of Kafka 0.7, which nobody goes by:", "")
        rows = [("BROKER", "PARTITION", "STORED", "TOPIC")]
        rows += [(str(each.broker), str(each.partition), dash(each.stored), each.topic) for each in group.left_by_0_7]
        yield from columns(rows, right={0, 1, 2})


def _partitions(group: GroupOffsets) -> Iterator[str]:
    if not group.partitions:
        return
    plans = [f"{each.plan[0]}-{each.plan[1]}" if each.plan else "-" for each in group.partitions]
    if group.storage == "zookeeper":
        rows = [("PARTITION", "STORED", "WRITTEN", "EPOCH", "PLAN", "TOPIC")]
        for each, plan in zip(group.partitions, plans, strict=True):
            written = each.written or "-"
            rows.append((str(each.partition), dash(each.stored), written, dash(each.epoch), plan, each.topic))
        yield from ("", *columns(rows, right={0, 1, 3}))
        return
    wide = [("PARTITION", "STORED", "ZOOKEEPER", "BROKERS", "EPOCH", "PLAN", "TOPIC")]
    for each, plan in zip(group.partitions, plans, strict=True):
        offsets = dash(each.stored), dash(each.zookeeper), dash(each.brokers)
        wide.append((str(each.partition), *offsets, dash(each.epoch), plan, each.topic))
    yield from ("", *columns(wide, right={0, 1, 2, 3, 4}))


def moves_table(answer: Moved, where: str) -> str:
    """Old and new of each partition, what it means, and what to do next; `where` is for the command that undoes it."""
    lines: list[str] = []
    changing = 0
    for group in answer.groups:
        changed = sum(each.changes for each in group.moves)
        changing += changed
        done = "changed" if answer.executed else "would change"
        lines.append(clip(f"group {group.group}: {changed} of {count(len(group.moves), 'partition')} {done}", WIDTH))
        lines += ["", *_rows(group), "", *_meaning(group, answer.executed)]
    return "\n".join([*lines, ending(answer.executed, answer.undo, "offsets import", where, changing)])


def _rows(group: MovedGroup) -> Iterator[str]:
    rows = [("TOPIC", "PARTITION", "OLD", "NEW", "LOG", "")]
    for each in group.moves:
        log = f"{each.log_start}-{each.log_end}" if each.log_start is not None else "-"
        topic = clip(each.topic, _LONGEST_TOPIC)
        rows.append((topic, str(each.partition), dash(each.old), dash(each.new), log, ", ".join(_notes(each))))
    return (line.rstrip() for line in columns(rows, right={1, 2, 3}))


def _notes(move: DescribedMove) -> Iterator[str]:
    if not move.changes:
        yield "unchanged"
    if move.asked is not None:
        yield f"not {move.asked}: outside the log"
    if move.plan is not None:
        yield f"plan {move.plan[0]}-{move.plan[1]} cleared"


def _meaning(group: MovedGroup, executed: bool) -> Iterator[str]:
    """Only what applies. A refusal is told in the plan already."""
    again = sum(each.again for each in group.moves)
    skipped = sum(each.skipped for each in group.moves if each.changes)
    published = sum(each.republished for each in group.moves)
    if again:
        yield f"{count(again, 'offset')} will be consumed again."
    if skipped:
        yield f"{count(skipped, 'offset')} will be consumed by nobody."
    if published:
        yield f"{count(published, 'offset')} of these a replayable sink has published, or may have: its destination"
        yield "will hold these records twice. That needs --republish."
    if group.attended is not None and not executed:
        yield from sentence(f"The group {group.attended}.")
