"""Requests to the controller and the brokers, and their results, as text."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote

from kzconsumer.figures import plural, some
from kzconsumer_tools.cluster.requests import Deleted, Elected, Reassigned
from kzconsumer_tools.cluster.topic_settings import Configured, OwnSettings
from kzconsumer_tools.tables.text import columns, dash, sentence

_NOT_DONE = "Nothing was changed. Add --execute to do it"


def reassigned_table(result: Reassigned, flags: str) -> str:
    """`flags` is the cluster option of the command that undoes it."""
    rows: list[tuple[str, ...]] = [("PARTITION", "OLD", "NEW", "TOPIC")]
    for each in result.partitions:
        new = ",".join(map(str, each.new)) if each.changes else "unchanged"
        rows.append((str(each.partition), ",".join(map(str, each.old)), new, each.topic))
    lines = [*columns(rows, right={0}), ""]
    changes = sum(each.changes for each in result.partitions)
    if not changes:
        return "\n".join([*lines, "Nothing to change."])
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}; an undo file is written first."])
    undo = f"kzconsumer topics reassign --file {quote(result.undo or '')} --execute {flags}"
    return "\n".join([*lines, *_end(result.pending, f"{plural(changes, 'partition')} moved"), f"To undo: {undo}"])


def elected_table(result: Elected) -> str:
    if not result.partitions:
        return "Every partition is led by its preferred leader."
    rows: list[tuple[str, ...]] = [("PARTITION", "LEADER", "PREFERRED", "TOPIC")]
    for each in result.partitions:
        preferred = f"{each.preferred} {each.reason}" if each.reason else str(each.preferred)
        rows.append((str(each.partition), dash(each.leader), preferred, each.topic))
    lines = [*columns(rows, right={0, 1}), ""]
    able = sum(each.reason is None for each in result.partitions)
    if not able:
        return "\n".join([*lines, "None of the preferred leaders can lead now."])
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}."])
    return "\n".join([*lines, *_end(result.pending, f"{plural(able, 'leader')} elected")])


def deleted_table(result: Deleted) -> str:
    number = f"{plural(len(result.topics), 'topic')}, {plural(result.partitions, 'partition')}"
    lines = sentence(f"{number}: {', '.join(result.topics)}")
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}.", "All records would be deleted; this cannot be undone."])
    note = "With delete.topic.enable=false (the default up to 0.11), it stays pending."
    end = _end(result.pending, "deleted")
    return "\n".join([*lines, *end, *([note] if result.pending else [])])


def settings_table(topics: Sequence[OwnSettings]) -> str:
    lines = []
    for topic in topics:
        settings = [f"  {name} = {value}" for name, value in topic.config.items()] or ["  no settings of its own"]
        lines += [topic.topic, *settings]
    return "\n".join(lines)


def configured_table(result: Configured, flags: str) -> str:
    if not result.settings:
        return "Nothing to change."
    rows: list[tuple[str, ...]] = [("SETTING", "OLD", "NEW")]
    rows += [(each.name, each.old or "-", each.new or "-") for each in result.settings]
    lines = [f"topic {result.topic}", "", *columns(rows, right=()), ""]
    if not result.executed:
        return "\n".join([*lines, f"{_NOT_DONE}."])
    back = [quote(f"{each.name}={each.old}") for each in result.settings if each.old is not None]
    away = [f"--unset {quote(each.name)}" for each in result.settings if each.old is None]
    undo = " ".join(["kzconsumer topics config set", quote(result.topic), *back, *away, "--execute", flags])
    return "\n".join([*lines, "Done; the brokers are notified. They send no confirmation.", f"To undo: {undo}"])


def _end(pending: Sequence[str], done: str) -> list[str]:
    if not pending:
        return [f"Done: {done}."]
    return sentence(
        f"Requested, still pending: {some(pending)}. The controller continues; see kzconsumer cluster describe."
    )
