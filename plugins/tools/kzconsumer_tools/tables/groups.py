"""Groups as text: a list, one group with members and partitions, or its lag."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from kzconsumer.figures import count, moment, plural, span
from kzconsumer_tools.groups.description import DescribedPartition, GroupDescription, GroupSummary
from kzconsumer_tools.groups.lag import GroupLag
from kzconsumer_tools.groups.nodes import FindingKind, OwnerKind
from kzconsumer_tools.tables.text import WIDTH, columns, dash, runs, sentence, short_thread

_LONGEST_MEMBERS = 24
_FINDINGS_SHOWN = 5

_OWNER_KINDS: dict[OwnerKind | None, str] = {
    None: "",
    "member": "",
    "unregistered": "unregistered",
    "other_session": "old session",
    "persistent": "persistent",
}
_TITLES: dict[FindingKind, str] = {
    "other_session_owner": "Owner nodes of an earlier session of the member",
    "persistent_owner": "Owner nodes that no session holds",
    "persistent_registration": "Registrations that no session holds",
    "planned_range": "Planned ranges without owner",
    "unknown_claim_record": "Claim records that this version cannot read",
    "unknown_node": "Nodes that belong to no partition",
    "unreadable_offset": "Offsets that cannot be read",
    "unreadable_registration": "Registrations that cannot be read",
    "unreadable_topic": "Topics that cannot be read",
    "unregistered_owner": "Owners that are not registered",
    "unusable_pattern": "Patterns that cannot be used",
}


def list_table(groups: Sequence[GroupSummary], *, wide: bool = False) -> str:
    if not groups:
        return "There are no groups."
    rows = [("MEMBERS", "TOPICS", "OWNED", "GROUP", "ITS TOPICS")]
    rows += [
        (_kinds(each), str(len(each.topics)), str(each.owned), each.group, ", ".join(each.topics) or "-")
        for each in groups
    ]
    return "\n".join(columns(rows, right={1, 2}, wide=wide, more=1))


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
    lines += ["", *_remarks(group, names), *_findings(group), _verdict(group)]
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
    rows = [("OWNER", "", "PARTITIONS", "STORED", "TOPIC")]
    for (topic, owner, kind, stored), run in groupby(group.partitions, key=_shown):
        rows.append((short_thread(owner, names), kind, runs([each.partition for each in run]), stored, topic))
    return columns(rows, right={2, 3})


def _shown(each: DescribedPartition) -> tuple[str, str | None, str, str]:
    kind = _OWNER_KINDS[each.owner_kind] or ("" if each.exists else "no partition")
    return each.topic, each.owner, kind, dash(each.stored)


def _wide_partition_rows(group: GroupDescription) -> Iterator[str]:
    """A row for each partition, with the owner's whole name."""
    rows = [("OWNER", "", "PARTITION", "STORED", "TOPIC", "OWNED SINCE")]
    for each in group.partitions:
        topic, owner, kind, stored = _shown(each)
        rows.append((owner or "-", kind, str(each.partition), stored, topic, moment(each.owned_since)))
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


def _findings(group: GroupDescription) -> Iterator[str]:
    for kind, found in groupby(group.findings, key=lambda each: each.kind):
        findings = list(found)
        yield f"{_TITLES[kind]} ({len(findings)}):"
        for each in findings[:_FINDINGS_SHOWN]:
            yield f"  {each.path}"
            yield from wrap(each.reason, WIDTH, initial_indent="    ", subsequent_indent="    ")
        if (more := len(findings) - _FINDINGS_SHOWN) > 0:
            yield f"  … and {more} more, all of them with -o json"


def _verdict(group: GroupDescription) -> str:
    wanted = sum(each.exists and each.subscribed for each in group.partitions)
    if group.health == "empty":
        return "Empty: the group has no members."
    if group.health == "healthy":
        return "Healthy: every partition has an owner that is a member." if wanted else "Healthy: no partition to own."
    wrong = [f"{group.unowned} of {plural(wanted, 'partition')} without owner"] if group.unowned else []
    wrong += [f"{plural(len(group.findings), 'finding')} above"] if group.findings else []
    return f"Not healthy: {', '.join(wrong)}."


def lag_table(group: GroupLag, *, wide: bool = False) -> str:
    """A row for each partition, and the sum; `-` is unknown."""
    rows = [("PARTITION", "STORED", "END", "LAG", "BEHIND", "TOPIC", "START", "SECONDS", "LEADER", "HOST", "OWNER")]
    for each in group.partitions:
        leader = f"{each.leader} ({each.leader_address})" if each.leader_address else "-"
        offsets = str(each.partition), dash(each.stored), dash(each.log_end)
        more = dash(each.log_start), dash(each.seconds), leader, each.host or "-", each.owner or "-"
        rows.append((*offsets, count(each.lag), span(each.seconds), each.topic, *more))
    unknown = f", {group.unknown} unknown" if group.unknown else ""
    total = f"{plural(len(group.partitions), 'partition')}{unknown}"
    lines = [f"group {group.group}: lag {count(group.lag)}, behind {span(group.seconds)}; {total}"]
    if group.partitions:
        lines += ["", *columns(rows, right={0, 1, 2, 3, 4, 6, 7}, wide=wide, more=5)]
    return "\n".join(lines)
