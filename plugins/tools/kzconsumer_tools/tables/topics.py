"""What the controller and the brokers are asked for, as text in 80 columns.

Pure. Used by `kzconsumer topics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import TYPE_CHECKING

from kzconsumer_tools.tables.text import columns, count, dash, sentence

if TYPE_CHECKING:
    from kzconsumer_tools.cluster.results import Configured, Deleted, Elected, OwnSettings, Reassigned

_PLAN = "Nothing was changed. Add --execute to do it"


def reassigned_table(answer: Reassigned, where: str) -> str:
    """`where` is the option that says where, for the command that undoes it."""
    rows: list[tuple[str, ...]] = [("PARTITION", "OLD", "NEW", "TOPIC")]
    for each in answer.partitions:
        new = ",".join(map(str, each.new)) if each.changes else "unchanged"
        rows.append((str(each.partition), ",".join(map(str, each.old)), new, each.topic))
    lines = [*columns(rows, right={0}), ""]
    changes = sum(each.changes for each in answer.partitions)
    if not changes:
        return "\n".join([*lines, "Nothing to change."])
    if not answer.executed:
        return "\n".join([*lines, f"{_PLAN}; an undo file is written first."])
    undo = f"kzconsumer topics reassign --file {quote(answer.undo or '')} --execute {where}"
    return "\n".join([*lines, *_end(answer.pending, f"{count(changes, 'partition')} moved"), f"To undo: {undo}"])


def elected_table(answer: Elected) -> str:
    if not answer.partitions:
        return "Every partition is led by its preferred leader."
    rows: list[tuple[str, ...]] = [("PARTITION", "LEADER", "PREFERRED", "TOPIC")]
    for each in answer.partitions:
        preferred = f"{each.preferred} {each.reason}" if each.reason else str(each.preferred)
        rows.append((str(each.partition), dash(each.leader), preferred, each.topic))
    lines = [*columns(rows, right={0, 1}), ""]
    able = sum(each.reason is None for each in answer.partitions)
    if not able:
        return "\n".join([*lines, "None of them can lead now."])
    if not answer.executed:
        return "\n".join([*lines, f"{_PLAN}."])
    return "\n".join([*lines, *_end(answer.pending, f"{count(able, 'leader')} elected")])


def deleted_table(answer: Deleted) -> str:
    line = f"{count(len(answer.topics), 'topic')}, {count(answer.partitions, 'partition')}: {', '.join(answer.topics)}"
    lines = sentence(line)
    if not answer.executed:
        return "\n".join([*lines, f"{_PLAN}.", "All records would be gone, and nothing brings them back."])
    note = "With delete.topic.enable=false (the default up to 0.11), it stays so."
    end = _end(answer.pending, "deleted")
    return "\n".join([*lines, *end, *([note] if answer.pending else [])])


def settings_table(topics: Sequence[OwnSettings]) -> str:
    lines = []
    for topic in topics:
        settings = [f"  {name} = {value}" for name, value in topic.config.items()] or ["  none of its own"]
        lines += [topic.topic, *settings]
    return "\n".join(lines)


def configured_table(answer: Configured, where: str) -> str:
    if not answer.settings:
        return "Nothing to change."
    rows: list[tuple[str, ...]] = [("SETTING", "OLD", "NEW")]
    rows += [(each.name, each.old or "-", each.new or "-") for each in answer.settings]
    lines = [f"topic {answer.topic}", "", *columns(rows, right=()), ""]
    if not answer.executed:
        return "\n".join([*lines, f"{_PLAN}."])
    back = [quote(f"{each.name}={each.old}") for each in answer.settings if each.old is not None]
    away = [f"--unset {quote(each.name)}" for each in answer.settings if each.old is None]
    undo = " ".join(["kzconsumer topics config set", quote(answer.topic), *back, *away, "--execute", where])
    return "\n".join([*lines, "Done; the brokers are notified, and confirm nothing.", f"To undo: {undo}"])


def _end(pending: Sequence[str], done: str) -> list[str]:
    if not pending:
        return [f"Done: {done}."]
    shown = ", ".join(pending[:5]) + (f" and {len(pending) - 5} more" if len(pending) > 5 else "")
    return sentence(f"Asked for, not yet done: {shown}. The controller goes on; kzconsumer cluster describe shows it.")
