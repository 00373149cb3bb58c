"""Changes that are cut off between requests, or in one: the error says what was changed, and names the undo file."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import pytest

from kzconsumer.cli.main import main
from kzconsumer.errors import CoordinatorError, NotDoneError, SessionExpiredError
from kzconsumer.offsets.start_rules import WithBrokers
from kzconsumer.registry.cluster import LIMIT
from kzconsumer.zookeeper.session import ZooKeeperSession
from kzconsumer_tools.cluster import cluster_reader
from kzconsumer_tools.groups import group_reader
from kzconsumer_tools.node_changes import CONTROLLER
from kzconsumer_tools.offsets.move import prepare_move
from tests.support.cluster_in_memory import Cluster
from tests.support.extent import seeds
from tests.support.simulated.network import CONNECT
from tests.tools.plain import test_moving_races as moving
from tests.tools.plain.test_commands_machine import GROUP, OTHER, Commands, commands

KNOWN = re.compile(
    r"; (?:nothing was changed|(?:(?P<made>\d+) of \d+ \w+ (?:was|were) \w+)?(?:, )?"
    r"(?:(?P<unknown>\d+) \w+ may have been \w+)?(?: \(all of [^)]*\))?(?P<undo>; the undo file is \S+)?)$"
)


@contextmanager
def cut_off(chance: random.Random, before: int) -> Iterator[None]:
    """After `before` transactions of changes, in the next one."""
    multi = ZooKeeperSession.multi
    done = 0
    executed, expired = chance.random() < 0.5, chance.random() < 0.5

    async def cut(self: ZooKeeperSession, operations: Any) -> object:
        nonlocal done
        done += 1
        if done <= before:
            return await multi(self, operations)
        if executed:
            await multi(self, operations)
        if expired:
            raise SessionExpiredError("the session has expired")
        await anyio.sleep(LIMIT)
        raise AssertionError

    with mock.patch.object(ZooKeeperSession, "multi", cut), mock.patch.object(group_reader, "UNITS_PER_TRANSACTION", 2):
        yield


def changed(before: dict[str, bytes], after: dict[str, bytes], *, of_offsets: bool) -> int:
    paths = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    leaf = re.compile(r"/consumers/[^/]+/offsets/[^/]+/[^/]+")
    return sum(bool(leaf.fullmatch(path)) for path in paths) if of_offsets else len(paths)


@pytest.mark.parametrize("verb", ["reset", "import", "delete", "clean", "restore"])
@pytest.mark.parametrize("seed", seeds(3, 100))
def test_what_the_error_says_is_so(
    seed: int, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the limit of time passes or the session expires, and whether the transaction was executed or not."""
    with commands(seed, capsys) as kzconsumer:
        undo = tmp_path / "undo"
        words = words_of(verb, kzconsumer, tmp_path)
        before = [kzconsumer.nodes(), kzconsumer.nodes(OTHER)]
        with cut_off(kzconsumer.chance, kzconsumer.chance.randrange(3)):
            status = main([*words, "--execute", "--zookeeper", CONNECT])
        error = capsys.readouterr().err.rstrip("\n")
        of_offsets = verb in ("reset", "import")
        number = sum(
            changed(old, kzconsumer.nodes(group), of_offsets=of_offsets)
            for old, group in zip(before, (GROUP, OTHER), strict=True)
        )
        if status == 0:
            return  # there were fewer transactions
        known = KNOWN.search(error)
        assert known is not None, error
        made = int(known["made"] or 0)
        assert made <= number <= made + int(known["unknown"] or 0), error
        if number and verb != "restore":
            assert known["undo"] == f"; the undo file is {undo}", error
        if number and of_offsets:
            kzconsumer("offsets", "import", str(undo), "--execute", "--republish", "--undo", str(tmp_path / "again"))
            assert not changed(before[0], kzconsumer.nodes(), of_offsets=True)
            assert not changed(before[1], kzconsumer.nodes(OTHER), of_offsets=True)


def words_of(verb: str, kzconsumer: Commands, folder: Path) -> list[str]:
    undo = ["--undo", str(folder / "undo")]
    match verb:
        case "reset":
            to = kzconsumer.chance.choice(("--to-earliest", "--to-latest"))
            return ["offsets", "reset", "g", "--topic", "a", "--topic", "b", to, "--republish", *undo]
        case "import":  # of two groups
            for each in (GROUP, OTHER):
                for partition in kzconsumer.logs:
                    if each.offset(partition) not in kzconsumer.nodes(each):
                        kzconsumer.group.ensemble.make(each.offset(partition), b"1")
            lines = [
                f"{name},{partition.topic},{partition.partition},{kzconsumer.logs[partition].stop}\n"
                for name in "gh"
                for partition in kzconsumer.logs
            ]
            (folder / "offsets.csv").write_text("".join(lines))
            return ["offsets", "import", str(folder / "offsets.csv"), "--republish", *undo]
        case "delete" | "clean":
            return ["groups", verb, "g", *undo]
    kzconsumer("groups", "delete", "g", "--execute", *undo)
    return ["groups", "restore", str(folder / "undo")]


@pytest.mark.parametrize("fault", [SessionExpiredError("the session has expired"), None])
@pytest.mark.parametrize("submitted", [True, False])
def test_a_request_to_the_controller(
    submitted: bool, fault: Exception | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was submitted, or may have been, if the controller cannot be waited for."""

    async def cut(*arguments: object) -> Any:
        if fault is not None:
            raise fault
        await anyio.sleep(LIMIT)

    with commands(1, capsys) as kzconsumer:
        monkeypatch.setattr(cluster_reader, "deleting" if submitted else "submit", cut)
        kzconsumer.group.ensemble.make(CONTROLLER, b'{"version":1,"brokerid":0,"timestamp":"1"}')
        assert main(["topics", "delete", "a", "--execute", "--zookeeper", CONNECT]) == 1
        error = capsys.readouterr().err.rstrip("\n")
        assert error.endswith(
            "; 1 of 1 request was submitted" if submitted else "; 1 request may have been submitted"
        ), error


@pytest.mark.parametrize("stored", [0, 1, None])
def test_what_the_coordinator_does_not_answer_may_be_changed(stored: int | None) -> None:
    """`stored`: what it has stored of three offsets before it refuses the others; None: it does not answer."""

    class Away:
        async def stored(self, partitions: object) -> dict[object, WithBrokers]:
            return {}

        async def store(self, offsets: dict[Any, WithBrokers]) -> dict[Any, str]:
            if stored is None:
                raise CoordinatorError("no coordinator has answered")
            return dict.fromkeys(list(offsets)[stored:], "refused")

    async def script(cluster: Cluster) -> None:
        move = await prepare_move(cluster, moving.asked())
        with mock.patch.object(cluster, "coordinator", return_value=Away()), pytest.raises(NotDoneError) as raised:
            await moving.applied(cluster, moving.asked(), move)
        undo = f"; the undo file is {moving.UNDO}"
        said = {
            0: "; nothing was changed",
            1: f"; 1 of 3 partitions was changed{undo}",
            None: f"; 3 partitions may have been changed{undo}",
        }
        assert str(raised.value).endswith(said[stored])

    moving.play(script)
