"""Problems of a group, and changed nodes, as text. Only nodes' paths may exceed the width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from kzconsumer.figures import plural
from kzconsumer_tools.groups.advice import ADVICE
from kzconsumer_tools.groups.description import GroupDescription
from kzconsumer_tools.groups.diagnosis import Examined, Problem, Verified
from kzconsumer_tools.groups.leftovers import RepairResult
from kzconsumer_tools.tables.text import WIDTH, next_step_line, sentence

_SHOWN = 20


def symptoms_table(group: Examined, healthy: str) -> str:
    """All findings by kind, what could not be examined, and the verdict; `healthy` is that of a group without any."""
    lines = [*problems(group.findings, _SHOWN), *unexamined(group.not_asked)]
    return "\n".join([*lines, f"group {group.group}: {verdict(group, healthy)}"])


def verified_table(group: Verified) -> str:
    result = f"Not rebalanced: {plural(len(group.findings), 'finding')}."
    if group.rebalanced:
        result = "Rebalanced: every partition has an owner that is a registered thread."
    elif group.rebalanced is None:
        result = "Nothing to verify: no member subscribes to a partition that exists."
    return "\n".join([*problems(group.findings, _SHOWN), f"group {group.group}: {result}"])


def problems(found: Sequence[Problem], most: int) -> Iterator[str]:
    """By kind, with the node of each and what is wrong with it."""
    for kind, same in groupby(found, key=lambda each: each.id):
        of_kind = list(same)
        yield from wrap(f"{ADVICE[kind].title} ({len(of_kind)}):", WIDTH, subsequent_indent="  ")
        for each in of_kind[:most]:
            yield f"  {each.path}"
            yield from wrap(each.text, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if (more := len(of_kind) - most) > 0:
            yield f"  … and {more} more, all of them with -o json"


def unexamined(not_asked: Sequence[str]) -> Iterator[str]:
    if not_asked:
        yield "Not examined:"
    for each in not_asked:
        yield from wrap(each, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def verdict(group: Examined | GroupDescription, healthy: str) -> str:
    match group.health:
        case "healthy":
            return f"Healthy: {healthy}."
        case "unhealthy":
            return f"Not healthy: {plural(len(group.findings), 'finding')}."
    return "Not examined: nothing is known to be wrong, and not everything could be asked."


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
