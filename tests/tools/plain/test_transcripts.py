"""What commands print about clusters in which much is wrong, to the letter: `transcripts` has a page for each scene.

A line `$ kzconsumer ...` is a command, an exit status other than 0 stands behind its output. The clusters are
simulated; a transcript is read by a person once, and from then on it is the oracle of every figure in it. After an
intended change, `python -m tests.tools.plain.test_transcripts` rewrites the pages, and `git diff` shows what
has changed.
"""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, redirect_stderr, redirect_stdout
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest

from kzconsumer.cli.main import main
from kzconsumer.logs import setup
from kzconsumer.model import TopicPartition
from kzconsumer.registry import paths
from kzconsumer.registry.claim_record import ClaimRecord, CommitMark, StoredPosition, encode_claim_record
from kzconsumer.registry.group_records import GroupRun, TopicEnds, encode_group_run, encode_registration
from kzconsumer.registry.paths import GroupPaths
from kzconsumer.zookeeper.operations import Create, Delete, Operation, SetData
from tests.support.plans import plan_of
from tests.support.simulated.blocking import Program, blocking
from tests.support.simulated.group import SimulatedGroup, simulated_group
from tests.support.simulated.network import CHROOT
from tests.support.simulated.observed import WRITTEN
from tests.support.simulated.virtual_time import BEGINNING
from tests.support.simulated.znode_tree import Tree

PAGES = Path(__file__).with_name("transcripts")
ORIGINAL = b'{"version":1,"subscription":{"orders":1,"later":1},"pattern":"static","timestamp":"1700000000000"}'


NOW = WRITTEN + 65.0
"""The time of day for commands, whatever they take."""
SINCE = int((WRITTEN - BEGINNING) * 1000)
"""From ZooKeeper's clock to the time of day, in ms: a simulated world is too young."""


CONNECT = f"zk0,zk1,zk2{CHROOT}"
SECURED = f"""
zookeeper.connect = "{CONNECT}"
group.id = "g"
brokers = {{ security_protocol = "SSL", tls.ca = "absent.pem" }}
"""
"""A file whose keys cannot be read."""


class Scene:
    """A simulated cluster that an operator has prepared."""

    def __init__(self, group: SimulatedGroup) -> None:
        self.group, self.tree = group, group.ensemble.tree
        self._sessions = 0x100

    def topic(self, name: str, *logs: tuple[int, int]) -> None:
        """With such logs: where each starts and ends."""
        self.group.logs.grow(name, len(logs))
        for partition, (start, end) in zip(self.group.logs.of(name), logs, strict=True):
            self.group.logs.grow_log(partition, end)
            self.group.logs.retain(partition, start)

    def make(self, path: str, data: bytes | str = b"") -> None:
        self.group.ensemble.make(path, data.encode() if isinstance(data, str) else data)

    def set(self, path: str, data: str) -> None:
        self.group.ensemble.operate(SetData(path, data.encode(), -1))

    def member(self, group: str, name: str, registration: bytes, owns: dict[str, str] | None = None) -> None:
        """With a session; `owns`: `topic/partition` -> the owner node's text."""
        at = GroupPaths(group)
        self._sessions += 1
        self.make(at.ids)
        operations = [Create(at.member(name), registration, ephemeral=True)]
        for leaf, thread in (owns or {}).items():
            self.make(f"{at.owners}/{leaf.partition('/')[0]}")
            operations.append(Create(f"{at.owners}/{leaf}", thread.encode(), ephemeral=True))
        assert self.group.ensemble.transact(self._sessions, list(operations))[2:] == (-1, 0)

    def offsets(self, group: str, **topics: list[str | int | None]) -> None:
        for topic, stored in topics.items():
            for number, offset in enumerate(stored):
                if offset is not None:
                    self.make(f"{GroupPaths(group).offsets}/{topic}/{number}", str(offset))

    def incarnation(self, topic: str) -> str:
        return f"{self.tree.nodes[paths.topic(topic)].czxid:#x}"

    def claims(self, group: str, topic: str, *records: ClaimRecord | bytes | None) -> None:
        for number, record in enumerate(records):
            if record is not None:
                content = record if isinstance(record, bytes) else encode_claim_record(record)
                self.make(f"{GroupPaths(group).claims}/{topic}/{number}", content)


