"""Groups as text: a list, one group with members and partitions, or its lag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap

from kzconsumer.figures import count, moment, plural, span
from kzconsumer.lag.partition import Reason
from kzconsumer.lag.totals import age_text, lag_text, reasons
from kzconsumer_tools.groups.description import DescribedPartition, GroupDescription
from kzconsumer_tools.groups.lag import GroupLag, LagRow, remarks, sums_of
from kzconsumer_tools.groups.nodes import OwnerKind
from kzconsumer_tools.offsets.group_summary import GroupSummary
from kzconsumer_tools.tables.groups_repair import problems, unexamined, verdict
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


def list_table(groups: Sequence[GroupSummary], *, wide: bool = False) -> str:
    if not groups:
        return "There are no groups."
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
    lines = [f"group {group.group}: lag {lag_text(sums)}, behind {age_text(sums)}; {total}"]
    if group.partitions:
        table = columns(rows, right={0, 1, 2, 3, 4, 7, 8}, wide=wide, more=5)
        lines += ["", *(line.rstrip() for line in table)]
    said = [line for remark in remarks(group) for line in sentence(remark)]
    lines += ["", *said] if said else []
    return "\n".join(lines)


def _lag_notes(each: LagRow) -> Iterator[str]:
    if each.lost:
        yield f"{count(each.lost)} lost"
    if each.why is not None:
        yield each.why
    elif each.why_seconds is not None:
        yield each.why_seconds
