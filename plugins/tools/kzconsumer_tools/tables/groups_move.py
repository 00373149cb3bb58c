"""A group that moves to the brokers or back, as text."""

from __future__ import annotations

from collections.abc import Iterator

from kzconsumer.figures import plural
from kzconsumer_tools.offsets.moved import Block, MovedGroup, MovedPartition
from kzconsumer_tools.tables.offsets import consequences
from kzconsumer_tools.tables.text import capital, columns, dash, next_step_line, sentence

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
    lines = [f"{source}: {plural(changing, 'offset')} {done} to {goal}", "", *_rows(result, moved=True), ""]
    lines += consequences(result.partitions)
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
    return "\n".join([head, "", *_rows(result, moved=False)])


def _rows(result: MovedGroup, *, moved: bool) -> Iterator[str]:
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
