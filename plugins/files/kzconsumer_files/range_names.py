"""How a target directory names its owner, its ranges and their files; the form of a ledger entry; ranges that overlap.

A name holds the whole identity of a range that is not in the target's owner marker (cluster, group, sink), and never a
batch number or an attempt: two writers of one range use the same names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import msgspec

from kzconsumer.file_names import is_short, named_after, short
from kzconsumer.model import OffsetRange, RangeIdentity
from kzconsumer_files.fold_plan import Span

_RANGE: Final = re.compile(r"\+?([^+]+\+\d+\+-?[0-9a-f]+\.\d+)\+(\d+)\+(\d+)(?=[.+]|$)")
_IGNORED: Final = "_."
# With ".json" behind it, a longer name of a range is no file name: no ledger has one.
_LONGEST_RANGE: Final = 250


class NotOurs(Exception):
    """The destination belongs to another group, or holds files that no group of this program wrote."""


class AnyRange(Protocol):
    """The fields of a `RangeIdentity`."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def first(self) -> int: ...
    @property
    def until(self) -> int: ...


class RecordRange(AnyRange, Protocol):
    """A range whose records are at hand."""

    @property
    def records(self) -> int: ...
    @property
    def range(self) -> OffsetRange: ...


class TargetOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose ranges a destination holds: without it offsets have no meaning."""

    version: int = 1
    cluster: str
    group: str
    sink: str = "spark"

    def __str__(self) -> str:
        return f"group {self.group} of cluster {self.cluster or '(unnamed)'}, sink {self.sink}"

    def may_have_been(self, former: TargetOwner) -> bool:
        """Whether `former` may be the same owner: only the cluster differs, and the former one is an address.

        Brokers before Kafka 0.10.1 give a cluster no id, so its address stands for it.
        """
        return ":" in former.cluster != self.cluster and msgspec.structs.replace(former, cluster=self.cluster) == self


class Marker(TargetOwner, frozen=True, kw_only=True):
    """The owner as recorded in a target directory. `id` is made with the directory and identifies it."""

    id: str

    @property
    def owner(self) -> TargetOwner:
        return TargetOwner(version=self.version, cluster=self.cluster, group=self.group, sink=self.sink)


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One settled range: `records_in` from Kafka, `records_out` rows that readers see in `files`.

    `attempt` names the directory in which the files were staged; `staged` has their names in it, if they do not follow
    from those of the range. A range that was `kept_aside` has no files: its writer failed, its records are in the
    sink's quarantine, and it is never published.
    """

    version: int = 1
    topic: str
    partition: int
    incarnation: str
    epoch: int
    first: int
    until: int
    records_in: int
    records_out: int
    records_quarantined: int
    files: tuple[str, ...]
    attempt: str
    staged: tuple[str, ...] = ()
    kept_aside: bool = False

    @property
    def identity(self) -> RangeIdentity:
        incarnation = int(self.incarnation.removeprefix("0x"), 16)
        return RangeIdentity(self.topic, self.partition, incarnation, self.epoch, self.first, self.until)

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.topic, self.partition, self.first, self.until)


def ledger_entry(
    part: RecordRange,
    rows: int,
    quarantined: int,
    files: tuple[str, ...],
    attempt: str,
    staged: tuple[str, ...] = (),
) -> LedgerEntry:
    return _entry(part, part.records, rows, quarantined, files, attempt, staged)


def aside_entry(part: AnyRange, records: int, attempt: str) -> LedgerEntry:
    return _entry(part, records, 0, 0, (), attempt, kept_aside=True)


def _entry(
    part: AnyRange,
    records: int,
    rows: int,
    quarantined: int,
    files: tuple[str, ...],
    attempt: str,
    staged: tuple[str, ...] = (),
    *,
    kept_aside: bool = False,
) -> LedgerEntry:
    return LedgerEntry(
        **{**identity_of(part)._asdict(), "incarnation": f"0x{part.incarnation:x}"},
        records_in=records,
        records_out=rows,
        records_quarantined=quarantined,
        files=files,
        attempt=attempt,
        staged=staged,
        kept_aside=kept_aside,
    )


def identity_of(part: AnyRange) -> RangeIdentity:
    return RangeIdentity(part.topic, part.partition, part.incarnation, part.epoch, part.first, part.until)


def range_name(part: AnyRange) -> str:
    """`<topic>+<partition>+<incarnation hex>.<epoch>+<first, 20 digits>+<until, 20 digits>`; topics have no `+`.

    A topic that is too long for that is shortened: see `kzconsumer.file_names`.
    """
    return named_after(part.topic, lambda topic: _range_name(topic, part), _LONGEST_RANGE)


def range_names(part: AnyRange) -> tuple[str, ...]:
    """The names that a range may have where no file system limits them: `range_name`, after the whole one.

    Object stores, and logs of tables, had whole names of long topics before topics were shortened. Writers use
    `range_name`, and go on with what has the other.
    """
    return tuple(dict.fromkeys((_range_name(part.topic, part), range_name(part))))


def _range_name(topic: str, part: AnyRange) -> str:
    return f"{topic}+{part.partition}+{part.incarnation:x}.{part.epoch}+{part.first:020d}+{part.until:020d}"


def data_file(part: AnyRange, extension: str = "parquet", number: int = 0) -> str:
    """The name of a range's file within a directory; the second and later ones carry a number.

    A name begins with `+` if the topic's begins with a character that makes readers ignore a file.
    """
    visible = "+" if part.topic[0] in _IGNORED else ""
    further = f"+{number}" if number else ""
    return named_after(part.topic, lambda topic: f"{visible}{_range_name(topic, part)}{further}.{extension}")


