"""Stored offsets and their changes, a group that moves to the brokers or back, and results of `sink`, as text."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kzconsumer.display import count, moment, plural, some
from kzconsumer.lag.totals import reasons
from kzconsumer_tools.offsets.move_rules import Block, MovedGroup, MovedPartition
from kzconsumer_tools.offsets.offset_changes import ChangedGroup, ChangedOffsets, DescribedChange
from kzconsumer_tools.offsets.stored_offsets import GroupOffsets, StoredOffset
from kzconsumer_tools.proof import PartitionProof, Proof, ProofFinding
from kzconsumer_tools.tables.text import capital, clip, columns, dash, next_step_line, sentence

if TYPE_CHECKING:
    from kzconsumer.sinks.interface import Preview


def show_table(group: GroupOffsets, *, wide: bool = False) -> str:
    """A row for each partition, and for each offset of Kafka 0.7; `-` has its reason in the row."""
    stored = sum(each.stored is not None for each in group.partitions)
    without = Counter(each.why for each in group.partitions if each.why is not None)
    more = f" ({sum(without.values())} without: {reasons(dict(without))})" if without else ""
    head = f"group {group.group}: {plural(stored, 'stored offset')}{more}"
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
        rows = [("PARTITION", "STORED", "WRITTEN", "EPOCH", "PLAN", "TOPIC", "")]
        for each, plan in zip(group.partitions, plans, strict=True):
            stored = dash(each.stored), moment(each.written), dash(each.epoch)
            rows.append((str(each.partition), *stored, plan, each.topic, each.why or ""))
        yield from ("", *(line.rstrip() for line in columns(rows, right={0, 1, 3})))
        return
    both = [("PARTITION", "STORED", "ZOOKEEPER", "BROKERS", "EPOCH", "PLAN", "TOPIC", "", "WRITTEN")]
    for each, plan in zip(group.partitions, plans, strict=True):
        offsets = dash(each.stored), dash(each.zookeeper), dash(each.brokers)
        facts = dash(each.epoch), plan, each.topic, ", ".join(_notes_of(each)), moment(each.written)
        both.append((str(each.partition), *offsets, *facts))
    yield from ("", *(line.rstrip() for line in columns(both, right={0, 1, 2, 3, 4}, wide=wide, more=1)))


def _notes_of(each: StoredOffset) -> Iterator[str]:
    """Why offsets are `-`; in the column of a storage that means "never committed" unless the row says why."""
    if each.why is not None:
        yield each.why
    for place, why in (("ZooKeeper", each.why_zookeeper), ("brokers", each.why_brokers)):
        if why not in (None, "never committed", each.why):
            yield f"{place}: {why}"


def changes_table(result: ChangedOffsets, flags: str) -> str:
    """Old and new offsets, the consequences, and the next step; `flags` is the cluster option of the undo command."""
    lines: list[str] = []
    changing = 0
    for group in result.groups:
        changed = sum(each.changes for each in group.partitions)
        changing += changed
        done = "changed" if result.executed else "would change"
        lines.append(f"group {group.group}: {changed} of {plural(len(group.partitions), 'partition')} {done}")
        table = ["", *_rows(group)] if group.partitions else []
        lines += [*table, "", *consequences(group.partitions, executed=result.executed)]
        if group.left_out:
            lines += sentence(f"Left out, since they do not exist: {some(group.left_out)}.")
        if group.is_new and changed:
            lines += sentence(f"Group {group.group} is new: ZooKeeper had neither members nor offsets of it.")
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


def consequences(changes: Sequence[DescribedChange | MovedPartition], *, executed: bool) -> Iterator[str]:
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
        yield "will hold these records twice." + ("" if executed else " That needs --republish.")


_NOTES: dict[Block, str] = {
    "offset_after_log": "after the log",
    "offset_before_log": "before the log",
    "planned_range": "planned range",
    "recreated_topic": "of an earlier topic",
    "topic_missing": "does not exist",
    "unknown_claim_record": "newer version",
    "unreadable_offset": "unreadable",
}


def move_table(result: MovedGroup, flags: str) -> str:
    """Both sides and the new offsets, the consequences, what has to be resolved, and the next step.

    `flags` is the cluster option of the undo command.
    """
    changing = sum(each.changes for each in result.partitions)
    source, goal = f"group {result.group} in ZooKeeper", f"Kafka group {result.kafka_group}"
    if result.to == "zookeeper":
        source, goal = goal, source
    done = "moved" if result.executed else "would move"
    lines = [f"{source}: {plural(changing, 'offset')} {done} to {goal}", "", *_move_rows(result, moved=True), ""]
    lines += consequences(result.partitions, executed=result.executed)
    if not result.coordinated:
        lines += sentence(
            "Brokers of 0.8 coordinate no groups: these offsets are for members of the group in ZooKeeper that store "
            'theirs in the brokers ([offsets] storage = "kafka").'
        )
    if result.blocked:
        lines += [line for each in result.blocked for line in sentence(f"{capital(each)}.")]
        return "\n".join([*lines, "Nothing was changed. With --execute this is an error."])
    return "\n".join([*lines, next_step_line(result.executed, result.undo, "offsets import", flags, changing)])


def compared_table(result: MovedGroup) -> str:
    """Both sides and the verdict."""
    differing = sum(each.stored != each.kafka for each in result.partitions)
    total = plural(len(result.partitions), "partition")
    verdict = f"{differing} of {total} differ" if differing else f"the same offsets in {total}"
    head = f"group {result.group} in ZooKeeper, Kafka group {result.kafka_group}: {verdict}"
    return "\n".join([head, "", *_move_rows(result, moved=False)])


def _move_rows(result: MovedGroup, *, moved: bool) -> Iterator[str]:
    rows = [("TOPIC", "PARTITION", "STORED", "KAFKA", *(["NEW"] if moved else []), "LOG", "")]
    for each in result.partitions:
        log = f"{each.log_start}-{each.log_end}" if each.log_start is not None else "-"
        new = [dash(each.new)] if moved else []
        note = _note(each, result) if moved else _difference(each)
        rows.append((each.topic, str(each.partition), dash(each.stored), dash(each.kafka), *new, log, note))
    return (line.rstrip() for line in columns(rows, right={1, 2, 3, 4} if moved else {1, 2, 3}))


def _note(each: MovedPartition, result: MovedGroup) -> str:
    if each.blocked is not None:
        return f"not moved: {_NOTES[each.blocked]}"
    if (each.stored if result.to == "kafka" else each.kafka) is None:
        return "no offset to move"
    return "" if each.changes else "unchanged"


def _difference(each: MovedPartition) -> str:
    if each.stored == each.kafka:
        return ""
    return "differs" if each.stored is None or each.kafka is None else f"differs: {each.kafka - each.stored:+}"


def proof_table(proof: Proof) -> str:
    """The verdict, a row for each partition and epoch, the findings and the notes."""
    ranges = sum(each.ranges for each in proof.partitions)
    verdict = "no gap, no overlap, counts equal" if proof.healthy else plural(len(proof.findings), "finding")
    lines = [f"group {proof.group}: {proof.destination}", f"{plural(ranges, 'range')}: {verdict}"]
    if proof.partitions:
        rows = [("PARTITION", "EPOCH", "STORED", "RANGES", "RECORDS", "ROWS", "ASIDE", "TOPIC")]
        lines += ["", *columns([*rows, *map(_row, proof.partitions)], right={0, 1, 2, 3, 4, 5, 6, 7})]
    for finding in proof.findings:
        lines += ["", *sentence(f"{finding.kind}: {_where(finding)}{finding.text}")]
    if proof.notes:
        lines += ["", *(line for note in proof.notes for line in sentence(note))]
    return "\n".join(lines)


def _row(each: PartitionProof) -> tuple[str, ...]:
    aside = each.records_quarantined + each.aside_records
    counts = each.ranges, each.records_in, each.rows, aside
    return (*map(dash, (each.partition, each.epoch, each.stored)), *map(count, counts), each.topic)


def _where(finding: ProofFinding) -> str:
    if finding.topic is None:
        return ""
    epoch = f" epoch {finding.epoch}" if finding.epoch else ""
    return f"{finding.topic}-{finding.partition}{epoch} [{finding.first}..{finding.until}): "


_LEAST = 4
_BETWEEN = "  "


def preview_table(preview: Preview, width: int) -> str:
    """Names, types and cells in lines of `width` characters if all columns fit; then the bad records."""
    head = [[name for name, _ in preview.columns], [kind for _, kind in preview.columns]]
    cells = head + [[_text(cell) for cell in row] for row in preview.rows]
    wanted = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths = fitted(wanted, width - len(_BETWEEN) * (len(wanted) - 1))
    lines = [
        _BETWEEN.join(clip(cell, w).ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cells
    ]
    lines += ["", f"{plural(len(preview.rows), 'row')}, {plural(len(preview.bad), 'bad record')}"]
    lines += [f"{bad.topic}-{bad.partition} offset {bad.offset}: {bad.reason}" for bad in preview.bad]
    return "\n".join(lines)


def fitted(wanted: Sequence[int], width: int) -> list[int]:
    """Column widths with the sum `width`: the widest columns are cut to the same width, of at least four characters."""
    limit = max(wanted, default=0)
    while limit > _LEAST and sum(min(each, limit) for each in wanted) > width:
        limit -= 1
    return [min(each, limit) for each in wanted]


def _text(cell: object) -> str:
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(text)
