"""Stored offsets and their changes as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kzconsumer.figures import moment, plural, some
from kzconsumer_tools.offsets.changes import ChangedGroup, ChangedOffsets, DescribedChange
from kzconsumer_tools.offsets.moved import MovedPartition
from kzconsumer_tools.offsets.stored import GroupOffsets
from kzconsumer_tools.tables.text import capital, columns, dash, next_step_line, sentence


def show_table(group: GroupOffsets, *, wide: bool = False) -> str:
    """A row for each partition, and for each offset of Kafka 0.7."""
    head = f"group {group.group}: {plural(len(group.partitions), 'stored offset')}"
    return "\n".join([head, *_partitions(group, wide), *_left_by_0_7(group)])


def _left_by_0_7(group: GroupOffsets) -> Iterator[str]:
    if group.left_by_0_7:
        yield from ("", "left by a consumer of Kafka 0.7, unused:", "")
        rows = [("BROKER", "PARTITION", "STORED", "TOPIC")]
        rows += [(str(each.broker), str(each.partition), dash(each.stored), each.topic) for each in group.left_by_0_7]
        yield from columns(rows, right={0, 1, 2})


def _partitions(group: GroupOffsets, wide: bool) -> Iterator[str]:
    if not group.partitions:
        return
    plans = [f"{each.plan[0]}-{each.plan[1]}" if each.plan else "-" for each in group.partitions]
    if group.storage == "zookeeper":
        rows = [("PARTITION", "STORED", "WRITTEN", "EPOCH", "PLAN", "TOPIC")]
        for each, plan in zip(group.partitions, plans, strict=True):
            stored = dash(each.stored), moment(each.written), dash(each.epoch)
            rows.append((str(each.partition), *stored, plan, each.topic))
        yield from ("", *columns(rows, right={0, 1, 3}))
        return
    both = [("PARTITION", "STORED", "ZOOKEEPER", "BROKERS", "EPOCH", "PLAN", "TOPIC", "WRITTEN")]
    for each, plan in zip(group.partitions, plans, strict=True):
        offsets = dash(each.stored), dash(each.zookeeper), dash(each.brokers)
        both.append((str(each.partition), *offsets, dash(each.epoch), plan, each.topic, moment(each.written)))
    yield from ("", *columns(both, right={0, 1, 2, 3, 4}, wide=wide, more=1))


def changes_table(result: ChangedOffsets, flags: str) -> str:
    """Old and new offsets, the consequences, and the next step; `flags` is the cluster option of the undo command."""
    lines: list[str] = []
    changing = 0
    for group in result.groups:
        changed = sum(each.changes for each in group.partitions)
        changing += changed
        done = "changed" if result.executed else "would change"
        lines.append(f"group {group.group}: {changed} of {plural(len(group.partitions), 'partition')} {done}")
        lines += ["", *_rows(group), "", *consequences(group.partitions)]
        if group.left_out:
            lines += sentence(f"Left out, since they do not exist: {some(group.left_out)}.")
        if group.in_use is not None and not result.executed:
            lines += sentence(f"The group {group.in_use}.")
    return "\n".join([*lines, next_step_line(result.executed, result.undo, "offsets import", flags, changing)])


def _rows(group: ChangedGroup) -> Iterator[str]:
    rows = [("TOPIC", "PARTITION", "OLD", "NEW", "LOG", "")]
    for each in group.partitions:
        log = f"{each.log_start}-{each.log_end}" if each.log_start is not None else "-"
        rows.append((each.topic, str(each.partition), dash(each.old), dash(each.new), log, ", ".join(_notes(each))))
    return (line.rstrip() for line in columns(rows, right={1, 2, 3}))


def _notes(change: DescribedChange) -> Iterator[str]:
    if not change.changes:
        yield "unchanged"
    if change.asked is not None:
        yield f"not {change.asked}: outside the log"
    if change.note:
        yield change.note
    if change.plan is not None:
        yield f"plan {change.plan[0]}-{change.plan[1]} cleared"


def consequences(changes: Sequence[DescribedChange | MovedPartition]) -> Iterator[str]:
    """What the changes mean for consumption, as far as they mean anything."""
    repeated = sum(each.repeated for each in changes)
    skipped = sum(each.skipped for each in changes if each.changes)
    unread = "at most " if any(each.log_end is None for each in changes if each.repeated or each.skipped) else ""
    published = sum(each.republished for each in changes)
    if repeated:
        yield capital(f"{unread}{plural(repeated, 'offset')} will be consumed again.")
    if skipped:
        yield capital(f"{unread}{plural(skipped, 'offset')} will not be consumed.")
    if published:
        yield f"{plural(published, 'offset')} of these a replayable sink has published, or may have: its destination"
        yield "will hold these records twice. That needs --republish."
