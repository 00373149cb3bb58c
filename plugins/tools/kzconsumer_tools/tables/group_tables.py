"""Groups as text: a list, one group with members and partitions, its lag, its problems, the preview of a change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap

from kzconsumer.display import count, moment, plural, span
from kzconsumer.lag.partition import Reason
from kzconsumer.lag.totals import age_text, lag_text, reasons
from kzconsumer.registry.paths import BROKER_TOPICS, is_number
from kzconsumer_tools.groups.advice import ADVICE, Examined, Problem
from kzconsumer_tools.groups.diagnosis import RepairResult, Verified
from kzconsumer_tools.groups.group_description import (
    AssignmentPreview,
    Change,
    DescribedPartition,
    GroupDescription,
    PreviewedPartition,
)
from kzconsumer_tools.groups.group_lag import GroupLag, GroupSummary, LagRow, remarks, sums_of
from kzconsumer_tools.groups.group_nodes import OwnerKind
from kzconsumer_tools.tables.text import WIDTH, columns, dash, next_step_line, runs, sentence, short_thread

# Only nodes' paths may exceed the width.

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
    """By kind, with what is wrong and the nodes of which that is true: `.../offsets/orders/0-3, 7` is five nodes."""
    for kind, same in groupby(found, key=lambda each: each.id):
        of_kind = list(same)
        yield from wrap(f"{ADVICE[kind].title} ({len(of_kind)}):", WIDTH, subsequent_indent="  ")
        together: dict[str, list[str]] = {}
        for each in of_kind:
            together.setdefault(each.text, []).append(each.path)
        for text, nodes in list(together.items())[:most]:
            yield from (f"  {line}" for line in _nodes_together(nodes))
            yield from wrap(text, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if more := sum(len(nodes) for nodes in list(together.values())[most:]):
            yield f"  … and {more} more, all of them with -o json"


def _nodes_together(nodes: Sequence[str]) -> Iterator[str]:
    """Partitions share the line of their topic; a topic whose name is a number does not."""
    numbered: dict[str, list[int]] = {}
    for node in nodes:
        parent, _, name = node.rpartition("/")
        if is_number(name) and parent != BROKER_TOPICS:
            numbered.setdefault(parent, []).append(int(name))
        else:
            yield node
    for parent, numbers in numbered.items():
        first, *more = wrap(runs(sorted(numbers)), WIDTH)
        yield f"{parent}/{first}"
        yield from (f"  {line}" for line in more)


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


_LONGEST_MEMBERS = 24
_FINDINGS_SHOWN = 5

_OWNER_KINDS: dict[OwnerKind | None, str] = {
    None: "",
    "member": "",
    "unregistered": "unregistered",
    "other_session": "old session",
    "persistent": "persistent",
}


def list_table(groups: Sequence[GroupSummary], *, wide: bool = False, chosen: bool = False) -> str:
    """`chosen`: of all groups, by options."""
    if not groups:
        return "No group matches." if chosen else "There are no groups."
    rows = [("MEMBERS", "TOPICS", "OWNED", "LAG", "BEHIND", "LAST COMMIT", "GROUP", "", "ITS TOPICS")]
    for each in groups:
        if each.not_read:
            rows.append(("-", "-", "-", "-", "-", "-", each.group, each.not_read, "-"))
            continue
        numbers = _kinds(each), str(len(each.topics)), str(each.owned)
        more = _least(count(each.lag_at_least), each.unknown), _least(span(each.seconds_at_least), each.unknown_seconds)
        notes = [f"{plural(sum(each.unknown.values()), 'partition')} unknown: {reasons(dict(each.unknown))}"]
        notes = notes if each.unknown else []
        without = {why: n for why, n in each.unknown_seconds.items() if why not in each.unknown}
        notes += [f"age of {plural(sum(without.values()), 'partition')} unknown: {reasons(without)}"] if without else []
        notes += ["nodes of another client"] if each.foreign and each.partitions else []
        notes += [f"{plural(each.stalled, 'partition')} stalled"] if each.stalled else []
        notes += [f"{count(each.lost)} lost"] if each.lost else []
        notes += [f"{count(each.gone)} of what is gone"] if each.gone else []
        commit = moment(each.last_commit)
        rows.append((*numbers, *more, commit, each.group, ", ".join(notes), ", ".join(each.topics) or "-"))
    return "\n".join(line.rstrip() for line in columns(rows, right={1, 2, 3, 4}, wide=wide, more=1))


def _least(known: str, unknown: Mapping[Reason, int]) -> str:
    """`>=270` if not all is known."""
    return known if not unknown else f">={known}" if known not in ("-", "0", "0 s") else "-"


def _kinds(group: GroupSummary) -> str:
    numbers = {"ours": group.ours, "original": group.original, "unreadable": group.unreadable}
    return ", ".join(f"{number} {kind}" for kind, number in numbers.items() if number) or "none"


def describe_table(group: GroupDescription, *, wide: bool = False) -> str:
    """Members get short names, m1, m2, ...: `m1-0` is stream 0 of the first. In a wide table, partitions do not."""
    names = {member.consumer: f"m{number}" for number, member in enumerate(group.members, 1)}
    lines = [f"group {group.group}: {plural(len(group.members), 'member')}"]
    if group.members:
        lines += ["", *_member_rows(group, names, wide), "", *_subscription_rows(group)]
    if group.partitions:
        lines += ["", *(_wide_partition_rows(group) if wide else _partition_rows(group, names))]
    others = [each for each in group.findings if each.id not in ("unowned_partition", "topic_missing")]
    lines += ["", *_remarks(group, names), *problems(others, _FINDINGS_SHOWN)]
    lines += [*unexamined(group.not_asked), verdict(group, _healthy(group))]
    return "\n".join(lines)


def _member_rows(group: GroupDescription, names: dict[str, str], wide: bool) -> Iterator[str]:
    rows = [("MEMBER", "KIND", "STREAMS", "OWNS", "CONSUMER ID", "SINCE", "SESSION")]
    for each in group.members:
        kind = "ours" if each.ours else "original"
        facts = kind, str(each.streams), str(each.owns), each.consumer, moment(each.since), each.session or "-"
        rows.append((names[each.consumer], *facts))
    return columns(rows, right={2, 3}, wide=wide, more=2)


def _subscription_rows(group: GroupDescription) -> Iterator[str]:
    """Members with the same subscription share a row; long subscriptions continue below."""
    same: dict[tuple[str, str], list[int]] = {}
    for number, each in enumerate(group.members, 1):
        topics = ", ".join(f"{topic} {streams}" for topic, streams in sorted(each.subscription.items()))
        same.setdefault((each.pattern, topics), []).append(number)
    rows = [("MEMBERS", "PATTERN", "SUBSCRIBES TO (STREAMS)")]
    for (pattern, topics), numbers in same.items():
        members = "m" + runs(numbers).replace("-", "-m").replace(", ", ", m")
        lines = wrap(topics, WIDTH - _LONGEST_MEMBERS - len("black_list") - 4, break_on_hyphens=False)
        first, *more = lines or ["nothing"]
        rows += [(members, pattern, first), *(("", "", text) for text in more)]
    return columns(rows, right=())


def _partition_rows(group: GroupDescription, names: dict[str, str]) -> Iterator[str]:
    """Consecutive partitions with the same values share a row."""
    rows = [("OWNER", "", "PARTITIONS", "STORED", "TOPIC", "")]
    for (topic, owner, kind, stored, why), run in groupby(group.partitions, key=_shown):
        rows.append((short_thread(owner, names), kind, runs([each.partition for each in run]), stored, topic, why))
    return (line.rstrip() for line in columns(rows, right={2, 3}))


def _shown(each: DescribedPartition) -> tuple[str, str | None, str, str, str]:
    kind = _OWNER_KINDS[each.owner_kind] or ("" if each.exists else "no partition")
    return each.topic, each.owner, kind, dash(each.stored), each.why or ""


def _wide_partition_rows(group: GroupDescription) -> Iterator[str]:
    """A row for each partition, with the owner's whole name."""
    rows = [("OWNER", "", "PARTITION", "STORED", "TOPIC", "", "OWNED SINCE")]
    for each in group.partitions:
        topic, owner, kind, stored, why = _shown(each)
        rows.append((owner or "-", kind, str(each.partition), stored, topic, why, moment(each.owned_since)))
    return columns(rows, right={2, 3})


