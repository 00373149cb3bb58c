"""The assignment preview as text: members, partitions in runs, and what it comes to, in 80 columns.

Pure. Used by `kzconsumer assign plan`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import shorten

from kzconsumer.group.assignment_preview import AssignmentPreview, Change, PreviewedPartition

WIDTH = 80
_LONGEST_THREAD = 16
_SAID: dict[Change, str] = {"stays": "", "stream": "stream", "moves": "MOVES", "claimed": "claimed"}


def table(plan: AssignmentPreview) -> str:
    """Members get short names: m1, m2, ... for those of today, +1, +2, ... for those that join."""
    names = _names(plan)
    joining = sum(member.joins for member in plan.members)
    here = len(plan.members) - joining
    lines = [_clip(f"group {plan.group}, assignor {plan.assignor}: {_count(here, 'member')}, {joining} joining", WIDTH)]
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
    return _columns([head, *rows], right={1, 2, 3, 4})


def _partition_rows(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
    """Consecutive partitions that go the same way share a row."""
    rows = [("OWNER", "THEN", "", "PARTITIONS", "TOPIC")]
    for (topic, owner, then, change), run in groupby(plan.partitions, key=_way):
        numbers = [each.partition for each in run]
        span = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        rows.append((_thread(owner, names), _thread(then, names), _SAID[change], span, topic))
    return _columns(rows, right={3})


def _way(each: PreviewedPartition) -> tuple[str, str | None, str, Change]:
    return each.topic, each.owner, each.then, each.change


def _thread(thread: str | None, names: dict[str, str]) -> str:
    if thread is None:
        return "-"
    consumer, _, number = thread.rpartition("-")
    return f"{names[consumer]}-{number}" if consumer in names else _clip(thread, _LONGEST_THREAD)


def _summary(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
    changes = plan.changes
    yield (
        f"Of {_count(len(plan.partitions), 'partition')}, {changes['moves']} would move to another member, "
        f"{changes['stream']} to another stream."
    )
    yield f"{changes['stays']} would stay where they are, and {changes['claimed']} without an owner would get one."
    if not plan.as_assigned:
        astray = sum(each.owner != each.now for each in plan.partitions)
        yield f"Owned otherwise today than {plan.assignor} has it: {_count(astray, 'partition')}."
        yield "A rebalance is under way, or a member runs another assignor (nothing tells)."
    if plan.idle_streams:
        idle = ", ".join(_thread(stream, names) for stream in plan.idle_streams)
        yield shorten(f"Streams that would get nothing ({len(plan.idle_streams)}): {idle}", WIDTH, placeholder=" …")
    if plan.missing_topics:
        yield shorten(f"Topics that do not exist: {', '.join(plan.missing_topics)}", WIDTH, placeholder=" …")


def _columns(rows: Sequence[tuple[str, ...]], right: set[int]) -> Iterator[str]:
    """The last column takes what is left of the line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    for *cells, last in rows:
        shown = [
            cell.rjust(w) if n in right else cell.ljust(w)
            for n, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        line = "  ".join(shown) + "  "
        yield line + _clip(last, WIDTH - len(line))


def _clip(text: str, width: int) -> str:
    """Long names are cut in the middle: they differ at their ends."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[-tail:]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
