"""What is wrong with a group, and which nodes of it change, as text in 80 columns.

Pure. Used by `kzconsumer groups`. Only a node's path may be longer than a line: an operator needs all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from kzconsumer_tools.tables.text import WIDTH, clip, count, ending, sentence

if TYPE_CHECKING:
    from kzconsumer_tools.groups.diagnosis import SymptomKind
    from kzconsumer_tools.groups.results import Cared, Examined

_SHOWN = 20

ADVICE: dict[SymptomKind, str] = {
    "different_assignors": "Members run different assignors: give all of them the same [group] assignor",
    "offset_after_log": "Offsets behind the end of their log, which was cut or made anew: `offsets reset` moves them",
    "offset_before_log": "Offsets before their log, which lost what was next: `[offsets] reset` says what members do",
    "other_session_owner": "Owner nodes of an earlier session: they go when it expires",
    "owner_not_as_computed": "Owners that the assignor does not give: members compute from another state, or otherwise",
    "persistent_owner": "Owner nodes that no session holds: `groups clean` removes them",
    "persistent_registration": "Registrations that no session holds: `groups clean` removes them",
    "planned_range": "Planned ranges without owner: start a member with that destination",
    "recreated_topic": "Topics made anew: offsets may be of the earlier one of that name, `offsets reset` moves them",
    "topic_missing": "Topics that are subscribed to and do not exist",
    "unknown_claim_record": "Claim records that this version cannot read: written by a newer one",
    "unknown_node": "Nodes that are no partition's",
    "unowned_partition": "Partitions without owner: what else is told here may say why",
    "unreadable_offset": "Offsets that cannot be read: `offsets reset` replaces them",
    "unreadable_registration": "Registrations that cannot be read: no member can compute; stop that member",
    "unreadable_topic": "Topics that cannot be read",
    "unregistered_owner": "Owners that are not registered: they go when their session expires",
    "unusable_pattern": "Patterns that cannot be used: no member can compute; stop that member",
}


def examined_table(group: Examined, fine: str) -> str:
    """Every symptom by its kind, then the verdict; `fine` says what there is none of."""
    lines: list[str] = []
    for kind, found in groupby(group.symptoms, key=lambda each: each.kind):
        symptoms = list(found)
        lines += wrap(f"{ADVICE[kind]} ({len(symptoms)}):", WIDTH, subsequent_indent="  ")
        for each in symptoms[:_SHOWN]:
            lines.append(f"  {each.path}")
            lines += wrap(each.reason, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if (more := len(symptoms) - _SHOWN) > 0:
            lines.append(f"  … and {more} more, all of them with -o json")
    verdict = f"Healthy: {fine}." if group.healthy else f"Not healthy: {count(len(group.symptoms), 'finding')}."
    return "\n".join([*lines, f"group {group.group}: {verdict}"])


def cared_table(answer: Cared, where: str) -> str:
    """Every node with its old and new content, and what to do next; `where` is for the command that undoes it."""
    nodes = count(len(answer.nodes), "node")
    done = "changed" if answer.executed else "would change"
    lines = [clip(f"group {answer.group}: {nodes} {done}", WIDTH), *_nodes(answer)]
    if answer.attended is not None and not answer.executed:
        lines += sentence(f"The group {answer.attended}.")
    return "\n".join([*lines, _ending(answer, where)])


def _nodes(answer: Cared) -> Iterator[str]:
    for each in answer.nodes[:_SHOWN]:
        yield f"  {each.path}"
        yield clip(f"    {_content(each.old)} -> {_content(each.new)}", WIDTH)
        if each.reason is not None:
            yield from wrap(each.reason, WIDTH, initial_indent="    ", subsequent_indent="    ")
    if (more := len(answer.nodes) - _SHOWN) > 0:
        yield f"  … and {more} more, all of them with -o json"


def _content(text: str | None) -> str:
    return "no node" if text is None else text or "empty"


def _ending(answer: Cared, where: str) -> str:
    if answer.nodes and all(each.old is None for each in answer.nodes):  # restored: there is nothing to keep
        return "Done." if answer.executed else "Nothing was changed. Add --execute to do it."
    return ending(answer.executed, answer.undo, "groups restore", where, len(answer.nodes))