def ours(**topics: int) -> bytes:
    return encode_registration(topics, 1_700_000_000_000, "1.0")


def much_is_wrong(at: Scene) -> None:
    """One group at work, with every kind of problem that its nodes and its logs can have."""
    at.topic("orders", (0, 20), (5, 9), (3, 30), (0, 4), (2, 2))
    at.topic("pay", (0, 7), (0, 7))
    at.topic("later", (0, 1))
    at.topic("closed", (0, 5))
    at.make(paths.topic("odd"), b'{"version":1}')
    at.group.logs.lead(TopicPartition("pay", 1), -1)
    at.offsets("g", orders=[20, 2, 10, 9, "x"], pay=[3, 3], gone=[5], odd=[1])
    now, plan = at.incarnation("orders"), plan_of(3, 8)
    at.claims(
        "g", "orders", ClaimRecord(2, "range", now), ClaimRecord(1, "roundrobin", now), ClaimRecord(1, "range", now)
    )
    at.claims("g", "pay", ClaimRecord(1, "range", "0x1"), ClaimRecord(1, "range", "0x1", plan=plan))
    at.make(f"{GroupPaths('g').owners}/pay/1", "nobody-0")
    owns = {"orders/0": "g_a-0", "orders/1": "g_a-1", "pay/0": "g_a-0"}
    at.member("g", "g_a", ours(orders=2, pay=1, absent=1), owns)
    at.member("g", "g_b", ORIGINAL, {"orders/2": "g_b-0", "orders/3": "g_z-0"})
    at.make(GroupPaths("locked").ids)
    at.group.ensemble.closed[GroupPaths("locked").ids] = "r"
    at.group.logs.burst(2)


def left_over(at: Scene) -> None:
    """Groups without members: one that has stopped, one whose registration no session holds, one of a Storm spout."""
    at.topic("orders", (0, 20), (5, 9), (3, 30), (2, 2))
    at.topic("pay", (0, 7))
    at.topic("__consumer_offsets", (0, 3))
    for broker in at.group.brokers:
        broker.groups |= {"old", "copy"}
    at.offsets("old", orders=[20, 2, 10], pay=[9], gone=[5, 6])
    now = at.incarnation("orders")
    mark = CommitMark(until=10, incarnation=now, epoch=2, fingerprint="f", written=(4, 10))
    plan = plan_of(10, 15, incarnation=now, epoch=2, rejected="1 3", leader_epoch=0)
    position = StoredPosition(20, 0)
    at.claims(
        "old",
        "orders",
        ClaimRecord(1, "range", now, position=position),
        None,
        ClaimRecord(1, "range", now, 2, "f", plan, mark=mark),
    )
    at.claims("old", "gone", ClaimRecord(1, "range", "0x3"))
    ends = {"gone": TopicEnds("0x3", {0: 5, 1: 6})}
    run = GroupRun(id="r", stop_at=-1, began=1_700_000_000, subscriptions=(), topics=ends)
    at.make(GroupPaths("old").run, encode_group_run(run))
    at.make(f"{GroupPaths('old').owners}/orders/3", "old_x-0")
    at.make(GroupPaths("stuck").member("stuck_x"), ours(pay=1))
    at.make("/consumers/storm/partition_0", "{}")