def _remarks(group: GroupDescription, names: dict[str, str]) -> Iterator[str]:
    unowned = groupby((each for each in group.partitions if each.unowned), key=lambda each: each.topic)
    remarks = {
        f"Partitions without owner ({group.unowned})": [
            f"{topic} {runs([each.partition for each in run])}" for topic, run in unowned
        ],
        f"Streams without partition ({len(group.idle_streams)})": [
            short_thread(each.thread, names) + (f" of {each.topic}" if each.topic else "")
            for each in group.idle_streams
        ],
        f"Topics that do not exist ({len(group.missing_topics)})": list(group.missing_topics),
    }
    for what, which in remarks.items():
        if which:
            yield from sentence(f"{what}: {'; '.join(which)}")


def _healthy(group: GroupDescription) -> str:
    if not group.members:
        return "no members, and nothing is left to read"
    wanted = any(each.exists and each.subscribed for each in group.partitions)
    return "every partition has an owner that is a member" if wanted else "no partition to own"


def lag_table(group: GroupLag, *, wide: bool = False) -> str:
    """A row for each partition, and the sum; `-` is unknown, for the reason in the row."""
    rows = [("PARTITION", "STORED", "END", "LAG", "BEHIND", "TOPIC", "", "START", "SECONDS", "LEADER", "HOST", "OWNER")]
    for each in group.partitions:
        leader = f"{each.leader} ({each.leader_address})" if each.leader_address else "-"
        offsets = str(each.partition), dash(each.stored), dash(each.log_end)
        more = dash(each.log_start), dash(each.seconds), leader, each.host or "-", each.owner or "-"
        rows.append((*offsets, count(each.lag), span(each.seconds), each.topic, ", ".join(_lag_notes(each)), *more))
    sums = sums_of(group)
    total = plural(sums.partitions, "partition")
    figures = "lag unknown" if sums.empty else f"lag {lag_text(sums)}, behind {age_text(sums)}"
    lines = [f"group {group.group}: {figures}; {total}"]
    if group.partitions:
        table = columns(rows, right={0, 1, 2, 3, 4, 7, 8}, wide=wide, more=5)
        lines += ["", *(line.rstrip() for line in table)]
    said = [line for remark in remarks(group) for line in sentence(remark)]
    lines += ["", *said] if said else []
    stuck = [*problems(group.findings, _FINDINGS_SHOWN), *unexamined(group.not_asked)]
    lines += ["", *stuck] if stuck else []
    return "\n".join(lines)


