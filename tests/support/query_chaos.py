"""A group of streaming queries of `GroupSource`, each a Spark of its own, and faults of them at seeded moments."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from random import Random

from anyio import to_thread

from kzconsumer_sandbox.servers.kafka_servers import Cluster
from tests.support.chaos import LIMIT, Destination, SparkGroup, freeze, killed
from tests.support.members import Daemon
from tests.support.processes import session_of, wait_gone
from tests.support.spark_cluster import SparkCluster
from tests.support.token_query import HELD, HOLD, INTO, MASTER, TABLE


class QueryGroup(SparkGroup):
    """Their executors are those of `standalone`; the function `into` of `token_tables` writes to `destination`."""

    def __init__(
        self,
        cluster: Cluster,
        standalone: SparkCluster,
        topic: str,
        partitions: int,
        folder: Path,
        into: str,
        destination: Destination,
    ) -> None:
        super().__init__(None, cluster, topic, partitions, folder, destination)
        self.standalone = standalone
        self._into = into
        self._table = folder / "out"

    def made(self, folder: Path) -> Daemon:
        member = super().made(folder)
        text = member.config.read_text().partition("[sink]")[0]
        member.config.write_text(text.replace("[group]\n", '[group]\nrevoke_deadline = "500ms"\n'))
        member.module = "tests.support.token_query"
        member.environment = {MASTER: self.standalone.master, INTO: self._into, TABLE: str(self._table)}
        return member

    def file(self, name: str, file: str) -> Path:
        return self._folder / name / file

    def workers_of(self, name: str) -> list[int]:
        """All processes of the query's driver: its JVM, the source's process."""
        return session_of(self.process(name))

    def reader(self, name: str) -> int:
        """The process in which the source is a member. Raises ValueError if there is none, or an old one, too."""
        module = "python_streaming_source_runner"
        (pid,) = (pid for pid in self.workers_of(name) if module in Path(f"/proc/{pid}/cmdline").read_text())
        return pid

    async def kill(self, name: str) -> None:
        processes = self.workers_of(name)
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._members[name].ended()
        await to_thread.run_sync(wait_gone, processes, LIMIT)


async def kill_driver(group: QueryGroup, name: str, chance: Random) -> None:
    await group.kill(name)
    group.start(name)


async def kill_reader(group: QueryGroup, name: str, chance: Random) -> None:
    await killed(lambda: group.reader(name))


async def kill_executor(group: QueryGroup, name: str, chance: Random) -> None:
    def executor() -> int:
        first, *others = group.standalone.executors
        return chance.choice([first, *others])

    await killed(executor)


async def lose_checkpoint(group: QueryGroup, name: str, chance: Random) -> None:
    await group.kill(name)
    shutil.rmtree(group.file(name, "checkpoint"))
    group.start(name)


async def move_in_batch(group: QueryGroup, name: str, chance: Random) -> None:
    """The other query delivers what this one has begun to write, and finishes later."""
    group.file(name, HELD).unlink(missing_ok=True)
    group.file(name, HOLD).touch()

    async def held() -> bool:
        return group.file(name, HELD).exists()

    try:
        await group.until(held)
        await kill_reader(group, name, chance)
        await group.past([at + 1 for at in await group.committed()])
    finally:
        group.file(name, HOLD).unlink()


FAULTS = (move_in_batch, kill_driver, kill_executor, freeze, kill_reader, lose_checkpoint)