def scoped_file(part: AnyRange, scope: str) -> str:
    """The name of a file about a range of one group."""
    return named_after(part.topic, lambda topic: f"{scope}+{_range_name(topic, part)}")


def scoped_files(part: AnyRange, scope: str) -> tuple[str, ...]:
    """All names that such a file may have: see `range_names`."""
    return tuple(dict.fromkeys((f"{scope}+{_range_name(part.topic, part)}", scoped_file(part, scope))))


def unique_file(part: AnyRange, attempt: str, number: int) -> str:
    """The name of a range's file of one attempt, for tables, which list their files. Without `+`."""
    return named_after(
        part.topic, lambda topic: f"{_range_name(topic, part).replace('+', '-')}-{attempt}-{number}.parquet"
    )


def staged_file(topic: str, partition: int, number: int) -> str:
    """The name of a range's file within the directory of an attempt."""
    return named_after(topic, lambda topic: f"{topic}+{partition}+{number}")


def scope(cluster: str, group: str, sink: str) -> str:
    """16 hexadecimal digits that no other group or sink has."""
    return fingerprint(cluster, group, sink)


def partition_name(part: AnyRange, scope: str) -> str:
    """Shared by all ranges of a partition, incarnation and epoch of one group, and by no others."""
    return f"{scope}+{part.topic}+{part.partition}+{part.incarnation:x}.{part.epoch}"


def fingerprint(*what: object) -> str:
    """A hash, 16 hexadecimal digits. That of a destination covers all settings that decide which rows it gets."""
    return hashlib.blake2b(msgspec.json.encode(what), digest_size=8).hexdigest()


class NamedRange(NamedTuple):
    """A parsed name of a range or of one of its files. A line is a partition with its incarnation and epoch."""

    line: str
    span: Span

    @property
    def alias(self) -> str:
        """The same for all names of a line, whether the topic is shortened in them or not."""
        topic, rest = self.line.split("+", 1)
        return f"{topic if is_short(topic) else short(topic)}+{rest}"

    def identity(self, topic: str = "") -> RangeIdentity:
        """`topic` is needed if it is shortened in the name."""
        named, partition, rest = self.line.split("+")
        assert topic or not is_short(named), f"{self.line} does not say its topic"
        incarnation, epoch = rest.rsplit(".", 1)
        return RangeIdentity(topic or named, int(partition), int(incarnation, 16), int(epoch), *self.span)


def named(name: str) -> NamedRange:
    """Parse a name made by `range_name`."""
    found = parsed(name)
    assert found is not None, name
    return found


def parsed(name: str) -> NamedRange | None:
    """None if `name` is not that of a range."""
    found = _RANGE.match(name)
    return None if found is None else NamedRange(found[1], Span(int(found[2]), int(found[3])))


# Ranges of one ledger must not overlap. A range with other bounds has another name, so a look-up by name does not find
# ranges that it overlaps. Claim records prevent such ranges; this check catches offsets that were set back where no
# claim record applies (another fingerprint, a record of an earlier version). Destinations check before they decide to
# publish. Ranges of later epochs count, too: offsets and epoch may have gone back with ZooKeeper.


def line_epochs(lines: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """The epochs of lines, each with its line, by partition and incarnation."""
    found: dict[str, list[tuple[int, str]]] = {}
    for line in lines:
        of, _, epoch = line.rpartition(".")
        found.setdefault(of, []).append((int(epoch), line))
    return found


def lines_before(line: str, epochs: Mapping[str, list[tuple[int, str]]]) -> list[str]:
    """Those lines in `epochs` that are of an earlier epoch of the same partition and incarnation."""
    of, _, epoch = line.rpartition(".")
    return [earlier for each, earlier in epochs.get(of, ()) if each < int(epoch)]


_WENT_BACK: Final = (
    "The group's offsets went back: by a tool that raises no reset epoch, a restored ZooKeeper or deleted nodes"
)


class RangeOverlap(OSError):
    """A range overlaps a published one and is not the same."""

    def __init__(self, part: AnyRange, found: str, end: int, why: str = _WENT_BACK) -> None:
        """`found` says what is published, `end` is the end of all of it."""
        # The tool asks no destination: for it a plan that reaches beyond `end` may be published. This one cannot be.
        republish = " --republish" if part.until > end else ""
        super().__init__(
            f"{part.topic}-{part.partition} [{part.first}, {part.until}) of epoch {part.epoch} is not published:"
            f" {found}. {why}. To continue after the published ranges: "
            f"kzconsumer offsets reset GROUP --to-offset {end} --topic {part.topic}:{part.partition}"
            f" --execute{republish}"
        )


def overlapping(other: Span, which: str = "") -> str:
    return f"it overlaps [{other.first}, {other.until}){which}, which is"


def require_apart(
    part: AnyRange,
    others: Iterable[Span],
    folded: Iterable[Span] = (),
    later: Iterable[Span] = (),
    end: int = 0,
) -> None:
    """Raises RangeOverlap. `others` and `folded` are published under topic, partition, incarnation and epoch of `part`.

    A range within a folded span counts as published: the bounds of the ranges in a folded span are unknown. `later` are
    published under later epochs: the group's nodes are of before a reset, and its records would be there twice. `end`
    is that of all published ranges if it is beyond those of these.
    """
    own, others, folded, later = Span(part.first, part.until), list(others), list(folded), list(later)
    if any(other.first <= part.first and part.until <= other.until for other in folded):
        return
    end = max((end, *(each.until for each in (*others, *folded, *later))))
    for other in (*others, *folded):
        if other != own and other.overlaps(own):
            raise RangeOverlap(part, overlapping(other), end)
    for other in later:
        if other.overlaps(own):
            raise RangeOverlap(part, overlapping(other, " of a later epoch"), end)
