"""The programs in docs/python.md, run as printed against a real broker.

`EXPECTED` has what each of them must have printed and stored by the end. A program without an entry is a failure.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.documented import EACH, PARTITIONS, documented
from tests.support.members import stored_offsets
from tests.support.servers import Servers
from tests.support.zookeeper_sessions import until

ROOT = Path(__file__).parents[3]
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_GROUP = re.compile(r'group="([\w-]+)"|"group": \{"id": "([\w-]+)"\}')
_HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)


class Program(NamedTuple):
    name: str
    text: str

    @property
    def group(self) -> str:
        """Each has its own, so that they can be pasted one after the other."""
        (group,) = ("".join(found) for found in _GROUP.findall(self.text))
        return group


class Outcome(NamedTuple):
    """The results of a program."""

    lines: list[str]
    stored: list[int | None]


def programs(file: str) -> list[Program]:
    """Every whole program in a page, named after its heading."""
    text = (ROOT / file).read_text()
    found = []
    for match in _PROGRAM.finditer(text):
        heading = _HEADING.findall(text, 0, match.start())[-1]
        if "asyncio.run(" in match[1]:
            found.append(Program(f"{file}: {heading}", match[1]))
    return found


def everything(outcome: Outcome) -> bool:
    """All messages exactly once, and all of them committed."""
    got = sorted(line.split()[:3] for line in outcome.lines)
    return got == sorted(["orders", str(p), str(n)] for p in range(PARTITIONS) for n in range(EACH)) and (
        outcome.stored == [EACH] * PARTITIONS
    )


def in_batches(outcome: Outcome) -> bool:
    rows = [list(map(int, line.split())) for line in outcome.lines]
    return sum(row[1] for row in rows) == PARTITIONS * EACH and outcome.stored == [EACH] * PARTITIONS


EXPECTED: dict[str, Callable[[Outcome], bool]] = {
    "docs/python.md: Messages, until a signal": everything,
    "docs/python.md: Batches": in_batches,
    "docs/python.md: Concurrent processing with explicit acknowledgement": everything,
    "docs/python.md: Read to the end of the log, then stop": lambda it: (
        it.lines == ["in the log: 40", "read: 40"] and it.stored == [EACH] * PARTITIONS
    ),
    "docs/python.md: Start at a time: seek": lambda it: (
        it.lines[0].split()[1] == "5" and it.stored == [EACH // 2] * PARTITIONS
    ),
    "docs/python.md: Rebalance listener": lambda it: (
        [line.split()[0] for line in it.lines] == ["assigned", "orders", "revoked"]
    ),
}
ENDLESS = {
    "docs/python.md: Messages, until a signal": signal.SIGTERM,
}
"""Programs that must be stopped, and how."""


@contextmanager
def started(program: Program, folder: Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs in `folder`, with its output in the files `out` and `err`; killed at the end if it still runs."""
    (folder / "program.py").write_text(program.text)
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        command = [sys.executable, "-u", "-W", "error", "program.py"]
        process = subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdout=out, stderr=err)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def cluster(servers: Servers) -> Cluster:
    return documented(servers)


@pytest.mark.parametrize("program", programs("docs/python.md"), ids=lambda each: each.name)
async def test_a_program_prints_and_stores_what_its_page_says(
    cluster: Cluster, program: Program, tmp_path: Path
) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    with started(program, tmp_path, KZCONSUMER__ZOOKEEPER__CONNECT=cluster.connect) as process:
        if program.name in ENDLESS:
            await until(lambda: len(out.read_text().splitlines()) == PARTITIONS * EACH, 60)
            process.send_signal(ENDLESS[program.name])
        await until(lambda: process.poll() is not None, 60)
    assert process.returncode == 0, err.read_text()
    outcome = Outcome(
        out.read_text().splitlines(), await stored_offsets(cluster.connect, program.group, "orders", PARTITIONS)
    )
    assert EXPECTED[program.name](outcome), (outcome, err.read_text())
    assert "[debug" not in err.read_text()  # as [log] level says


def test_every_program_has_an_expected_outcome() -> None:
    found = programs("docs/python.md")
    assert {each.name for each in found} == set(EXPECTED)
    assert len({each.group for each in found}) == len(found)