def _lag_notes(each: LagRow) -> Iterator[str]:
    if each.lost:
        yield f"{count(each.lost)} lost"
    if each.why is not None:
        yield each.why
    elif each.why_seconds is not None:
        yield each.why_seconds


_CHANGES: dict[Change, str] = {"stays": "", "stream": "stream", "moves": "MOVES", "claimed": "claimed"}


def table(plan: AssignmentPreview) -> str:
    """Members get short names: m1, m2, ... for present ones, +1, +2, ... for those that join."""
    names = _names(plan)
    joining = sum(member.joins for member in plan.members)
    here = len(plan.members) - joining
    lines = [f"group {plan.group}, assignor {plan.assignor}: {plural(here, 'member')}, {joining} joining"]
    if plan.members:
        lines += ["", *_assigned_members(plan, names)]
    if plan.partitions:
        lines += ["", *_assigned_partitions(plan, names)]
    lines += ["", *_summary(plan, names)]
    return "\n".join(lines)


def _names(plan: AssignmentPreview) -> dict[str, str]:
    names: dict[str, str] = {}
    for joins, sign in ((False, "m"), (True, "+")):
        of_kind = [member.consumer for member in plan.members if member.joins is joins]
        names |= {consumer: f"{sign}{number}" for number, consumer in enumerate(of_kind, 1)}
    return names


def _assigned_members(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
    head = ("MEMBER", "STREAMS", "OWNS", "NOW", "THEN", "CONSUMER ID")
    rows = [
        (names[each.consumer], str(each.streams), str(each.owns), str(each.now), str(each.then), each.consumer)
        for each in plan.members
    ]
    return columns([head, *rows], right={1, 2, 3, 4})


def _assigned_partitions(plan: AssignmentPreview, names: dict[str, str]) -> Iterator[str]:
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
