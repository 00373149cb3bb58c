"""Problems of a group, and changed nodes, as text. Only nodes' paths may exceed the width."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap

from kzconsumer.figures import plural
from kzconsumer_tools.groups.diagnosis import Examined, SymptomKind
from kzconsumer_tools.groups.leftovers import RepairResult
from kzconsumer_tools.tables.text import WIDTH, next_step_line, sentence

_SHOWN = 20

ADVICE: dict[SymptomKind, str] = {
    "different_assignors": "Members run different assignors: give all of them the same [group] assignor",
    "offset_after_log": "Offsets after the end of a truncated or recreated log: `offsets reset` changes them",
    "offset_before_log": "Offsets before the start of their log: `[offsets] reset` says where members continue",
    "other_session_owner": "Owner nodes of an earlier session: they disappear when it expires",
    "owner_not_as_computed": "Owners that the assignor does not compute: a member has another view or assignor",
    "persistent_owner": "Owner nodes that no session holds: `groups clean` removes them",
    "persistent_registration": "Registrations that no session holds: `groups clean` removes them",
    "planned_range": "Planned ranges without owner: start a member with that destination",
    "recreated_topic": "Recreated topics: offsets may be of the earlier topic; `offsets reset` changes them",
    "original_member": "Original members, which stop when the cluster leaves ZooKeeper: replace them first",
    "topic_missing": "Topics that are subscribed to and do not exist",
    "unknown_claim_record": "Claim records that this version cannot read: written by a newer one",
    "unknown_node": "Nodes that belong to no partition",
    "unowned_partition": "Partitions without owner: other problems listed here may be the cause",
    "unreadable_offset": "Offsets that cannot be read: `offsets reset` replaces them",
    "unreadable_registration": "Registrations that cannot be read: they block every rebalance; stop that member",
    "unreadable_topic": "Topics that cannot be read",
    "unregistered_owner": "Owners that are not registered: they disappear when their session expires",
    "unusable_pattern": "Patterns that cannot be used: they block every rebalance; stop that member",
}


def symptoms_table(group: Examined, healthy: str) -> str:
    """All symptoms by kind, then the verdict; `healthy` is that of a group without symptoms."""
    lines: list[str] = []
    for kind, found in groupby(group.symptoms, key=lambda each: each.kind):
        symptoms = list(found)
        lines += wrap(f"{ADVICE[kind]} ({len(symptoms)}):", WIDTH, subsequent_indent="  ")
        for each in symptoms[:_SHOWN]:
            lines.append(f"  {each.path}")
            lines += wrap(each.reason, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if (more := len(symptoms) - _SHOWN) > 0:
            lines.append(f"  … and {more} more, all of them with -o json")
    verdict = f"Healthy: {healthy}." if group.healthy else f"Not healthy: {plural(len(group.symptoms), 'finding')}."
    return "\n".join([*lines, f"group {group.group}: {verdict}"])


def repair_table(result: RepairResult, flags: str) -> str:
    """Nodes with old and new content, and the next step; `flags` is the cluster option of the undo command."""
    nodes = plural(len(result.nodes), "node")
    done = "changed" if result.executed else "would change"
    lines = [f"group {result.group}: {nodes} {done}", *_nodes(result)]
    if result.in_use is not None and not result.executed:
        lines += sentence(f"The group {result.in_use}.")
    return "\n".join([*lines, _next_step(result, flags)])


def _nodes(result: RepairResult) -> Iterator[str]:
    for each in result.nodes[:_SHOWN]:
        yield f"  {each.path}"
        yield f"    {_content(each.old)} -> {_content(each.new)}"
        if each.reason is not None:
            yield from wrap(each.reason, WIDTH, initial_indent="    ", subsequent_indent="    ")
    if (more := len(result.nodes) - _SHOWN) > 0:
        yield f"  … and {more} more, all of them with -o json"


def _content(text: str | None) -> str:
    return "no node" if text is None else text or "empty"


def _next_step(result: RepairResult, flags: str) -> str:
    if result.nodes and all(each.old is None for each in result.nodes):  # restored: an undo file is not written
        return "Done." if result.executed else "Nothing was changed. Add --execute to do it."
    return next_step_line(result.executed, result.undo, "groups restore", flags, len(result.nodes))
