"""The assignment preview as text: members, partitions in runs, and a summary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from kzconsumer.figures import plural
from kzconsumer_tools.groups.assignment_preview import AssignmentPreview, Change, PreviewedPartition
from kzconsumer_tools.tables.text import columns, runs, sentence, short_thread

_CHANGES: dict[Change, str] = {"stays": "", "stream": "stream", "moves": "MOVES", "claimed": "claimed"}


def table(plan: AssignmentPreview) -> str:
    """Members get short names: m1, m2, ... for present ones, +1, +2, ... for those that join."""
    names = _names(plan)
    joining = sum(member.joins for member in plan.members)
    here = len(plan.members) - joining
    lines = [f"group {plan.group}, assignor {plan.assignor}: {plural(here, 'member')}, {joining} joining"]
    if plan.members:
        lines += ["", *_member_rows(plan, names)]
    if plan.partitions:
        lines += ["", *_partition_rows(plan, names)]
    lines += ["", *_summary(plan, names)]
    return "\n".join(lines)


def _names(plan: AssignmentPreview) -> dict[str, str]:
    names: dict[str, str] = {}
    for joins, sign in ((False, "m"), (True, "+")):
        of_kind = [member.consumer for member in plan.members if member.joins is joins]
        names |= {consumer: f"{sign}{number}" for number, consumer in enumerate(of_kind, 1)}
    return names


def _member_rows(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
    head = ("MEMBER", "STREAMS", "OWNS", "NOW", "THEN", "CONSUMER ID")
    rows = [
        (names[each.consumer], str(each.streams), str(each.owns), str(each.now), str(each.then), each.consumer)
        for each in plan.members
    ]
    return columns([head, *rows], right={1, 2, 3, 4})


def _partition_rows(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
    """Consecutive partitions with the same owners share a row."""
    rows = [("OWNER", "THEN", "", "PARTITIONS", "TOPIC")]
    for (topic, owner, then, change), run in groupby(plan.partitions, key=_owners):
        span = runs([each.partition for each in run])
        rows.append((short_thread(owner, names), short_thread(then, names), _CHANGES[change], span, topic))
    return columns(rows, right={3})


def _owners(each: PreviewedPartition) -> tuple[str, str | None, str, Change]:
    return each.topic, each.owner, each.then, each.change


def _summary(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
    changes = plan.changes
    yield (
        f"Of {plural(len(plan.partitions), 'partition')}, {changes['moves']} would move to another member, "
        f"{changes['stream']} to another stream."
    )
    yield f"{changes['stays']} would stay where they are, and {changes['claimed']} without an owner would get one."
    if not plan.as_assigned:
        astray = sum(each.owner != each.now for each in plan.partitions)
        yield f"The present owner is not the one that {plan.assignor} computes: {plural(astray, 'partition')}."
        yield "A rebalance is in progress, or a member runs another assignor."
    if plan.idle_streams:
        idle = ", ".join(short_thread(stream, names) for stream in plan.idle_streams)
        yield from sentence(f"Streams that would get no partition ({len(plan.idle_streams)}): {idle}")
    if plan.missing_topics:
        yield from sentence(f"Topics that do not exist: {', '.join(plan.missing_topics)}")
