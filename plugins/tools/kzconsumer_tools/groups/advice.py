"""What each kind of problem of a group means, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from shlex import quote
from types import MappingProxyType
from typing import Literal

import msgspec

from kzconsumer.lag.totals import Verdict, verdict
from kzconsumer_tools.groups.group_nodes import FindingKind

SymptomKind = (
    FindingKind
    | Literal[
        "different_assignors",
        "no_leader",
        "no_members",
        "offset_after_log",
        "offset_before_log",
        "original_member",
        "owner_not_as_computed",
        "recreated_topic",
        "stalled",
        "topic_gone",
        "topic_missing",
        "unowned_partition",
    ]
)


class Advice(msgspec.Struct, frozen=True):
    """`title` is for people; `command` names `{group}`; `see` is an anchor of docs/troubleshooting.md."""

    title: str
    command: str
    see: str

    def command_for(self, group: str) -> str:
        return f"kzconsumer {self.command.format(group=quote(group))}"

    @property
    def page(self) -> str:
        return f"troubleshooting.html#{self.see}"


_DESCRIBE, _CLEAN = "groups describe {group}", "groups clean {group}"
_OFFSETS, _RESET = "offsets show {group}", "offsets reset {group} --all-topics --to-current"
_UNOWNED, _RANGE = "partitions-without-owner", "offsets-out-of-range-or-changed"

ADVICE: Mapping[SymptomKind, Advice] = MappingProxyType(
    {
        "different_assignors": Advice(
            "Members run different assignors: give all of them the same [group] assignor", _DESCRIBE, _UNOWNED
        ),
        "no_leader": Advice(
            "Partitions without leader: nobody can read them", "cluster describe", "no-partition-leader"
        ),
        "no_members": Advice("No members: nobody reads what is left", _DESCRIBE, _UNOWNED),
        "offset_after_log": Advice(
            "Offsets after the end of a truncated or recreated log: `offsets reset` changes them", _RESET, _RANGE
        ),
        "offset_before_log": Advice(
            "Offsets before the start of their log: `[offsets] reset` says where members continue", _OFFSETS, _RANGE
        ),
        "other_session_owner": Advice(
            "Owner nodes of an earlier session: they disappear when it expires", _DESCRIBE, _UNOWNED
        ),
        "owner_not_as_computed": Advice(
            "Owners that the assignor does not compute: a member has another view or assignor", _DESCRIBE, _UNOWNED
        ),
        "persistent_owner": Advice("Owner nodes that no session holds: `groups clean` removes them", _CLEAN, _UNOWNED),
        "persistent_registration": Advice(
            "Registrations that no session holds: `groups clean` removes them", _CLEAN, _UNOWNED
        ),
        "planned_range": Advice(
            "Planned ranges without owner: start a member with that destination", _OFFSETS, _UNOWNED
        ),
        "recreated_topic": Advice(
            "Topics that were deleted and created again: `[offsets] reset` or `offsets reset` says where to begin",
            _OFFSETS,
            _RANGE,
        ),
        "original_member": Advice(
            "Original members, which stop when the cluster leaves ZooKeeper: replace them first", _DESCRIBE, _UNOWNED
        ),
        "stalled": Advice(
            "Partitions that stand still: only the owner knows why (its status page, `top`)",
            "lag {group}",
            "a-partition-is-stalled",
        ),
        "topic_gone": Advice(
            "Offsets of partitions that do not exist: `groups clean` removes them", _CLEAN, "offsets-of-deleted-topics"
        ),
        "topic_missing": Advice("Topics that are subscribed to and do not exist", "topics list", "nothing-to-do"),
        "unknown_claim_record": Advice(
            "Claim records that this version cannot read: written by a newer one", _DESCRIBE, _UNOWNED
        ),
        "unknown_node": Advice("Nodes that belong to no partition", _DESCRIBE, _UNOWNED),
        "unowned_partition": Advice(
            "Partitions without owner: other problems listed here may be the cause", _DESCRIBE, _UNOWNED
        ),
        "unreadable_offset": Advice("Offsets that cannot be read: `offsets reset` replaces them", _OFFSETS, _RANGE),
        "unreadable_registration": Advice(
            "Registrations that cannot be read: they block every rebalance; stop that member", _DESCRIBE, _UNOWNED
        ),
        "unreadable_topic": Advice("Topics that cannot be read", "topics list", _UNOWNED),
        "unregistered_owner": Advice(
            "Owners that are not registered: they disappear when their session expires", _DESCRIBE, _UNOWNED
        ),
        "unusable_pattern": Advice(
            "Patterns that cannot be used: they block every rebalance; stop that member", _DESCRIBE, _UNOWNED
        ),
    }
)


class Symptom(msgspec.Struct, frozen=True, order=True):
    """One problem and the node that shows it. Its kinds: `ADVICE`."""

    kind: SymptomKind
    path: str
    reason: str


class Problem(msgspec.Struct, frozen=True):
    """A symptom as it is shown. `command`: what shows more, or removes it; `see`: the section about it."""

    id: SymptomKind
    path: str
    text: str
    command: str
    see: str


class Examined(msgspec.Struct, frozen=True):
    """The result of `verify` and `doctor`. `not_asked`: what could not be examined, a sentence each: without findings
    it leaves the health unknown."""

    group: str
    health: Verdict
    findings: tuple[Problem, ...]
    not_asked: tuple[str, ...]


def examined(group: str, symptoms: Sequence[Symptom], not_asked: Sequence[str] = ()) -> Examined:
    found = []
    for each in symptoms:
        advice = ADVICE[each.kind]
        found.append(Problem(each.kind, each.path, each.reason, advice.command_for(group), advice.page))
    return Examined(group, verdict(found, not_asked), tuple(found), tuple(not_asked))