def brokers_and_topics(at: Scene) -> None:
    """Replicas that are not in sync, leaders that are not preferred, a broker that is away, and unreadable nodes."""
    at.topic("orders", (0, 1), (0, 1), (0, 1), (0, 1))
    at.topic("old", (0, 1))
    at.topic("odd", (0, 1))
    at.topic("spare", (0, 1))
    at.make("/cluster/id", '{"version":"1","id":"c1"}')
    at.make("/controller", '{"version":1,"brokerid":1,"timestamp":"1700000000000"}')
    at.make("/controller_epoch", "4")
    for number, rack in enumerate(('"a"', '"b"', "null")):
        at.group.ensemble.operate(Delete(paths.broker(number), -1))
        address = f'"host":"kafka{number}","port":9092,"endpoints":["PLAINTEXT://kafka{number}:9092"]'
        listeners = '"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"}'
        at.make(paths.broker(number), f'{{"version":4,{address},{listeners},"timestamp":"7","rack":{rack}}}')
    at.set(paths.topic("orders"), '{"version":1,"partitions":{"0":[0,1],"1":[1,2],"2":[2,0],"3":[7,1]}}')
    at.set(paths.topic("old"), '{"version":1,"partitions":{"0":[0,7]}}')
    states = {"orders/partitions/0": (1, [1, 0]), "orders/partitions/1": (2, [2]), "orders/partitions/2": (2, [2, 0])}
    states |= {"orders/partitions/3": (1, [1]), "old/partitions/0": (-1, []), "spare/partitions/0": (0, [0])}
    for leaf, (leader, isr) in states.items():
        state = f'{{"controller_epoch":4,"leader":{leader},"version":1,"leader_epoch":3,"isr":{isr}}}'
        at.make(f"/brokers/topics/{leaf}/state", state)
    at.make("/brokers/topics/odd/partitions/0/state", '"of a later version"')
    at.make("/config/topics/orders", '{"version":1,"config":{"retention.ms":"1000","cleanup.policy":"compact"}}')
    at.make("/config/changes")
    at.make("/admin/delete_topics")
    at.member("g", "g_a", ours(orders=1), {"orders/0": "g_a-0"})


SCENES: dict[str, Callable[[Scene], None]] = {
    each.__name__: each for each in (much_is_wrong, left_over, brokers_and_topics)
}


@contextmanager
def prepared(step: int = 100_000) -> Iterator[SimulatedGroup]:
    """A cluster without topics and members, whose nodes have the time of day in steps of so many milliseconds."""
    transact = Tree.transact

    def dated(tree: Tree, operations: list[Operation], session: int, zxid: int, time_ms: int) -> Any:
        return transact(tree, operations, session, zxid, time_ms // step * step + SINCE)

    with mock.patch.object(Tree, "transact", dated), simulated_group(1, brokers=3) as group:
        group.ensemble.committed.clear()  # the promises are those of members
        group.logs.stop()
        yield group


@contextmanager
def played(name: str) -> Iterator[Callable[[str], str]]:
    """Commands in this scene, each with its output."""
    with ExitStack() as stack:
        group = stack.enter_context(prepared())
        stack.enter_context(mock.patch.dict("os.environ", {"COLUMNS": "120"}))
        stack.enter_context(mock.patch("time.time", return_value=NOW))
        stack.enter_context(mock.patch("socket.gethostname", return_value="host"))
        stack.enter_context(mock.patch("secrets.token_hex", side_effect=map("{:08}".format, count(1))))
        SCENES[name](Scene(group))
        group.world.pass_time(60.0)
        program = Program(group, "kzconsumer")
        stack.enter_context(blocking(program))
        stack.enter_context(mock.patch.object(setup, "for_one_answer"))
        Path("secured.toml").write_text(SECURED)

        def output(command: str) -> str:
            if command.startswith("cat "):
                return Path(command[4:]).read_text()
            out = io.StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                words = shlex.split(command)[1:]
                status = main(words if "--config" in words else [*words, "--zookeeper", CONNECT])
            return out.getvalue() + (f"exit status {status}\n" if status else "")

        stack.callback(program.end)
        yield output


def page(name: str, output: Callable[[str], str]) -> str:
    """Its commands, each with what it prints now."""
    commands = [line[2:] for line in (PAGES / f"{name}.txt").read_text().splitlines() if line.startswith("$ ")]
    return "\n".join(f"$ {command}\n{output(command)}" for command in commands)


@pytest.mark.parametrize("name", SCENES)
def test_what_commands_print(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with played(name) as output:
        assert page(name, output) == (PAGES / f"{name}.txt").read_text()


if __name__ == "__main__":
    for each in sys.argv[1:] or SCENES:
        with (
            TemporaryDirectory() as folder,
            mock.patch.dict("os.environ", {"XDG_CONFIG_HOME": folder}),
            chdir(folder),
            played(each) as printing,
        ):
            (PAGES / f"{each}.txt").write_text(page(each, printing))
