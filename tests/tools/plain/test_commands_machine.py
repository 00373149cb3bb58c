"""Commands on a group without members, in a simulated cluster: what they show is so, what they change was asked for.

Without `--execute` nothing changes, and an undo file restores what there was. `servers/test_offset_commands.py` and
`servers/test_groups.py` have real servers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest

from kzconsumer.cli.main import main
from kzconsumer.logs import setup
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import (
    ClaimRecord,
    CommitMark,
    StoredPosition,
    decode_claim_record,
    encode_claim_record,
)
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import AclEntry, Create
from tests.support.extent import seeds
from tests.support.simulated.blocking import Program, blocking
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.network import CONNECT
from tests.support.simulated.partition_logs import TIMESTAMP

GROUP, OTHER = GroupPaths("g"), GroupPaths("h")
GONE = [TopicPartition("gone", 0), TopicPartition("a", 7)]
"""The cluster does not have them."""
ACLS = [(), (AclEntry(31, "sasl", "orders"), AclEntry(1, "world", "anyone"))]


class Commands:
    """The nodes of group `g`, the logs of its topics `a` and `b`, and commands that read and change them."""

    def __init__(self, group: SimulatedGroup, chance: random.Random, capsys: pytest.CaptureFixture[str]) -> None:
        self.group = group
        self.chance = chance
        self.stored: dict[TopicPartition, int | None] = {}
        """None for an offset that cannot be read."""
        self.begins: dict[TopicPartition, int | None] = {}
        """Where a member does: after the stored offset if its sink has committed more."""
        self.logs: dict[TopicPartition, range] = {}
        self._capsys = capsys
        group.logs.stop()
        for topic in "ab":
            group.logs.grow(topic, chance.randint(1, 3))
        for each in group.logs.partitions:
            group.logs.grow_log(each, chance.randint(0, 40))
            group.logs.retain(each, chance.randint(0, group.logs.end(each)))
            self.logs[each] = range(group.logs.logs[each].start, group.logs.end(each))
        for path in (GROUP.ids, *(GROUP.containers(topic)[0] for topic in "ab")):
            if chance.random() < 0.7:
                group.ensemble.make(path.rpartition("/")[0])
                group.ensemble.operate(Create(path, b"", acl=chance.choice(ACLS)))
        for each in [*group.logs.partitions, *GONE]:
            self._store(each)

    def _store(self, partition: TopicPartition) -> None:
        content = self.chance.choice((None, b"x", b"%d" % self.chance.randrange(60)))
        if content is None and partition not in GONE:
            return
        if partition in GONE and content in (None, b"x"):
            content = b"3"  # what does not say of which topic it was could not be restored
        assert content is not None
        offset = self.stored[partition] = self.begins[partition] = None if content == b"x" else int(content)
        self.group.ensemble.make(GROUP.offset(partition), content)
        if self.chance.random() < 0.6 or partition in GONE:
            topic = self.group.ensemble.tree.nodes.get(paths.topic(partition.topic))
            incarnation, epoch = f"{topic.czxid if topic is not None else 5:#x}", self.chance.randrange(3)
            if partition not in GONE and self.chance.random() < 0.3:  # the topic was created again since
                mark = CommitMark(until=61, incarnation="0x5", epoch=epoch, fingerprint="f")
                record = ClaimRecord(1, "range", "0x5", epoch, "f", mark=mark, position=StoredPosition(61, 0))
                self.group.ensemble.make(GROUP.claim_record(partition), encode_claim_record(record))
                return
            record = ClaimRecord(1, "range", incarnation, epoch, "f")
            if offset is not None and self.chance.random() < 0.5:
                until = max(0, offset + self.chance.choice((-3, 0, 0, 9)))
                mark = CommitMark(until=until, incarnation=incarnation, epoch=epoch, fingerprint="f")
                record = msgspec.structs.replace(record, mark=mark, position=StoredPosition(offset, 0))
                if partition not in GONE:
                    self.begins[partition] = max(offset, until)
            self.group.ensemble.make(GROUP.claim_record(partition), encode_claim_record(record))

    # -- commands

    def __call__(self, *words: str, status: int = 0) -> str:
        """What it prints."""
        self._capsys.readouterr()
        ended = main([*words, "--zookeeper", CONNECT])
        found = self._capsys.readouterr()
        assert ended == status, (words, found)
        return found.out

    def json(self, *words: str, status: int = 0) -> Any:
        return json.loads(self(*words, "-o", "json", status=status))

    def change(self, *words: str) -> None:
        """With `--execute`; without it nothing changes."""
        before, acls = self.nodes(), self.acls()
        self(*words)
        assert self.nodes() == before, words
        self(*words, "--execute")
        after = self.acls()
        assert all(after.get(path, acl) == acl for path, acl in acls.items()), "nodes that exist keep their ACL"

    # -- the group's nodes

    def nodes(self, group: GroupPaths = GROUP) -> dict[str, bytes]:
        found = self.group.ensemble.tree.nodes
        return {path: node.data for path, node in found.items() if f"{path}/".startswith(f"{group.root}/")}

    def acls(self) -> dict[str, tuple[AclEntry, ...]]:
        return {path: self.group.ensemble.tree.nodes[path].acl for path in self.nodes()}

    def offsets(self, group: GroupPaths = GROUP) -> dict[str, bytes]:
        return {path: data for path, data in self.nodes(group).items() if _is_leaf_of(group.offsets, path)}

    def records(self) -> dict[str, ClaimRecord]:
        return {path: decode_claim_record(at) for path, at in self.nodes().items() if _is_leaf_of(GROUP.claims, path)}

    def moved(self, kind: str, amount: int) -> dict[TopicPartition, int] | None:
        """Where a reset of all partitions leads; None if it is refused."""
        found = {}
        for each, log in self.logs.items():
            stored = self.stored.get(each)
            if kind == "--shift-by" and stored is None:
                return None
            at = {
                "--to-earliest": log.start,
                "--to-latest": log.stop,
                "--to-current": log.stop if stored is None else stored,
                "--to-offset": amount,
                "--shift-by": (stored or 0) + amount,
                "--to-datetime": log.start if amount and log else log.stop,
            }[kind]
            found[each] = min(max(at, log.start), log.stop)
        return found

    def republished(self, moved: Mapping[TopicPartition, int]) -> bool:
        """Whether records that a sink has published of the present topics would be consumed again."""
        records = self.records()
        return any(
            (record := records.get(GROUP.claim_record(each))) is not None
            and record.incarnation == self.incarnation(each.topic)
            and min(self.begins.get(each) or 0, self.logs[each].stop) > new
            for each, new in moved.items()
        )

    def incarnation(self, topic: str) -> str:
        return f"{self.group.ensemble.tree.nodes[paths.topic(topic)].czxid:#x}"


def _is_leaf_of(above: str, path: str) -> bool:
    return path.startswith(f"{above}/") and path.count("/") == above.count("/") + 2


@contextmanager
def commands(seed: int, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    with simulated_group(seed, brokers=2) as group:
        group.ensemble.committed.clear()  # the promises are those of members
        program = Program(group, "kzconsumer")
        with blocking(program), mock.patch.object(setup, "for_one_answer"):
            yield Commands(group, random.Random(seed), capsys)
            program.end()


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(2, 500))
def test_what_commands_show_and_change(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with commands(seed, capsys) as kzconsumer:
        require_truth(kzconsumer)
        require_reset_and_undo(kzconsumer, tmp_path)
        require_copies(kzconsumer, tmp_path)
        require_clean_and_restore(kzconsumer, tmp_path)
        before = kzconsumer.nodes()
        kzconsumer.change("groups", "delete", "g", "--undo", str(tmp_path / "deleted"))
        assert kzconsumer.nodes() == {}
        kzconsumer.change("groups", "restore", str(tmp_path / "deleted"))
        assert kzconsumer.nodes() == before


def require_truth(kzconsumer: Commands) -> None:
    """Of the lag of each partition and of all, and of offsets, in all views."""
    lags: dict[TopicPartition, int | None] = {}
    for each, begins in kzconsumer.begins.items():
        if (log := kzconsumer.logs.get(each)) is not None:
            lags[each] = None if begins is None or begins > log.stop else log.stop - max(begins, log.start)
    topics = {each.topic for each in kzconsumer.begins}
    for each, log in kzconsumer.logs.items():
        if each.topic in topics and each not in kzconsumer.begins:  # never read
            lags[each] = None if log.stop > log.start else 0
    known = [lag for lag in lags.values() if lag is not None]
    total = sum(known) if lags and len(known) == len(lags) else None
    lost = {
        each: max(0, kzconsumer.logs[each].start - begins)
        if (begins := kzconsumer.begins.get(each)) is not None
        else 0  # an empty log, of which nothing was to be read
        for each in lags
    }
    unusable = any(lag is None and each in kzconsumer.stored for each, lag in lags.items())
    shown = kzconsumer.json("lag", "g", status=3 if unusable else 0)
    assert {_at(row): row["lag"] for row in shown["partitions"] if not row["gone"]} == lags
    assert {_at(row): row["lost"] for row in shown["partitions"] if row["lag"] is not None} == {
        each: lost[each] for each, lag in lags.items() if lag is not None
    }
    (listed,) = kzconsumer.json("groups", "list")
    for of in (shown, listed):
        assert (of["lag"], of["lag_at_least"], of["gone"]) == (total, sum(known), len(GONE))
        assert sum(of["unknown"].values()) == len(lags) - len(known)
    offsets = kzconsumer.json("offsets", "show", "g")["partitions"]
    assert {_at(row): row["stored"] for row in offsets} == kzconsumer.begins
    records = kzconsumer.records()
    for row in offsets:
        record = records.get(GROUP.claim_record(_at(row)))
        assert row["epoch"] == (record.epoch if record is not None else None)


def _at(row: Mapping[str, Any]) -> TopicPartition:
    return TopicPartition(row["topic"], row["partition"])


def require_reset_and_undo(kzconsumer: Commands, folder: Path) -> None:
    chance = kzconsumer.chance
    kind = chance.choice(("--to-earliest", "--to-latest", "--to-current", "--to-offset", "--shift-by", "--to-datetime"))
    amount = chance.randrange(60) if kind == "--to-offset" else chance.choice((-5, 0, 5))
    values = {"--to-offset": [f"{amount}"], "--shift-by": [f"{amount}"]}.get(kind, [])
    if kind == "--to-datetime":
        amount = chance.choice((0, 1))  # after all records, or with the first one
        values = ["2023-11-14T22:13:20.001" if not amount else "2023-11-14T22:13:20"]
        assert TIMESTAMP == 1_700_000_000_000
    words = ["offsets", "reset", "g", "--topic", "a", "--topic", "b", kind, *values]
    before, offsets, records = kzconsumer.nodes(), kzconsumer.offsets(), kzconsumer.records()
    moved = kzconsumer.moved(kind, amount)
    if moved is None:
        kzconsumer(*words, "--execute", status=1)
        assert kzconsumer.nodes() == before
        return
    if kzconsumer.republished(moved):
        kzconsumer(*words, "--execute", status=1)
        assert kzconsumer.nodes() == before
        words.append("--republish")
    kzconsumer.change(*words, "--undo", str(folder / "reset"))
    wanted = {GROUP.offset(each): b"%d" % at for each, at in moved.items()}
    assert kzconsumer.offsets() == offsets | wanted
    for path, record in records.items():
        at = path.replace(GROUP.claims, GROUP.offsets)
        changed = at in wanted and (offsets.get(at) != wanted[at] or record.committed_until is not None)
        if changed:
            now = kzconsumer.incarnation(paths.topic_of(at))
            record = msgspec.structs.replace(record, incarnation=now, epoch=record.epoch + 1, position=msgspec.UNSET)
        assert kzconsumer.records()[path] == record
    if (folder / "reset").exists():
        kzconsumer.change("offsets", "import", str(folder / "reset"), "--republish", "--undo", str(folder / "again"))
    assert kzconsumer.offsets() == offsets


def require_copies(kzconsumer: Commands, folder: Path) -> None:
    """By a clone, and by files: what can be read, of partitions that exist, in the log."""
    readable = {each: at for each, at in kzconsumer.stored.items() if at is not None and each in kzconsumer.logs}
    wanted = {
        OTHER.offset(each): b"%d" % min(max(at, kzconsumer.logs[each].start), kzconsumer.logs[each].stop)
        for each, at in readable.items()
    }
    if not readable:
        kzconsumer("offsets", "clone", "g", "h", status=1)
        return
    kzconsumer.change("offsets", "clone", "g", "h", "--undo", str(folder / "cloned"))
    assert kzconsumer.offsets(OTHER) == wanted
    kzconsumer.change("groups", "delete", "h", "--undo", str(folder / "other"))
    assert kzconsumer.nodes(OTHER) == {}
    if None not in kzconsumer.stored.values():
        form = kzconsumer.chance.choice(("zookeeper", "csv", "spark"))
        file = folder / f"offsets.{form}"
        main(["offsets", "export", "g", "--format", form, "--output-file", str(file), "--zookeeper", CONNECT])
        if form == "zookeeper":
            file.write_text(file.read_text().replace("/consumers/g/", "/consumers/h/"))
        kzconsumer.change("offsets", "import", str(file), "--group", "h", "--undo", str(folder / "imported"))
        assert kzconsumer.offsets(OTHER) == wanted


def require_clean_and_restore(kzconsumer: Commands, folder: Path) -> None:
    owner = GROUP.owner(TopicPartition("a", 0))
    kzconsumer.group.ensemble.make(owner.rpartition("/")[0])
    kzconsumer.group.ensemble.operate(Create(owner, b"nobody"))
    before = kzconsumer.nodes()
    gone = {path for each in GONE for path in (GROUP.offset(each), GROUP.claim_record(each))} | {owner}
    kzconsumer.change("groups", "clean", "g", "--undo", str(folder / "clean"))
    assert kzconsumer.nodes() == {path: data for path, data in before.items() if path not in gone}
    kzconsumer.change("groups", "restore", str(folder / "clean"))
    assert kzconsumer.nodes() == before
    kzconsumer.change("groups", "clean", "g", "--undo", str(folder / "clean again"))
